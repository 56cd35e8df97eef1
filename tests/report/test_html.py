"""The page as a file; tests/report/live/test_browser.py opens it in a browser."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
from typing import Any

import numpy as np
import pytest
from tests.support.run_folders import with_epsilon

from offbeat.report import html, payload, read, series
from offbeat.report.theory import FIGURES, theory
from offbeat.runs.delays import CACHED
from offbeat.runs.folder import UPDATE


def inside(page: str) -> Any:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


def test_the_page_needs_nothing_else(runs: pathlib.Path) -> None:
    page = html.page(read.records([runs]))
    own = page.replace(html.static("echarts.min.js"), "")
    assert not re.search(r'<(script|link|img|iframe)[^>]+(src|href)="(?!data:)', own)
    assert "http" not in own.replace("http-equiv", "")
    assert "default-src &#x27;none&#x27;" in page
    assert page.count("sha256-") == len(html.SCRIPTS)


def test_figures_are_those_of_the_folders(runs: pathlib.Path) -> None:
    records = read.records([runs])
    data = inside(html.page(records))
    for record, row, curve, detail in zip(records, data["runs"], data["curves"], data["details"], strict=True):
        assert row["finals"] == {name: record.summary[name] for name in ("accuracy", "loss")}
        assert row["best"] == record.summary["best_accuracy"]
        assert curve["accuracy"] == pytest.approx([line["accuracy"] for line in record.metrics], abs=1e-5)
        assert sum(detail["staleness"]["count"]) == record.summary["updates"]
        assert detail["lost"] == record.summary["lost"] + record.summary["late"]
        assert detail["trips"] == len(record.log())
        assert sum(detail["refused"].values()) == detail["lost"]
        assert detail["config"] == (record.path / "config.toml").read_text()
        assert ("ages" in detail) == ("cache" in record.config["algorithm"])
        assert np.sum(detail["partition"]["counts"]) == sum(record.setting["sizes"])


def test_the_keys_that_only_one_rule_has(runs: pathlib.Path) -> None:
    gossip, luck, lossy = (payload.detail(read.read(runs / name)) for name in ("cafga", "fedluck", "lossy"))
    assert gossip["network"]["nodes"] == 12
    assert len(gossip["network"]["edges"]) == 12  # two rings of six
    consensus = payload.curve(read.read(runs / "cafga"))["consensus"]
    assert len(consensus) == 7
    assert all(value > 0 for value in consensus[1:])
    assert len(luck["plan"]) == series.DEVICES
    first = luck["plan"][0]
    least = np.unravel_index(np.argmin(first["phi"]), np.shape(first["phi"]))
    assert abs(first["ks"][least[0]] - first["k"]) <= 2
    assert abs(first["deltas"][least[1]] - first["delta"]) <= 0.02
    assert len(read.read(runs / "fedluck").setting["upload_shares"]) == 100, "φ is drawn with the codec's sizes"
    assert lossy["lost"] > 0
    assert any(trip[5] for trip in lossy["timeline"]["trips"])


def test_the_table_of_theory_has_the_figures_of_the_summary(runs: pathlib.Path) -> None:
    records = {name: read.read(runs / name) for name in ("sweep/ca2fl/seed-0", "cafga", "lossy")}
    found = {name: {row["name"]: row["value"] for row in theory(record)} for name, record in records.items()}
    for name, record in records.items():
        assert found[name] == {each: record.summary[each] for each in found[name]}
    delays = {"clients", *(f"staleness_{name}" for name in ("mean", "max", "step_mean", "step_max"))}
    gradients = {"heterogeneity_max", "gradient_square_mean", "train_loss"}
    assert found["sweep/ca2fl/seed-0"].keys() == delays | set(CACHED) | gradients
    assert found["cafga"].keys() == delays | {"clusters", "rho", "rho_limit"}
    assert found["lossy"].keys() == delays
    assert found["cafga"]["clusters"] == 2
    assert found["cafga"]["rho_limit"] == 4 / (4 + 12)
    assert set(FIGURES) == delays | set(CACHED) | gradients | {"clusters", "rho", "rho_limit"}, "all rows are covered"


def test_a_running_or_hostile_summary_has_no_wrong_rows(runs: pathlib.Path) -> None:
    record = read.read(runs / "lossy")
    summary = {"clients": "<b>", "staleness_mean": True, "staleness_max": 1e301, "rho": float("nan"), "clusters": 3}
    assert [row["name"] for row in theory(dataclasses.replace(record, summary=summary))] == ["clusters"]
    assert "theory" not in payload.detail(dataclasses.replace(record, summary={}))


def test_gradients_over_time(runs: pathlib.Path) -> None:
    curve = payload.curve(read.read(runs / "sweep/ca2fl/seed-0"))
    assert all(len(curve[name]) == len(curve["version"]) for name in payload.GRADIENTS)
    assert not set(payload.GRADIENTS) & payload.curve(read.read(runs / "lossy")).keys()


def test_epsilon_over_time(runs: pathlib.Path, tmp_path: pathlib.Path) -> None:
    record = read.read(with_epsilon(runs, tmp_path / "private"))
    assert payload.curve(record)["epsilon"] == [0.5 * n for n in range(len(record.metrics))]
    assert "epsilon" not in payload.curve(read.read(runs / "lossy"))


def test_nothing_in_a_folder_ends_the_script(mixed: pathlib.Path) -> None:
    page = html.page(read.records([mixed]), title="<b>&")
    assert "<title>&lt;b&gt;&amp;</title>" in page
    labels = [row["label"] for row in inside(page)["runs"]]
    assert any("</script><script>" in label for label in labels)
    assert len(re.findall("<script>document.title", page)) == 0


def test_a_broken_run_is_in_the_list(mixed: pathlib.Path) -> None:
    rows = {row["folder"]: row for row in inside(html.page(read.records([mixed])))["runs"]}
    assert rows["cut"]["state"] == "broken"
    assert "not valid JSON" in rows["cut"]["problem"]
    assert rows["lossy"]["problem"] is None


def test_a_long_log_makes_no_large_page(runs: pathlib.Path, tmp_path: pathlib.Path) -> None:
    rng, count = np.random.default_rng(0), 200_000
    log = np.zeros(count, UPDATE)
    log["time"] = np.sort(rng.random(count) * 1e4)
    log["sent"] = np.maximum(0, log["time"] - rng.exponential(50, count))
    log["client"], log["staleness"] = rng.integers(0, 12, count), 3
    record = read.read(runs / "lossy")
    np.save(tmp_path / "updates.npy", log)
    long = read.Record(**{**record.__dict__, "path": tmp_path})
    assert len(json.dumps(payload.detail(long))) < 400_000
