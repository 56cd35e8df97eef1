"""Generate the reference of the configuration from the dataclasses.

`python docs/reference.py` prints it; the site includes it on the page `configuration.md` (see `hooks.py`).
"""

from __future__ import annotations

import functools
import json
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from offbeat.algorithms import Algorithm
from offbeat.data import Source
from offbeat.options import Options, bounds, hints
from offbeat.runs.catalog import default, description, field_docs, required
from offbeat.runs.config import CHOICES
from offbeat.runs.data import Data
from offbeat.runs.experiment import Experiment

NUMBERS = {int: "whole number", float: "number"}


@dataclass
class Section:
    """A table of the TOML file: the keys under which it may appear, and its class.

    Args:
        kind: The class, or the base class of all choices.
        places: The dotted keys of the table.
        default: Name of the default choice, if there is one.
    """

    kind: type
    places: list[str] = field(default_factory=list)
    default: str = ""

    @property
    def anchor(self) -> str:
        """The anchor of the section."""
        return self.places[0].replace(".", "-")


def markdown() -> str:
    """Return the whole reference."""
    found = sections()
    parts = [_top(found)]
    for section in found.values():
        parts += _choices(section, found) if section.kind in CHOICES else _table(section, found)
    return "\n\n".join(parts) + "\n"


def sections() -> dict[type, Section]:
    """Return all tables, in the order in which an experiment names them."""
    found: dict[type, Section] = {}
    _walk(Experiment, "", found)
    return found


def _walk(kind: type, path: str, found: dict[type, Section]) -> None:
    for entry in fields(kind):
        inner = _inner(hints(kind)[entry.name])
        if inner is None:
            continue
        # The keys of a data set are in the table of the data, next to those that all data sets share.
        place = path if inner is Source else f"{path}.{entry.name}".lstrip(".")
        section = found.setdefault(inner, Section(inner, default=_named(entry)))
        if place in section.places or path in section.places:  # such as a schedule after a schedule
            continue
        section.places.append(place)
        for member in CHOICES.get(inner, {"": inner}).values():
            _walk(member, place, found)


def _inner(annotation: Any) -> type | None:
    """Return the class of a field's value if the value is a table."""
    for arm in (annotation, *get_args(annotation)):
        if isinstance(arm, type) and (arm in CHOICES or (is_dataclass(arm) and issubclass(arm, Options))):
            return arm
    return None


def _named(entry: Field[Any]) -> str:
    """Return the TOML name of a field's default."""
    factory: object = entry.default_factory
    return next((name for names in CHOICES.values() for name, kind in names.items() if kind is factory), "")


def _top(found: dict[type, Section]) -> str:
    plain = [entry for entry in fields(Experiment) if _inner(hints(Experiment)[entry.name]) is None]
    tables = [
        f"| [`[{entry.name}]`](#{found[inner].anchor}) | {_docs(Experiment)[entry.name]} |"
        for entry in fields(Experiment)
        if (inner := _inner(hints(Experiment)[entry.name])) is not None
    ]
    return "\n".join(
        [
            "## Top level { #top }",
            "",
            *_rows(Experiment, plain, found),
            "",
            "| table | description |",
            "|---|---|",
            *tables,
        ]
    )


def _table(section: Section, found: dict[type, Section]) -> Iterator[str]:
    """Describe a table with a fixed class."""
    own = [entry for entry in fields(section.kind) if hints(section.kind)[entry.name] is not Source]
    yield f"## `[{section.places[0]}]` {{ #{section.anchor} }}"
    yield _description(section.kind)
    if section.kind is Data:
        yield "`name` selects the data set, whose own keys are in the same table."
    yield "\n".join(_rows(section.kind, own, found))


def _choices(section: Section, found: dict[type, Section]) -> Iterator[str]:
    """Describe a table whose `name` selects the class."""
    base, places = section.kind, section.places
    shared = fields(base) if is_dataclass(base) else ()
    if base is Source:
        yield "**Data sets**"
    else:
        yield f"## `[{places[0]}]` {{ #{section.anchor} }}"
    if len(places) > 1:
        yield "Also valid as " + ", ".join(f"`{place}`" for place in places[1:]) + "."
    if section.default:
        yield f"Default: `{section.default}`."
    if shared:
        yield "Common keys:\n\n" + "\n".join(_rows(base, shared, found))
    for name, kind in CHOICES[base].items():
        known = {entry.name: _default(entry) for entry in shared}
        own = [entry for entry in fields(kind) if known.get(entry.name) != _default(entry)]
        yield f"### `{name}` {{ #{section.anchor}-{name} }}"
        yield _description(kind)
        if issubclass(kind, Algorithm):
            yield "Schedulers: " + ", ".join(f"[`{each}`](#scheduler-{each})" for each in kind.schedulers) + "."
        if own:
            yield "\n".join(_rows(kind, own, found))


def _rows(kind: type, own: Any, found: dict[type, Section]) -> Iterator[str]:
    docs, annotations = _docs(kind), hints(kind)
    yield "| key | type | default | description |"
    yield "|---|---|---|---|"
    for entry in own:
        default = _default(entry)
        yield f"| `{entry.name}` | {_type(annotations[entry.name], found)} | {default} | {docs[entry.name]} |"


def _default(entry: Field[Any]) -> str:
    if required(entry):
        return "required"
    value = _named(entry) or default(entry)
    return "–" if value is None else f"`{value}`"


def _type(annotation: Any, found: dict[type, Section], many: str = "") -> str:
    """Describe an annotation; `many` is the ending of the plural."""
    origin, args = get_origin(annotation), get_args(annotation)
    inner = _inner(annotation)
    if inner is not None:
        return f"[a name or a table](#{found[inner].anchor})"
    if origin is Annotated:
        return f"{_type(args[0], found, many)} {bounds(args[1:])}".rstrip()
    if origin in (Union, types.UnionType):
        return " or ".join(_type(arm, found, many) for arm in args if arm is not type(None))
    if origin is Literal:
        return ", ".join(f"`{json.dumps(arm)}`" for arm in args)
    if origin is Mapping:
        return "table"
    if origin is tuple:
        any_length = args[1:] == (...,)
        return f"list of {'' if any_length else f'{len(args)} '}{_type(args[0], found, 's')}"
    if annotation in NUMBERS:
        return NUMBERS[annotation] + many
    return {bool: "true or false", str: "text"}[annotation]


def _description(kind: type) -> str:
    """Return the documentation of a class, or the first paragraph of its module's."""
    return "\n\n".join(_cell(paragraph) for paragraph in description(kind))


@functools.cache
def _docs(kind: type) -> Mapping[str, str]:
    return {name: _cell(text) for name, text in field_docs(kind).items()}


def _cell(text: str) -> str:
    """Return text as a table cell."""
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(markdown())
