"""Names of the first release: each is rejected with an error that names its replacement."""

from __future__ import annotations

from typing import Any

import pytest

from offbeat import renames
from offbeat.errors import ConfigError
from offbeat.runs import config

KEYS: list[tuple[str, str, str, Any]] = [  # table, old key, new key, a valid value
    ("", "dispatch", "scheduler", {"name": "rounds"}),
    ("", "world", "environment", {"delay": "constant"}),
    ("", "gate", "validation", {"max_norm": 2.0}),
    ("algorithm", "memory", "cache", "dense"),
    ("algorithm", "combine", "aggregator", "median"),
    ("algorithm", "optimiser", "optimizer", "adam"),
    ("algorithm", "normalise", "normalize", "steps"),
    ("algorithm", "schedule", "client.schedule", "inverse"),
    ("environment", "effort", "local_work", "requested"),
]
VALUES: list[tuple[str, str, str]] = [  # key, old value, new value
    ("algorithm.name", "fedper", "fedluck-fixed"),
    ("algorithm.cache.name", "held", "client-side"),
    ("algorithm.cache.name", "quantised", "quantized"),
    ("scheduler.name", "keep-busy", "continuous"),
    ("environment.local_work.name", "as-asked", "requested"),
    ("data.partition.name", "classes", "label-shards"),
    ("data.partition.name", "quantity", "quantity-skew"),
    ("executor", "vectorised", "vectorized"),
]


def table_with(key: str, value: Any) -> config.Table:
    """Return an experiment's table with one key set; the algorithm is one that accepts the key."""
    algorithm = {"algorithm.aggregator": "fedbuff", "algorithm.normalize": "afa-cd"}.get(key, "ca2fl")
    table: config.Table = {"algorithm": {"name": algorithm}}
    *path, last = key.split(".")
    inner = table
    for name in path:
        inner = inner.setdefault(name, {})
    inner[last] = value
    return table


@pytest.mark.parametrize(("table", "old", "new", "value"), KEYS)
def test_an_old_key_is_rejected_with_its_replacement(table: str, old: str, new: str, value: Any) -> None:
    prefix = f"{table}." if table else ""
    with pytest.raises(ConfigError) as caught:
        config.parse(table_with(prefix + old, value))
    assert caught.value.key == prefix + old
    assert f"now called {new!r}" in str(caught.value)
    config.parse(table_with(new if "." in new else prefix + new, value))


@pytest.mark.parametrize(("key", "old", "new"), VALUES)
def test_an_old_value_is_rejected_with_its_replacement(key: str, old: str, new: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.parse(table_with(key, old))
    assert caught.value.key == key
    assert f"now called {new!r}" in str(caught.value)
    config.parse(table_with(key, new))


def test_every_rename_is_tested() -> None:
    assert {(table, old, new) for table, names in renames.KEYS.items() for old, new in names.items()} == {
        row[:3] for row in KEYS
    }
    assert {(key, old, new) for key, names in renames.VALUES.items() for old, new in names.items()} == set(VALUES)
