"""The keys in which the configs of runs differ."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from offbeat.report.read import Record, clean

ABSENT = "–"  # a key that a config does not have


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return the values of a config as text by dotted key, without the seed."""
    found: dict[str, str] = {}
    for key, value in config.items():
        name = f"{prefix}{clean(str(key))}"
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{name}.")
        elif name != "seed":
            found[name] = clean(value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False))
    return found


def config_diff(records: Sequence[Record]) -> dict[str, dict[str, str]]:
    """Return the values by label, for each key in which the experiments differ."""
    configs: dict[str, dict[str, str]] = {}
    for record in records:
        if record.config:
            configs.setdefault(record.label, flat(record.config))
    keys = dict.fromkeys(key for config in configs.values() for key in config)
    rows = {key: {label: config.get(key, ABSENT) for label, config in configs.items()} for key in keys}
    return {key: values for key, values in rows.items() if len(set(values.values())) > 1}
