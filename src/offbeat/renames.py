"""Names of the first release and the names that replaced them.

Old names are not accepted. Each of them produces an error that names its replacement.
"""

from __future__ import annotations

KEYS: dict[str, dict[str, str]] = {
    "": {"dispatch": "scheduler", "world": "environment", "gate": "validation"},
    "algorithm": {"memory": "cache", "combine": "aggregator", "optimiser": "optimizer"},
    "environment": {"effort": "local_work"},
}
"""Renamed keys of each TOML table; the empty name stands for the top level."""

VALUES: dict[str, dict[str, str]] = {
    "algorithm.name": {"fedper": "fedluck-fixed"},
    "algorithm.cache.name": {"held": "client-side", "quantised": "quantized"},
    "scheduler.name": {"keep-busy": "continuous"},
    "environment.local_work.name": {"as-asked": "requested"},
    "data.partition.name": {"classes": "label-shards", "quantity": "quantity-skew"},
    "executor": {"vectorised": "vectorized"},
}
"""Renamed values of each key, by the key's dotted name."""


def renamed_key(table: str, key: str) -> str | None:
    """Return the new name of a key in the given table, or None if the key was not renamed."""
    return KEYS.get(table, {}).get(key)


def renamed_value(key: str, value: object) -> str | None:
    """Return the new name of a value of the given key, or None if the value was not renamed."""
    return VALUES.get(key, {}).get(value) if isinstance(value, str) else None
