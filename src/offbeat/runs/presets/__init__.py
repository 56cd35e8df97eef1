"""Experiments that come with offbeat, one TOML file each."""

from __future__ import annotations

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
