"""Targets in the scale of a metric."""

from __future__ import annotations

import pathlib

import pytest

import offbeat as ob
from offbeat.metric_info import ACCURACY, LOSS
from offbeat.report import read
from offbeat.runs import config
from offbeat.runs.api import execute


@pytest.mark.parametrize(
    ("given", "target"),
    [(0.85, 0.85), (85, 0.85), (1, 1.0), (100, 1.0), (0, 0.0), (1.5, 0.015), (-0.1, None), (101, None)],
)
def test_a_percentage_is_given_as_a_fraction_or_in_percent(given: float, target: float | None) -> None:
    assert ACCURACY.target(given) == (target if target is None else pytest.approx(target))


def test_other_metrics_have_their_own_scale() -> None:
    assert LOSS.target(85) == 85


def test_a_run_and_its_comparison_agree_on_a_target_in_percent(tmp_path: pathlib.Path) -> None:
    table = {"rounds": 2, "data": {"name": "synthetic", "clients": 6}, "evaluation": {"target": 30}}
    table |= {"scheduler": {"concurrency": 4, "buffer": 2}}
    assert execute(config.parse(table), out=tmp_path / "run").summary["target"] == 0.3
    assert read.read(tmp_path / "run").target == 0.3
    with pytest.raises(
        ob.ConfigError, match=r"130\.0 is neither a fraction nor a percentage; give accuracy as 0\.85 or 85"
    ):
        config.parse(table | {"evaluation": {"target": 130}})
