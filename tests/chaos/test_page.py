"""The reliability page is generated from the results of campaigns."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.chaos import deployment, page

from offbeat_chaos.invariants import INVARIANTS


def test_the_page_is_generated_from_the_results() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.page(), "run: python benchmarks/chaos/page.py"


def test_every_file_was_run_and_nothing_was_lost() -> None:
    found = {file.stem: json.loads(file.read_text()) for file in page.RESULTS.glob("*.json")}
    assert found.pop("deployment")["held"]
    assert found.keys() == {file.stem for file in page.HERE.glob("*.toml")}
    assert all(each["held"] for each in found.values())
    assert all([row["name"] for row in each["invariants"]] == list(INVARIANTS) for each in found.values())
    assert sum(each["kills"] for each in found.values()) >= 200


def test_the_log_of_a_deployment_is_checked() -> None:
    good: list[dict[str, Any]] = [
        {"sent": 1, "client": 0}, {"sent": 2, "client": 1}, {"arrived": 1}, {"tick": None}, {"sent": 3, "client": 0},
    ]  # fmt: skip
    assert deployment.check_log(good) == {"sent": 3, "arrived": 1, "lost": 0, "in_flight": 2, "wrong": []}
    assert deployment.check_log([*good, {"arrived": 1}])["wrong"] == [
        "job 1 arrived, but the server does not wait for it"
    ]
    assert deployment.check_log([*good, {"lost": 7}])["wrong"]
    assert deployment.check_log([*good, {"sent": 4, "client": 1}])["wrong"]
    assert deployment.check_log([*good, {"sent": 5, "client": 2}])["wrong"]
