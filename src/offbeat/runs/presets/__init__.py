"""Experiments that come with offbeat, one TOML file each."""

from __future__ import annotations

import itertools
import re
from importlib import resources

from offbeat.errors import ConfigError, nearest

PRESETS = (
    "digits-demo",
    "digits-compare",
    "afl-mnist-lr",
    "mifa-mnist-lr",
    "fedluck-digits",
    "afga-runtime",
    "ca2fl-cifar10-cnn",
    "million",
)


def text(name: str) -> str:
    """The TOML of a preset."""
    if name not in PRESETS:
        raise ConfigError(f"unknown preset {name!r}; {nearest(name, PRESETS)}")
    return resources.files(__package__).joinpath(f"{name}.toml").read_text(encoding="utf-8")


def summary(name: str) -> str:
    """Return the comment at the beginning of a preset, up to the end of its first sentence."""
    lines = itertools.takewhile(lambda line: line.startswith("#"), text(name).splitlines())
    return re.split(r"(?<=[.]) ", " ".join(line.removeprefix("#").strip() for line in lines))[0]
