"""A search as a TOML table: `[tune]` in the file of an experiment."""

from __future__ import annotations

import itertools
from dataclasses import fields
from typing import Any

from offbeat.errors import ConfigError, nearest
from offbeat.runs.config import Table
from offbeat.runs.sweep import Sweep
from offbeat.tuning.search import Search, Tuning
from offbeat.tuning.space import space_of

TUNE, SPACE = "tune", "space"


def parse(table: Table, **changes: Any) -> tuple[Tuning, list[int]]:
    """Return the search that a file describes, and the seeds of its comparison.

    Args:
        table: The experiment, with `tune`, and with optional `variants`, `axes` and `seeds` as for a sweep. Every
            combination of variants is a rule; `seeds` are those of the comparison.
        changes: Values of `tune` that replace those of the table, unless they are None.

    Raises:
        ConfigError: A key or value is not valid.
    """
    base = dict(table)
    given = base.pop(TUNE, None)
    if not isinstance(given, dict):
        raise ConfigError("missing: give [tune] with space, such as tune.space.client.lr = [0.01, 0.1]", key=TUNE)
    settings = dict(given) | {name: value for name, value in changes.items() if value is not None}
    valid = [SPACE, *(entry.name for entry in fields(Search))]
    for name in settings:
        if name not in valid:
            raise ConfigError(f"unknown key; {nearest(name, valid)}", key=f"{TUNE}.{name}")
    compared = base.pop("seeds", [])
    seed = base.get("seed", 0)
    settings.setdefault("seeds", [next(n for n in itertools.count(seed) if n not in compared)])
    try:
        space = space_of(settings.pop(SPACE, {}))
        search = Search(**settings)
    except ConfigError as error:
        raise error.within(TUNE) from None
    rules = Sweep.plan(base, [], [search.seeds[0]]).cells
    return Tuning(rules, space, search), compared
