"""The study of attacks and defenses: its page agrees with its results."""

from __future__ import annotations

import json
import pathlib
import tomllib

import pytest
from benchmarks import robustness

from offbeat.environment import ATTACKS
from offbeat.runs import config
from offbeat.runs.sweep import Sweep

STUDY = tomllib.loads(robustness.STUDY.read_text(encoding="utf-8"))


def test_the_page_is_generated_from_the_study() -> None:
    found = json.loads(robustness.RESULTS.read_text(encoding="utf-8"))
    cells = Sweep.plan(STUDY, [], []).cells
    assert {cell.label for cell in cells} == found["accuracy"].keys(), "results of another file"
    assert robustness.PAGE.read_text(encoding="utf-8") == robustness.page(found), "run: python -m benchmarks.robustness"


def test_every_attack_is_in_the_study_with_its_share() -> None:
    seen = set()
    for cell in Sweep.plan(STUDY, [], []).cells:
        attack = config.parse(cell.table).environment.attack
        assert attack is not None
        label = next(name for name in robustness.labels(STUDY, "attack") if cell.label.endswith(f" {name}"))
        assert attack.share == (0 if label == robustness.NONE else int(cell.label.split(" %")[0][-2:]) / 100)
        seen.add(type(attack))
    assert seen == set(ATTACKS.values())


def test_bold_figures_and_the_summary() -> None:
    study = {"axes": {axis: [{"label": label} for label in names] for axis, names in (
        ("rule", ("mean", "other")), ("share", ("10 %", "20 %")), ("attack", ("none", "flip")))}}  # fmt: skip
    accuracy = {
        "mean 10 % none": [90.0, 92.0], "mean 20 % none": [0.0, 0.0], "other 10 % none": [80.0, 80.0],
        "mean 10 % flip": [86.0, 86.0], "mean 20 % flip": [85.8, 86.0],
        "other 10 % flip": [88.0, None], "other 20 % flip": [99.0, 99.0],
    }  # fmt: skip
    assert robustness._short(study, accuracy).splitlines()[2:] == ["| flip | 10 % | – |"]
    assert robustness._long(study, accuracy).splitlines()[2:] == [
        "| none |  | **91.0** | 80.0 |",
        "| flip | 10 % | **86.0** | diverged |",
        "| flip | 20 % | 85.9 | **99.0** |",
    ]


def test_figures_are_collected_from_run_folders(tmp_path: pathlib.Path) -> None:
    runs = [{"label": "a", "seed": seed, "folder": f"a/{seed}"} for seed in (0, 1)]
    (tmp_path / "sweep.json").write_text(json.dumps({"runs": runs}))
    status = {"gpu": None, "cpus": 2, "machine": "x86_64", "torch": "2"}
    for run in runs:
        folder = tmp_path / str(run["folder"])
        folder.mkdir(parents=True)
        (folder / "config.toml").touch()
        (folder / "status.json").write_text(json.dumps(status))
    (tmp_path / "a/0/summary.json").write_text('{"accuracy": 0.87654, "wall_seconds": 3.0}')
    found = robustness.collect(tmp_path)
    assert found["accuracy"] == {"a": [87.65, None]}
    assert found["seconds"] == pytest.approx(3)
    assert found["machine"] == "2 cores, x86_64, torch 2"


def test_the_text_of_the_page_agrees_with_its_figures() -> None:
    found = json.loads(robustness.RESULTS.read_text(encoding="utf-8"))
    accuracy = found["accuracy"]

    def held(rule: str, share: int, attack: str) -> bool:
        return robustness.survives(STUDY, accuracy, robustness.mean(accuracy, rule, f"{share} %", attack))

    long = ("scaled", "gaussian")
    assert not any(held("mean", 10, attack) for attack in long)
    assert all(held("refused", 30, attack) for attack in long)
    assert not held("mean", 20, "inner-product, large")
    assert not held("shortened", 20, "scaled")
    short = ("sign-flip", "inner-product, small")
    assert all(held("mean", 30, attack) for attack in short)
    assert not any(held(rule, 30, short[1]) for rule in ("Krum", "multi-Krum", "median", "trimmed mean"))
    buffer, trim = STUDY["scheduler"]["buffer"], 0.4
    assert found["crowds"]["20 %"][1] <= trim * buffer < buffer / 2 <= found["crowds"]["30 %"][1]
    for rule in ("median", "trimmed mean"):
        assert held(rule, 20, "gaussian")
        assert not held(rule, 30, "gaussian")
    free = [robustness.mean(accuracy, rule, "10 %", "none") or 0.0 for rule in ("Krum", "median", "mean")]
    assert free == sorted(free)
