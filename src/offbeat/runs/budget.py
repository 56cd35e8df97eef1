"""Budgets: what a run may use before it ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from offbeat.errors import ConfigError, nearest
from offbeat.options import Options, Positive, PositiveInt


@dataclass(kw_only=True, frozen=True)
class Budget(Options):
    """What a run may use: it ends when the first of these amounts is used up, or when all rounds are done."""

    client_steps: PositiveInt | None = None
    """Local steps of the accepted updates, of all clients together."""
    updates: PositiveInt | None = None
    """Aggregated updates."""
    bytes_up: PositiveInt | None = None
    """Uploaded bytes."""
    virtual_seconds: Positive | None = None
    """Virtual time; of a deployment, seconds of the wall clock."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.amounts:
            raise ConfigError(f"empty; give at least one of: {', '.join(entry.name for entry in fields(self))}")

    @classmethod
    def of(cls, given: Budget | Mapping[str, Any]) -> Budget:
        """Return a budget that is given as an object or as a dict."""
        if isinstance(given, Budget):
            return given
        if not isinstance(given, Mapping):
            raise ConfigError(f"{given!r} is not a budget, such as Budget(client_steps=10_000)", key="budget")
        names = [entry.name for entry in fields(cls)]
        for name in given:
            if name not in names:
                raise ConfigError(f"unknown key; {nearest(name, names)}", key=f"budget.{name}")
        try:
            return cls(**given)
        except ConfigError as error:
            raise error.within("budget") from None

    @property
    def amounts(self) -> dict[str, float]:
        """The amounts that are limited, by the name of their counter."""
        return {name: amount for name, amount in asdict(self).items() if amount is not None}

    def share(self, counters: object) -> float:
        """Return the share that is used up, of the amount of which the largest share is.

        Args:
            counters: The counters of the run, with the names of the amounts.
        """
        return max(float(getattr(counters, name)) / amount for name, amount in self.amounts.items())

    def used_up(self, counters: object) -> str | None:
        """Return which amount is used up in words, or None if there is something left of all.

        The virtual time is not considered: it is over when the next event comes later, not when an event is counted.
        """
        for name, amount in self.amounts.items():
            if name != "virtual_seconds" and getattr(counters, name) >= amount:
                return f"the budget of {amount:,} {name} is used up"
        return None
