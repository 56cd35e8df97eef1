"""A run with other hyperparameters, or with a part of its budget."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, cast

from offbeat.errors import ConfigError, nearest
from offbeat.options import Options
from offbeat.runs import config
from offbeat.runs.budget import Budget
from offbeat.runs.data import Data
from offbeat.runs.experiment import Experiment
from offbeat.runs.sweep import Cell

UNKNOWN = "unknown key"


def changed(cell: Cell, params: Mapping[str, Any], label: str, seed: int, share: float = 1.0) -> Cell:
    """Return a run with other hyperparameters.

    Args:
        cell: The run, from a table or from Python objects.
        params: Values by dotted key.
        label: The label of the new run.
        seed: The seed of the new run.
        share: The share of the rounds, of the virtual time and of the budget that it may use.

    Raises:
        ConfigError: A key or value is not valid.
    """
    if cell.given is None:
        table = copy.deepcopy(cell.table) | {"seed": seed}
        for key, value in params.items():
            config.put(table, key, value)
        if share < 1:
            short = config.describe(_shortened(config.parse(table), share))
            table |= {name: short[name] for name in ("rounds", "virtual_seconds", "budget") if name in short}
        return Cell(label, seed, table)
    experiment = replace(cell.given, seed=seed)
    for key, value in params.items():
        experiment = _with(experiment, key.split("."), value, key)
    return Cell(label, seed, given=_shortened(experiment, share))


def accepts(cell: Cell, key: str, value: Any) -> bool:
    """Return whether a run has a key.

    Raises:
        ConfigError: It has the key, but the value is not valid.
    """
    try:
        changed(cell, {key: value}, cell.label, cell.seed).experiment()
    except ConfigError as error:
        if error.key == key and error.message.startswith(UNKNOWN):
            return False
        raise
    return True


def _shortened(experiment: Experiment, share: float) -> Experiment:
    if share >= 1:
        return experiment
    limit, budget = experiment.virtual_seconds, experiment.budget
    return replace(
        experiment,
        rounds=max(1, round(share * experiment.rounds)),
        virtual_seconds=None if limit is None else share * limit,
        budget=None if budget is None else Budget(**{n: _part(a, share) for n, a in budget.amounts.items()}),
    )


def _part(amount: float, share: float) -> Any:
    return max(1, round(share * amount)) if isinstance(amount, int) else share * amount


def _with(options: Any, path: list[str], value: Any, key: str) -> Any:
    """Return a copy of an options object with another value at a path."""
    name, *rest = path
    names = [entry.name for entry in fields(cast("Any", options))]
    if name not in names and isinstance(options, Data):
        return replace(options, source=_with(options.source, path, value, key))
    if name not in names and "options" in names and not rest:  # an optimizer of torch, or a function with arguments
        return replace(options, options={**options.options, name: value})
    if name not in names:
        raise ConfigError(f"{UNKNOWN}; {nearest(name, names, key)}", key=key)
    inner = getattr(options, name)
    if rest and not (is_dataclass(inner) and isinstance(inner, Options)):
        raise ConfigError(f"{name} is {inner!r}, which has no key {rest[0]!r}", key=key)
    try:
        return replace(options, **{name: _with(inner, rest, value, key) if rest else value})
    except ConfigError as error:
        raise (error if error.key == key else ConfigError(error.message, key=key)) from None
