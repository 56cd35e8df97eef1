"""Tables of the terminal as Markdown, LaTeX, HTML and plain text."""

from __future__ import annotations

import html as _html
from collections.abc import Callable, Sequence
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from offbeat.report.tables import fitted

Form = Literal["latex", "markdown", "html", "text"]

LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$", "|": "$|$",
    "±": r"$\pm$", "−": "$-$", "–": "--", "τ": r"$\tau$", "ε": r"$\varepsilon$", "δ": r"$\delta$", "φ": r"$\varphi$",
    "η": r"$\eta$", "α": r"$\alpha$", "β": r"$\beta$", "ρ": r"$\rho$", "Δ": r"$\Delta$", "²": "$^2$", "≤": r"$\le$",
    "≥": r"$\ge$", "·": r"$\cdot$", "×": r"$\times$", "…": r"\ldots{}",
}  # fmt: skip


def document(tables: Sequence[Table], notes: Sequence[str], form: Form) -> str:
    """Return tables and the notes below them, in LaTeX as comments."""
    write, note = FORMS[form]
    return "\n".join([*map(write, tables), *map(note, notes)])


def markdown(table: Table) -> str:
    """Return a table in the Markdown of GitHub, with its caption below."""
    head, *rows = [[text.replace("|", r"\|") or " " for text in row] for row in _texts(table)]
    sides = ["---:" if column.justify == "right" else ":---" for column in table.columns]
    lines = [f"| {' | '.join(row)} |" for row in (head, sides, *rows)]
    return "\n".join([*lines, "", *([_caption(table), ""] if table.caption else [])])


def latex(table: Table) -> str:
    """Return a table in LaTeX, for the package booktabs."""
    head, *rows = [" & ".join(map(escaped, row)) + r" \\" for row in _texts(table)]
    sides = "".join("r" if column.justify == "right" else "l" for column in table.columns)
    lines = [r"\begin{table}", r"\centering", rf"\begin{{tabular}}{{{sides}}}", r"\toprule", head, r"\midrule", *rows]
    lines += [r"\bottomrule", r"\end{tabular}"]
    lines += [rf"\caption{{{escaped(_caption(table))}}}"] if table.caption else []
    return "\n".join([*lines, r"\end{table}", ""])


def html(table: Table) -> str:
    """Return a table in HTML, for a notebook."""
    head, *rows = [[_html.escape(text) for text in row] for row in _texts(table)]
    heads = "".join(f"<th>{text}</th>" for text in head)
    body = "".join(f"<tr><th>{row[0]}</th>{''.join(f'<td>{cell}</td>' for cell in row[1:])}</tr>" for row in rows)
    caption = f"<caption>{_html.escape(_caption(table))}</caption>" if table.caption else ""
    return f"<table>{caption}<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def text(table: Table) -> str:
    """Return a table in plain text, as wide as the terminal."""
    console = Console(color_system=None, force_jupyter=False)  # in a notebook, it would show an empty output of its own
    with console.capture() as captured:
        fitted(table, console)
        caption, table.caption = table.caption, None
        console.print(table)
        console.print(caption or "", highlight=False)
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())


FORMS: dict[Form, tuple[Callable[[Table], str], Callable[[str], str]]] = {
    "latex": (latex, "% {}".format),
    "markdown": (markdown, "- {}".format),
    "html": (html, lambda note: f"<p>{_html.escape(note)}</p>"),
    "text": (text, "note    {}".format),
}
"""How to write a table and a note, by the form of a document."""


def escaped(text: str) -> str:
    """Return text for LaTeX."""
    return "".join(LATEX.get(character, character) for character in text)


def _texts(table: Table) -> list[list[str]]:
    """Return the header and the rows without styles."""
    columns = [[Text.from_markup(str(cell)).plain for cell in (c.header, *c.cells)] for c in table.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def _caption(table: Table) -> str:
    text = Text.from_markup(str(table.caption)).plain
    return f"{text[0].upper()}{text[1:]}."
