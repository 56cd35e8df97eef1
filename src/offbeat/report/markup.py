"""Tables of the terminal as Markdown and LaTeX."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$", "|": "$|$",
    "±": r"$\pm$", "−": "$-$", "–": "--", "τ": r"$\tau$", "ε": r"$\varepsilon$", "δ": r"$\delta$", "φ": r"$\varphi$",
    "η": r"$\eta$", "α": r"$\alpha$", "β": r"$\beta$", "ρ": r"$\rho$", "Δ": r"$\Delta$", "²": "$^2$", "≤": r"$\le$",
    "≥": r"$\ge$", "·": r"$\cdot$", "×": r"$\times$", "…": r"\ldots{}",
}  # fmt: skip


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
