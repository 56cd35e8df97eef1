"""What mkdocs does to the pages beside rendering them.

`<!-- generated: WHAT -->` in a page is replaced by what the code itself says, so that it need not be typed:

configuration     every table, name and key of an experiment
commands          the help of every command
modules PACKAGE   the API of every module of a package
sources PACKAGE   the same, with the source
example NAME      examples/NAME.py, its comments as text
"""

from __future__ import annotations

import pathlib
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import click
import griffe

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from docs import reference  # noqa: E402

GENERATED = re.compile(r"^<!-- generated: (\w+) ?(\S*) -->$", flags=re.M)
COLUMNS = re.compile(r"(?:[├└]── )?[\w./…-]+ {2,}\S| {4,}\S")
TREE = re.compile(r"^[├└]", flags=re.M)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by mkdocs for every page."""
    made = GENERATED.sub(lambda found: MAKERS[found[1]](*filter(None, [found[2]])), markdown)
    return _to_api(made, "../" * page.file.src_uri.count("/"))


def _to_api(markdown: str, up: str) -> str:
    """Links to source files, which are good in a repository, lead to their API here."""
    return re.sub(
        r"\]\((?:\.\./)+src/offbeat/(\w+)/(\w+)\.py\)",
        lambda found: f"]({up}api/{found[1]}.md#offbeat.{found[1]}.{found[2]})",
        markdown,
    )


def commands() -> str:
    """The help of every command, in the order in which `offbeat --help` has them."""
    from offbeat.cli import main

    return "\n\n".join(_command(main, "offbeat", None))


def _command(command: click.Command, name: str, parent: click.Context | None) -> Iterator[str]:
    settings = {**command.context_settings, "terminal_width": 96}
    context = click.Context(command, info_name=name, parent=parent, **settings)
    yield f"{'##' if parent is None or parent.parent is None else '###'} `{context.command_path}`"
    yield f"```text\n{command.get_help(context)}\n```"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _command(inner, name, context)


def modules(package: str) -> str:
    """The API of the public modules of a package."""
    found = pkgutil.resolve_name(package)
    names = [module.name for module in pkgutil.iter_modules(found.__path__) if not module.ispkg]
    return "\n\n".join(f"::: {package}.{name}" for name in names)


def sources(package: str) -> str:
    """The same with the source, for modules that are to be read."""
    return re.sub(r"^(:::.*)$", r"\1\n    options: { show_source: true }", modules(package), flags=re.M)


def example(name: str) -> str:
    """A script in cells (`# %%`): what is said in comments as text, the rest as code."""
    cells = re.split(r"^# %%.*\n", (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8"), flags=re.M)
    return "\n\n".join(part for cell in cells for part in _cell(cell))


def _cell(cell: str) -> Iterator[str]:
    comments, code = re.match(r"((?:#.*\n)*)(.*)", cell, flags=re.S).groups()  # type: ignore[union-attr]
    if comments:
        yield re.sub(r"^#", "##", re.sub(r"^# ?", "", comments, flags=re.M), flags=re.M)  # below the page's own heading
    if code.strip():
        yield f"```python\n{code.strip()}\n```"


MAKERS: dict[str, Callable[..., str]] = {
    "configuration": reference.markdown,
    "commands": commands,
    "modules": modules,
    "sources": sources,
    "example": example,
}


class House(griffe.Extension):
    """What mkdocstrings has to know of this house.

    Docstrings may have tables in plain columns, and the fields of a record have comments behind them instead.  What has
    neither is not shown where it says nothing new: a method that is its base class's, done, and an attribute.
    """

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = "\n\n".join(map(_columns, obj.docstring.value.split("\n\n")))

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        for module in _modules(pkg):
            for member in module.attributes.values():
                member.public = bool(member.docstring)
            for cls in module.classes.values():
                if not cls.is_alias:
                    self._tidy(cls)

    def _tidy(self, cls: griffe.Class) -> None:
        inherited = {name for base in cls.mro() for name in base.members}
        fields = any(str(decorator.value) == "record" for decorator in cls.decorators)  # no signature shows them
        for name, member in cls.members.items():
            if isinstance(member, griffe.Attribute) and not member.docstring and (said := _comment(member)):
                member.docstring = griffe.Docstring(said, parent=member)
            known = name in inherited or (member.is_attribute and not fields)
            if not member.is_alias and known and not member.docstring:
                member.public = False


def _comment(member: griffe.Attribute) -> str:
    """What stands behind a field, in its line."""
    found = re.search(r"  # (?!type:|noqa|fmt:)(.+)$", member.source)
    return f"{found[1][0].upper()}{found[1][1:]}." if found else ""


def _modules(module: griffe.Module) -> Iterator[griffe.Module]:
    yield module
    for inner in module.modules.values():
        if not inner.is_alias:
            yield from _modules(inner)


def _columns(paragraph: str) -> str:
    """A paragraph in two columns, such as the parameters of `offbeat.run`, as a table; a tree as it is."""
    lines = paragraph.split("\n")
    if len(lines) < 2 or not all(map(COLUMNS.match, lines)) or lines[0].startswith(" "):
        return paragraph
    if TREE.search(paragraph):
        return "\n".join(f"    {line}" for line in lines)
    rows = re.sub(r"\n {2,}", " ", paragraph).split("\n")
    cells = (re.split(r" {2,}", row, maxsplit=1) for row in rows)
    return "\n".join(["| | |", "|---|---|", *(f"| `{name}` | {text} |" for name, text in cells)])
