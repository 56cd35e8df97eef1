"""The reference of everything that an experiment's TOML may say, made of the dataclasses themselves.

`python docs/reference.py` prints it; the site has it on the page `configuration.md` (see `hooks.py`).
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
import textwrap
import types
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from offbeat.algorithms import Algorithm
from offbeat.data import Source
from offbeat.options import Options, bounds, hints
from offbeat.runs.config import CHOICES
from offbeat.runs.data import Data
from offbeat.runs.experiment import Experiment

NUMBERS = {int: "whole number", float: "number"}


@dataclass
class Section:
    """A table of the TOML: where it may stand, and the classes that it can describe."""

    kind: type
    places: list[str] = field(default_factory=list)
    default: str = ""

    @property
    def anchor(self) -> str:
        return self.places[0].replace(".", "-")


def markdown() -> str:
    """The whole reference."""
    found = sections()
    parts = [_top(found)]
    for section in found.values():
        parts += _choices(section, found) if section.kind in CHOICES else _table(section, found)
    return "\n\n".join(parts) + "\n"


def sections() -> dict[type, Section]:
    """Every table there is, in the order in which an experiment names them."""
    found: dict[type, Section] = {}
    _walk(Experiment, "", found)
    return found


def _walk(kind: type, path: str, found: dict[type, Section]) -> None:
    for entry in fields(kind):
        inner = _inner(hints(kind)[entry.name])
        if inner is None:
            continue
        # A data set's own keys stand in the data's table, beside those that every data set has.
        place = path if inner is Source else f"{path}.{entry.name}".lstrip(".")
        section = found.setdefault(inner, Section(inner, default=_named(entry)))
        if place in section.places:
            continue
        section.places.append(place)
        for member in CHOICES.get(inner, {"": inner}).values():
            _walk(member, place, found)


def _inner(annotation: Any) -> type | None:
    """The table that a field's value is, if it is one."""
    for arm in (annotation, *get_args(annotation)):
        if isinstance(arm, type) and (arm in CHOICES or (is_dataclass(arm) and issubclass(arm, Options))):
            return arm
    return None


def _named(entry: Field[Any]) -> str:
    """The name of what stands in a field by itself."""
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
        ["## At the top { #top }", "", *_rows(Experiment, plain, found), "", "| table | |", "|---|---|", *tables]
    )


def _table(section: Section, found: dict[type, Section]) -> Iterator[str]:
    """A table whose class is always the same."""
    own = [entry for entry in fields(section.kind) if hints(section.kind)[entry.name] is not Source]
    yield f"## `[{section.places[0]}]` {{ #{section.anchor} }}"
    yield _says(section.kind)
    if section.kind is Data:
        yield "`name` says which data set; its own keys stand beside these."
    yield "\n".join(_rows(section.kind, own, found))


def _choices(section: Section, found: dict[type, Section]) -> Iterator[str]:
    """A table whose `name` says which class it describes."""
    base, places = section.kind, section.places
    shared = fields(base) if is_dataclass(base) else ()
    if base is Source:
        yield "**Data sets**"
    else:
        yield f"## `[{places[0]}]` {{ #{section.anchor} }}"
    if len(places) > 1:
        yield "The same for " + ", ".join(f"`{place}`" for place in places[1:]) + "."
    if section.default:
        yield f"Left out, it is `{section.default}`."
    if shared:
        yield "Whatever its name:\n\n" + "\n".join(_rows(base, shared, found))
    for name, kind in CHOICES[base].items():
        known = {entry.name: _default(entry) for entry in shared}
        own = [entry for entry in fields(kind) if known.get(entry.name) != _default(entry)]
        yield f"### `{name}` {{ #{section.anchor}-{name} }}"
        yield _says(kind)
        if issubclass(kind, Algorithm):
            yield "Schedulers: " + ", ".join(f"[`{each}`](#scheduler-{each})" for each in kind.schedulers) + "."
        if own:
            yield "\n".join(_rows(kind, own, found))


def _rows(kind: type, own: Any, found: dict[type, Section]) -> Iterator[str]:
    docs, annotations = _docs(kind), hints(kind)
    yield "| key | what it takes | default | |"
    yield "|---|---|---|---|"
    for entry in own:
        default = _default(entry)
        yield f"| `{entry.name}` | {_type(annotations[entry.name], found)} | {default} | {docs[entry.name]} |"


def _default(entry: Field[Any]) -> str:
    if named := _named(entry):
        return f"`{named}`"
    factory: Any = entry.default_factory
    value = entry.default if factory is MISSING else factory()
    if value is MISSING:
        return "needed"
    return "–" if value is None else f"`{json.dumps(value, ensure_ascii=False)}`"


def _type(annotation: Any, found: dict[type, Section], many: str = "") -> str:
    """An annotation in words; `many` is the plural's ending."""
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
    if origin is tuple:
        whole = args[1:] == (...,)
        return f"list of {'' if whole else f'{len(args)} '}{_type(args[0], found, 's')}"
    if annotation in NUMBERS:
        return NUMBERS[annotation] + many
    return {bool: "true or false", str: "text"}[annotation]


def _says(kind: type) -> str:
    """What a class says of itself, or its file, where the class says nothing."""
    said = kind.__doc__ or ""
    if not said or said.startswith(f"{kind.__name__}("):  # what a dataclass writes for itself
        said = (sys.modules[kind.__module__].__doc__ or "").split("\n\n")[0]
    return "\n\n".join(_line(paragraph) for paragraph in inspect.cleandoc(said).split("\n\n"))


def _docs(kind: type) -> dict[str, str]:
    """What stands below each field, in the class or, if it says nothing there, in one that it inherits from."""
    docs: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if not is_dataclass(each):
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        assert isinstance(tree, ast.ClassDef)
        for entry, below in zip(tree.body, tree.body[1:], strict=False):
            if not isinstance(entry, ast.AnnAssign) or not isinstance(entry.target, ast.Name):
                continue
            said = below.value.value if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) else None
            if isinstance(said, str):
                docs[entry.target.id] = _line(said)
    return docs


def _line(text: str) -> str:
    """As it can stand in a cell."""
    return re.sub(r"\s+", " ", text).strip().replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(markdown())
