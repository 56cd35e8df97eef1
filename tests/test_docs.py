"""What the documents show is run."""

from __future__ import annotations

import pathlib
import re
import shlex
import subprocess
import sys
import tomllib
from typing import Any

import pytest
from click.testing import CliRunner

from offbeat.cli import main

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: pathlib.Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.M | re.S)


PYTHON = [(page.name, block) for page in PAGES for block in blocks(page, "python")]


@pytest.mark.parametrize(("page", "block"), PYTHON, ids=[f"{page}-{n}" for n, (page, _) in enumerate(PYTHON)])
def test_python_blocks_run(page: str, block: str, tmp_path: pathlib.Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", block],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_first_program_learns(tmp_path: pathlib.Path) -> None:
    block = blocks(ROOT / "README.md", "python")[0]
    done = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert float(done.stdout.split()[0]) > 0.9


def test_the_commands_of_the_readme_work(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the README's own TOML, made short; `resume` of a run that has finished says so."""
    monkeypatch.chdir(tmp_path)
    (toml,) = blocks(ROOT / "README.md", "toml")
    table: dict[str, Any] = tomllib.loads(toml)
    assert table["rounds"] == 150
    (tmp_path / "my.toml").write_text(toml.replace("rounds = 150", "rounds = 3"))
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = [line.split("#")[0].strip() for line in text.splitlines() if line.startswith("offbeat ")]
    assert len(commands) >= 7
    for command in commands:
        arguments = shlex.split(command)[1:] + (["--arrivals", "100"] if "bench" in command else [])
        result = CliRunner().invoke(main, arguments)
        if arguments[0] == "resume":
            assert "is finished: 3 rounds" in result.output
        else:
            assert result.exit_code == 0, (command, result.output)


def test_links_lead_somewhere() -> None:
    for page in (*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_table_of_algorithms_is_complete_and_right() -> None:
    from offbeat.algorithms import ALGORITHMS
    from offbeat.clients import CLIENTS
    from offbeat.compression import CODECS
    from offbeat.engine import DISPATCHES

    text = (ROOT / "docs/algorithms.md").read_text(encoding="utf-8")
    rows = {line.split("|")[1].strip(" `"): line for line in text.splitlines() if line.startswith("| `")}
    for name, rule in ALGORITHMS.items():
        columns = [part.strip() for part in rows[name].split("|")]
        assert columns[4] == ", ".join(rule.dispatches), name
    for names in (CLIENTS, CODECS, DISPATCHES):
        assert set(names) <= set(rows)
