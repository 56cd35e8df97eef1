"""The last evaluation per client and per label, as a page shows it."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest
from tests.support.run_folders import experiment

from offbeat.report import html, payload, read
from offbeat.report.groups import groups
from offbeat.runs import config
from offbeat.runs.api import execute
from offbeat.runs.folder import read_client_metrics, read_label_metrics


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    table = experiment("fedbuff", rounds=6, evaluation={"every": 2, "per_client": True, "per_label": True})
    place = tmp_path_factory.mktemp("groups") / "run"
    execute(config.parse(table), out=place)
    return place


def test_the_figures_are_those_of_the_last_evaluation(folder: pathlib.Path) -> None:
    record = read.read(folder)
    found = groups(record)
    clients = np.array(read_client_metrics(folder)[-1]["accuracy"], dtype=float)
    shown = found["per_client"]
    assert shown["version"] == found["per_label"]["version"] == 6
    assert (shown["clients"], sum(shown["count"])) == (12, 12)
    assert (shown["cuts"][0], shown["cuts"][-1]) == (0, 1)
    assert shown["mean"] == pytest.approx(clients.mean(), rel=1e-5)
    assert shown["worst_decile"] == pytest.approx(record.metrics[-1]["accuracy_worst_decile"], rel=1e-5)
    assert shown["worst"][0] == [int(clients.argmin()), pytest.approx(clients.min(), rel=1e-5)]
    assert found["per_label"]["values"] == pytest.approx(read_label_metrics(folder)[-1]["accuracy"], rel=1e-5)
    assert payload.curve(record)["accuracy_worst_decile"][-1] == shown["worst_decile"]
    assert payload.detail(record)["per_client"] == shown
    assert '"per_label"' in html.page([record])


def test_runs_without_them_show_nothing(runs: pathlib.Path) -> None:
    record = read.read(runs / "lossy")
    assert groups(record) == {}
    assert "accuracy_worst_decile" not in payload.curve(record)


@pytest.mark.parametrize(
    "line",
    [
        "not JSON", "[]", "{}", '{"version": 6, "accuracy": "all"}', '{"version": "6", "accuracy": [0.5]}',
        '{"version": 6, "accuracy": [null, null]}', '{"version": 6, "accuracy": []}', "[" * 100_000,
    ],
)  # fmt: skip
def test_nothing_that_a_file_contains_raises_an_error(line: str, folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    place = copied(folder, tmp_path)
    for name in ("client_metrics.jsonl", "label_metrics.jsonl"):
        (place / name).write_text(f"{line}\n")
    assert groups(read.read(place)) == {}


def test_values_that_are_no_numbers_are_left_out(folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    place = copied(folder, tmp_path)
    values: list[Any] = [0.25, None, "<b>", True, 1e999, 0.75]
    (place / "client_metrics.jsonl").write_text(
        json.dumps({"version": 6, "accuracy": values}) + '\n{"version": 8, "acc'
    )
    shown = groups(read.read(place))["per_client"]
    assert (shown["clients"], shown["mean"], shown["worst"]) == (2, 0.5, [[0, 0.25], [5, 0.75]])


def copied(folder: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    place = tmp_path / "run"
    place.mkdir()
    for file in folder.iterdir():
        if file.is_file():
            (place / file.name).write_bytes(file.read_bytes())
    return place
