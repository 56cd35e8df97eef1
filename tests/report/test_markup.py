"""Tables as Markdown and LaTeX."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from offbeat.report import markup, tables


def table() -> Table:
    found = tables.plain_table("accuracy, ± over 2 seeds until 30 %", "acc %")
    found.add_row(escape("CA²FL [a_b] | x & y"), "81.0 ± 0.2")
    found.add_row("never")
    return found


def test_markdown() -> None:
    assert markup.markdown(table()).splitlines() == [
        "|   | acc % |",
        "| :--- | ---: |",
        r"| CA²FL [a_b] \| x & y | 81.0 ± 0.2 |",
        "| never |   |",
        "",
        "Accuracy, ± over 2 seeds until 30 %.",
    ]


def test_latex_escapes_what_is_special() -> None:
    lines = markup.latex(table()).splitlines()
    assert r" & acc \% \\" in lines
    assert r"CA$^2$FL [a\_b] $|$ x \& y & 81.0 $\pm$ 0.2 \\" in lines
    assert r"\caption{Accuracy, $\pm$ over 2 seeds until 30 \%.}" in lines
    assert r"\begin{tabular}{lr}" in lines
    assert markup.escaped("\\{~^}") == r"\textbackslash{}\{\textasciitilde{}\textasciicircum{}\}"
