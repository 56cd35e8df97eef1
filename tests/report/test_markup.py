"""Tables as Markdown, LaTeX, HTML and plain text."""

from __future__ import annotations

import pytest
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


def test_html_escapes_what_is_special() -> None:
    text = markup.html(table())
    assert text.startswith("<table><caption>Accuracy, ± over 2 seeds until 30 %.</caption>")
    assert "<thead><tr><th></th><th>acc %</th></tr></thead>" in text
    assert "<tr><th>CA²FL [a_b] | x &amp; y</th><td>81.0 ± 0.2</td></tr>" in text


def test_text_is_as_wide_as_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    def wide() -> Table:
        found = tables.plain_table(escape("three figures [x]"), "first", "second", "third")
        found.add_row("a row with a name", "1.00", "2.00", "3.00")
        return found

    monkeypatch.setenv("COLUMNS", "200")
    lines = markup.text(wide()).splitlines()
    assert lines[1].split() == ["first", "second", "third"]
    assert lines[-1] == "three figures [x]"
    monkeypatch.setenv("COLUMNS", "30")
    lines = markup.text(wide()).splitlines()
    assert max(map(len, lines)) <= 30
    assert lines[1].split() == ["first"]
    assert " ".join(lines[-2:]) == "three figures [x]; 2 more columns in a wider terminal"


def test_a_document_has_tables_and_notes() -> None:
    notes = ["a < b", "c"]
    ends = {
        form: markup.document([table(), table()], notes, form).splitlines()[-2:]
        for form in ("latex", "markdown", "html", "text")
    }
    assert ends == {
        "latex": ["% a < b", "% c"],
        "markdown": ["- a < b", "- c"],
        "html": ["<p>a &lt; b</p>", "<p>c</p>"],
        "text": ["note    a < b", "note    c"],
    }
