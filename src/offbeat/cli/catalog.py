"""The commands `list` and `show`: the names that an experiment can use."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence

import click
from rich.console import Console

from offbeat.errors import OffbeatError, nearest

PRESETS = "presets"
NARROWEST = 24  # columns that a description has at least


@click.command("list")
@click.argument("kind", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: the names only.")
def list_(kind: str | None, as_json: bool) -> None:
    """List the names that an experiment can use, with a description.

    KIND restricts the list, as in `offbeat list algorithms`.
    """
    from offbeat.runs import catalog, presets

    kinds = [*catalog.KINDS, PRESETS]
    if kind is not None:
        kinds = [_kind(kind, kinds)]
    found = {
        each: {name: presets.summary(name) for name in presets.PRESETS}
        if each == PRESETS
        else {name: catalog.summary(cls) for name, cls in catalog.names(each).items()}
        for each in kinds
    }
    if as_json:
        click.echo(json.dumps({each: list(members) for each, members in found.items()}, indent=2))
        return
    for each, members in found.items():
        click.echo(click.style(each, bold=True))
        for line in _columns(list(members.items())):
            click.echo(line)


@click.command()
@click.argument("name", shell_complete=lambda ctx, param, incomplete: complete_presets(incomplete))
def show(name: str) -> None:
    """Print a preset as TOML, or what NAME means: its keys, their defaults and its paper.

    NAME is a preset, or any name of `offbeat list`, such as fedbuff.
    """
    from offbeat.runs import catalog, presets

    plain = name.removeprefix("preset:")
    if plain in presets.PRESETS or plain != name:
        click.echo(presets.text(plain), nl=False)
        return
    found = catalog.find(name)
    if not found:
        valid = [*presets.PRESETS, *dict.fromkeys(each for kind in catalog.KINDS for each in catalog.names(kind))]
        close = nearest(name, valid).rpartition("Did you mean")
        hint = f" Did you mean{close[2]}" if close[1] else ""
        raise OffbeatError(f"unknown name {name!r}; `offbeat list` prints all names.{hint}")
    click.echo("\n\n".join("\n".join(_described(kind, cls)) for kind, cls in found))


def _described(kind: str, cls: type) -> Iterator[str]:
    """Yield the lines that describe a class."""
    from offbeat.algorithms import Algorithm
    from offbeat.runs import catalog

    name = next(name for name, each in catalog.names(kind).items() if each is cls)
    yield click.style(f'{catalog.KINDS[kind][1]} = "{name}"', bold=True) + f"  ({kind})"
    origin = catalog.origin(cls) if issubclass(cls, Algorithm) else ""
    for paragraph in catalog.description(cls):
        yield from ("", *_wrapped(paragraph))
    if origin:
        yield from ("", origin)
    if issubclass(cls, Algorithm):
        yield from ("", f"schedulers: {', '.join(cls.schedulers)}")
    if keys := catalog.keys(cls):
        yield from ("", "keys:", *_columns([(_assignment(key, value), text) for key, value, text in keys]))


def _assignment(key: str, value: str) -> str:
    return f"{key} = {value}" if value not in ("", "required") else f"{key} ({value or 'optional'})"


def _columns(rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield rows of a name and its description; in a terminal they are wrapped, in a pipe each is one line."""
    console = Console()
    first = max(len(name) for name, _ in rows)
    below = console.is_terminal and console.width - first - 4 < NARROWEST  # no room for a second column
    for name, text in rows:
        if below:
            yield f"  {name}"
            yield from _wrapped(text, "      ")
        else:
            yield from _wrapped(f"  {name:{first}}  {text}", " " * (first + 4), "")


def _wrapped(text: str, later: str = "", begin: str | None = None) -> list[str]:
    console = Console()
    if not console.is_terminal:
        return [(later if begin is None else begin) + text]
    return textwrap.wrap(
        text, max(console.width, NARROWEST), initial_indent=later if begin is None else begin, subsequent_indent=later,
        break_on_hyphens=False,
    )  # fmt: skip


def _kind(given: str, kinds: Sequence[str]) -> str:
    plain = given.lower().replace("-", "_")
    for kind in kinds:
        if plain in (kind, kind.removesuffix("s"), kind.removesuffix("ies") + "y"):
            return kind
    raise OffbeatError(f"unknown kind {given!r}; {nearest(plain, kinds)}")


def complete_presets(incomplete: str) -> list[str]:
    """Return the presets that begin as given, for the completion of a shell."""
    from offbeat.runs.presets import PRESETS

    before = "preset:" if incomplete.startswith("preset:") else ""
    return [before + name for name in PRESETS if (before + name).startswith(incomplete)]
