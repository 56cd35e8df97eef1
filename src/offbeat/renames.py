"""Names of the first release and the names that replaced them.

Old names are not accepted. Each of them produces an error that names its replacement.
"""

from __future__ import annotations

from offbeat.errors import ConfigError

KEYS: dict[str, dict[str, str]] = {
    "": {"dispatch": "scheduler", "world": "environment", "gate": "validation"},
    "algorithm": {
        "memory": "cache",
        "combine": "aggregator",
        "optimiser": "optimizer",
        "normalise": "normalize",
        "schedule": "client.schedule",
    },
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

NAMES: dict[str, str] = {
    "Anarchic": "schedulers.Anarchic",
    "ByOwner": "partitions.Natural",
    "Classes": "partitions.LabelShards",
    "Dispatch": "schedulers.Scheduler",
    "Ending": "callbacks.RunOutcome",
    "FedPer": "algorithms.FedLuckFixed",
    "Gate": "UpdateValidator",
    "KeepBusy": "Continuous",
    "Quantity": "partitions.QuantitySkew",
    "World": "Environment",
}
"""Renamed classes, with their new place below `offbeat`."""


def renamed_name(name: str) -> str | None:
    """Return the new name of a class of the first release, or None if it was not renamed."""
    return NAMES.get(name)


def reject_renamed_key(table: str, key: str) -> None:
    """Raise a ConfigError that names the replacement if a key of the given table was renamed."""
    new = KEYS.get(table, {}).get(key)
    if new is not None:
        raise ConfigError(f"this key is now called {new!r}; rename it", key=f"{table}.{key}" if table else key)


def renamed_value(key: str, value: object) -> str | None:
    """Return the new name of a value of the given key, or None if the value was not renamed."""
    return VALUES.get(key, {}).get(value) if isinstance(value, str) else None
