"""Hooks of the documentation site: generate parts of pages from the code.

A comment `<!-- generated: KIND ARGUMENT -->` in a page is replaced by generated Markdown:

configuration     every table, name and key of an experiment
commands          the help of every command
modules PACKAGE   the API of every module of a package
sources PACKAGE   the API of every module of a package, with source code
example NAME      examples/NAME.py, its comments as text
notebook NAME     docs/notebooks/NAME.ipynb, without its title
"""

from __future__ import annotations

import json
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
    """Replace the markers of a page; mkdocs calls this for every page."""
    expanded = GENERATED.sub(lambda found: GENERATORS[found[1]](*filter(None, [found[2]])), markdown)
    return _to_api(expanded, "../" * page.file.src_uri.count("/"))


def _to_api(markdown: str, up: str) -> str:
    """Point links to source files, which work in the repository, to the API pages of the site."""
    return re.sub(
        r"\]\((?:\.\./)+src/offbeat/(\w+)/(\w+)\.py\)",
        lambda found: f"]({up}api/{found[1]}.md#offbeat.{found[1]}.{found[2]})",
        markdown,
    )


def commands() -> str:
    """Return the help of every command, in the order of `offbeat --help`."""
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
    """Return the API directives of the public modules of a package."""
    found = pkgutil.resolve_name(package)
    names = [module.name for module in pkgutil.iter_modules(found.__path__) if not module.ispkg]
    return "\n\n".join(f"::: {package}.{name}" for name in names)


def sources(package: str) -> str:
    """Return the API directives of a package's modules, with source code."""
    return re.sub(r"^(:::.*)$", r"\1\n    options: { show_source: true }", modules(package), flags=re.M)


def example(name: str) -> str:
    """Return an example script in cells (`# %%`) as Markdown: comments as text, the rest as code."""
    cells = re.split(r"^# %%.*\n", (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8"), flags=re.M)
    return "\n\n".join(part for cell in cells for part in _cell(cell))


def notebook(name: str) -> str:
    """Return a notebook of the documentation as Markdown, without its title."""
    cells = json.loads((ROOT / "docs/notebooks" / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    texts = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    parts = [text if kind == "markdown" else f"```python\n{text}\n```" for kind, text in texts]
    return re.sub(r"\A# .*\n+", "", "\n\n".join(parts))


def _cell(cell: str) -> Iterator[str]:
    comments, code = re.match(r"((?:#.*\n)*)(.*)", cell, flags=re.S).groups()  # type: ignore[union-attr]
    if comments:
        yield re.sub(r"^#", "##", re.sub(r"^# ?", "", comments, flags=re.M), flags=re.M)  # below the page's own heading
    if code.strip():
        yield f"```python\n{code.strip()}\n```"


GENERATORS: dict[str, Callable[..., str]] = {
    "configuration": reference.markdown,
    "commands": commands,
    "modules": modules,
    "sources": sources,
    "example": example,
    "notebook": notebook,
}


class PublicMembers(griffe.Extension):
    """Decide which members mkdocstrings shows, and document the fields of records.

    The fields of a record take their documentation from the comment on their line. Methods and attributes without a
    docstring are hidden where the base class or the signature already shows them.
    """

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Turn plain-text columns of a docstring into a table."""
        if obj.docstring:
            obj.docstring.value = "\n\n".join(map(_columns, obj.docstring.value.split("\n\n")))

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Select the members of every class and module."""
        for module in _modules(pkg):
            for member in module.attributes.values():
                member.public = bool(member.docstring)
            for cls in module.classes.values():
                if not cls.is_alias:
                    self._select(cls)

    def _select(self, cls: griffe.Class) -> None:
        inherited = {name for base in cls.mro() for name in base.members}
        is_record = any(
            str(decorator.value) == "record" for decorator in cls.decorators
        )  # no signature shows its fields
        for name, member in cls.members.items():
            if isinstance(member, griffe.Attribute) and not member.docstring and (comment := _comment(member)):
                member.docstring = griffe.Docstring(comment, parent=member)
            known = name in inherited or (member.is_attribute and not is_record)
            if not member.is_alias and known and not member.docstring:
                member.public = False


def _comment(member: griffe.Attribute) -> str:
    """Return the comment on a field's line as a sentence."""
    found = re.search(r"  # (?!type:|noqa|fmt:)(.+)$", member.source)
    return f"{found[1][0].upper()}{found[1][1:]}." if found else ""


def _modules(module: griffe.Module) -> Iterator[griffe.Module]:
    yield module
    for inner in module.modules.values():
        if not inner.is_alias:
            yield from _modules(inner)


def _columns(paragraph: str) -> str:
    """Return a paragraph in two plain-text columns as a table, and a tree as a code block."""
    lines = paragraph.split("\n")
    if len(lines) < 2 or not all(map(COLUMNS.match, lines)) or lines[0].startswith(" "):
        return paragraph
    if TREE.search(paragraph):
        return "\n".join(f"    {line}" for line in lines)
    rows = re.sub(r"\n {2,}", " ", paragraph).split("\n")
    cells = (re.split(r" {2,}", row, maxsplit=1) for row in rows)
    return "\n".join(["| | |", "|---|---|", *(f"| `{name}` | {text} |" for name, text in cells)])
