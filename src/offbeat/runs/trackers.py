"""Trackers by name, as on the command line: NAME, NAME=PLACE, or "package.module:name" for a custom callback."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from offbeat.errors import ConfigError, nearest
from offbeat.runs.callbacks import TRACKERS, Callback
from offbeat.runs.custom import call, resolve


def trackers(named: Sequence[str]) -> list[Callback]:
    """Return one callback per name.

    Raises:
        ConfigError: A name is unknown, or its library is not installed.
    """
    try:
        return [_tracker(*_parts(text)) for text in dict.fromkeys(named)]
    except ConfigError as error:
        raise ConfigError(error.message, key="--track") from None


def absolute(named: Sequence[str]) -> list[str]:
    """Return the names with absolute places, for a process with another working directory."""
    parts = [_parts(text) for text in named]
    return [name if place is None else f"{name}={_absolute(place)}" for name, place in parts]


def _parts(text: str) -> tuple[str, str | None]:
    name, _, place = text.partition("=")
    return name, place or None


def _absolute(place: str) -> str:
    return place if "://" in place else str(pathlib.Path(place).resolve())


def _tracker(name: str, place: str | None) -> Callback:
    if ":" in name:
        custom = call(resolve(name), {}, {} if place is None else {"place": place})
        if not isinstance(custom, Callback):
            raise ConfigError(f"{name!r} returns {type(custom).__name__}, not an offbeat.Callback")
        return custom
    if name not in TRACKERS:
        raise ConfigError(
            f'unknown name {name!r}; {nearest(name, TRACKERS)} For your own class, give "package.module:name".'
        )
    return TRACKERS[name](place)
