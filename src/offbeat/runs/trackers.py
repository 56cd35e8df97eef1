"""Trackers by name: NAME, NAME=PLACE, or a user's own callback, "package.module:thing"."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from offbeat.errors import ConfigError, nearest
from offbeat.runs.callbacks import TRACKERS, Callback
from offbeat.runs.custom import call, resolve


def trackers(named: Sequence[str]) -> list[Callback]:
    """One callback for each name; what it needs and is not installed is an error now, not in the run."""
    try:
        return [_tracker(*_parts(text)) for text in dict.fromkeys(named)]
    except ConfigError as error:
        raise ConfigError(error.message, key="--track") from None


def absolute(named: Sequence[str]) -> list[str]:
    """The same for a process that is elsewhere."""
    parts = [_parts(text) for text in named]
    return [name if place is None else f"{name}={_absolute(place)}" for name, place in parts]


def _parts(text: str) -> tuple[str, str | None]:
    name, _, place = text.partition("=")
    return name, place or None


def _absolute(place: str) -> str:
    return place if "://" in place else str(pathlib.Path(place).resolve())


def _tracker(name: str, place: str | None) -> Callback:
    if ":" in name:
        own = call(resolve(name), {}, {} if place is None else {"place": place})
        if not isinstance(own, Callback):
            raise ConfigError(f"{name!r} makes {type(own).__name__}, not an offbeat.Callback")
        return own
    if name not in TRACKERS:
        raise ConfigError(f'unknown name {name!r}; {nearest(name, TRACKERS)} Your own goes by "package.module:name".')
    return TRACKERS[name](place)
