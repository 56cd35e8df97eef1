"""The settings in which runs differ."""

from __future__ import annotations

import pathlib
from typing import Any

from offbeat.report import tables
from offbeat.report.config_diff import config_diff, flat
from offbeat.report.read import Record


def record(label: str, **config: Any) -> Record:
    return Record(pathlib.Path(label), label, config=config)


def test_only_keys_that_differ_are_listed() -> None:
    one = record("A", seed=0, rounds=10, algorithm={"name": "fedbuff"}, client={"lr": 0.1, "steps": [1, 2]})
    two = record("B", seed=3, rounds=10, algorithm={"name": "ca2fl", "cache": {"name": "dense"}}, client={"lr": 0.1})
    assert config_diff([one, two, record("broken")]) == {
        "algorithm.name": {"A": "fedbuff", "B": "ca2fl"},
        "client.steps": {"A": "[1, 2]", "B": "–"},
        "algorithm.cache.name": {"A": "–", "B": "dense"},
    }
    assert config_diff([one]) == config_diff([]) == {}


def test_values_are_one_safe_line() -> None:
    assert flat({"a": {"b\n": "x\u202ey"}, "on": True, "none": {}}) == {
        "a.b\ufffd": "x\ufffdy",
        "on": "true",
        "none": "{}",
    }


def test_the_shorter_side_has_the_columns() -> None:
    rows = {"client.lr": {"A": "0.1", "B": "0.2", "C": "0.3"}}
    assert [column.header for column in tables.settings(rows).columns] == ["", "client.lr"]
    wide = {f"key{i}": {"A": "1", "B": "2"} for i in range(3)}
    assert [column.header for column in tables.settings(wide).columns] == ["", "A", "B"]
