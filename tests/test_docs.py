"""What the documents show is run, and what they say of names is right."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tomllib
import types
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import click
import pytest
from click.testing import CliRunner
from tests.support.pages import PAGES, ROOT, RUN, SHOWN, Block, as_shown, blocks, commands

from offbeat.cli import main

BLOCKS = [block for page in PAGES for block in blocks(page)]
README, *DOCS = PAGES
Runner = Callable[[pathlib.Path, pathlib.Path, pathlib.Path], int]  # of page, folder and log: its exit status
NEEDS = {  # extras
    "deploy.md": ("flwr",),
    "devices.md": ("flwr",),
    "flower.md": ("flwr",),
    "privacy.md": ("dp_accounting",),
    "tracking.md": ("tensorboard", "mlflow", "wandb"),
}


def readme(language: str) -> list[str]:
    return [block.text for block in blocks(README) if block.language == language]


@pytest.fixture(scope="session")
def runner() -> Iterator[Runner]:
    """Runs pages and programs, each in a process of its own, without a network, with warnings as errors."""
    nowhere = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "no_proxy": ""}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.pages"], cwd=ROOT, env=os.environ | nowhere,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        assert server.stdin is not None
        assert server.stdout is not None
        asked, told = server.stdin, server.stdout

        def run(*paths: pathlib.Path) -> int:
            asked.write(json.dumps([str(path) for path in paths]) + "\n")
            asked.flush()
            return int(told.readline())

        yield run


@pytest.mark.parametrize("page", [page for page in DOCS if any(blocks(page))], ids=lambda page: page.stem)
def test_what_a_page_shows_is_run(page: pathlib.Path, tmp_path: pathlib.Path, runner: Runner) -> None:
    for module in NEEDS.get(page.name, ()):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"needs {module}")
    folder, log = tmp_path / "here", tmp_path / "log"
    folder.mkdir()
    assert runner(page, folder, log) == 0, log.read_text(encoding="utf-8")


EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
CONSOLES = [block for block in BLOCKS if "run by" in block.marks]
PRINTS = {command: (block, expected) for block in CONSOLES for command, expected in commands(block)}
ENDS = {  # what the figures must say for the text to be right
    "stragglers": r"FedAvg, waits for 20 .* never .*CA²FL, at every 10th +9\d\.\d% +\d+ \(2/2\)",
    "own_rule": r"FedBuff +[1-7]\d\.\d%.*MedianBuff +9\d\.\d%",
    "unavailable": r"FedAvg +0 +0 .*MIFA +9\d +9\d .*MIFA, 4 bit +9\d +9\d ",
}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_ends_as_it_says(path: pathlib.Path, tmp_path: pathlib.Path, runner: Runner) -> None:
    folder, log = tmp_path / "here", tmp_path / "log"
    folder.mkdir()
    code, output = runner(path, folder, log), log.read_text(encoding="utf-8")
    assert code == 0, output
    block, expected = PRINTS[f"python examples/{path.name}"]
    assert as_shown(block, expected, output), output
    assert re.search(ENDS[path.stem], output, flags=re.S), output
    assert not list(folder.iterdir()), "nothing is left behind"


def test_every_block_is_run_or_says_why_not() -> None:
    for block in BLOCKS:
        assert block.language in {*RUN, *SHOWN}, f"{block.place}: ```{block.language} is neither run nor shown"
        if block.language in SHOWN:
            assert not re.search(r"^\$? ?(offbeat|python|pip|make) ", block.text, flags=re.M), (
                f"{block.place}: a command"
            )
        assert not block.skipped or len(block.marks["not run"]) > 10, f"{block.place}: a reason, please"
        assert (ROOT / block.marks.get("run by", "tests")).exists(), block.place
    skipped = [block for block in BLOCKS if block.skipped]
    assert len(skipped) <= 16, [block.place for block in skipped]
    assert len(skipped) < len([block for block in BLOCKS if block.language in RUN]) / 4


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.skipped], ids=lambda block: block.place)
def test_commands_that_are_not_run_could_be(block: Block) -> None:
    """Their names and options are right, at least."""
    for line in block.text.splitlines():
        words = [word for word in shlex.split(line, comments=True) if not re.match(r"\w+=", word)]
        if not words or words[0] != "offbeat":
            continue
        command: click.Command = main
        context, rest = click.Context(command, info_name="offbeat"), words[1:]
        while isinstance(command, click.Group):
            name, found, rest = command.resolve_command(context, rest)
            assert found is not None
            command, context = found, click.Context(found, info_name=name, parent=context)
        command.parse_args(context, rest)


def test_the_first_program_learns(tmp_path: pathlib.Path, runner: Runner) -> None:
    (program,) = readme("python")
    (tmp_path / "first.py").write_text(program, encoding="utf-8")
    code, output = runner(tmp_path / "first.py", tmp_path, tmp_path / "log"), (tmp_path / "log").read_text()
    assert code == 0, output
    assert float(output.split()[0]) > 0.9


def test_the_commands_of_the_readme_work(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the README's own TOML, made short; `resume` of a run that has finished says so."""
    monkeypatch.chdir(tmp_path)
    (toml,) = readme("toml")
    table: dict[str, Any] = tomllib.loads(toml)
    assert table["rounds"] == 150
    (tmp_path / "my.toml").write_text(toml.replace("rounds = 150", "rounds = 3"))
    text = README.read_text(encoding="utf-8")
    commands = [line.split("#")[0].strip() for line in text.splitlines() if line.startswith("offbeat ")]
    assert len(commands) >= 7
    for command in commands:
        arguments = shlex.split(command)[1:] + (["--arrivals", "100"] if "bench" in command else [])
        result = CliRunner().invoke(main, arguments)
        if arguments[0] == "resume":
            assert "is finished: 3 rounds" in result.output
        else:
            assert result.exit_code == 0, (command, result.output)


def after(diff: str) -> str:
    """The new side of a diff."""
    return "\n".join(line[1:] for line in diff.splitlines() if not line.startswith("-"))


def test_a_flower_app_changes_as_the_page_says(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """The app's main function comes to the strategy's start with what the page has put there."""
    pytest.importorskip("flwr")
    from flwr.app import Context, RecordDict
    from torch import nn

    from offbeat.flower import AsyncStrategy

    server, project, coded = (after(block.text) for block in BLOCKS if block.language == "diff")
    monkeypatch.chdir(tmp_path)
    task = types.ModuleType("my_app.task")
    vars(task)["Net"] = lambda: nn.Linear(3, 2)
    monkeypatch.setitem(sys.modules, "my_app", types.ModuleType("my_app"))
    monkeypatch.setitem(sys.modules, "my_app.task", task)
    started: list[dict[str, Any]] = []

    def start(self: AsyncStrategy, **settings: Any) -> Any:
        started.append(settings)
        return types.SimpleNamespace(arrays=settings["initial_arrays"])

    monkeypatch.setattr(AsyncStrategy, "start", start)
    names: dict[str, Any] = {}
    exec(compile(server, "flower.md", "exec"), names)
    names["main"](None, Context(0, 0, {}, RecordDict(), {"num-server-rounds": 5}))
    assert started[0]["num_rounds"] == 5

    (strategy,) = re.findall(r"^strategy = (.*)$", coded, flags=re.M)
    exec("from offbeat.compression import Compression, TopK\nfrom offbeat.flower import coded_reply", names)
    assert isinstance(eval(strategy, names), AsyncStrategy)
    assert '"offbeat[flower]"' in project


def test_the_proxy_of_the_page_is_that_of_the_bundle() -> None:
    (shown,) = (block.text for block in BLOCKS if block.language == "nginx")
    template = (ROOT / "src/offbeat/deploy/templates/server/nginx.conf").read_text(encoding="utf-8")
    known = {
        line.strip().replace("$listen", "8000")
        for line in re.sub(r"\{\s*(return.*;)\s*\}", r"{ \1 }", template).splitlines()
    }
    assert {line.strip() for line in shown.splitlines()} <= known


def test_links_lead_somewhere() -> None:
    for page in (*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_table_of_algorithms_is_complete_and_right() -> None:
    from offbeat.algorithms import ALGORITHMS
    from offbeat.client.rules import CLIENT_RULES
    from offbeat.compression import CODECS
    from offbeat.scheduling.schedulers import SCHEDULERS

    text = (ROOT / "docs/algorithms.md").read_text(encoding="utf-8")
    rows = {line.split("|")[1].strip(" `"): line for line in text.splitlines() if line.startswith("| `")}
    for name, rule in ALGORITHMS.items():
        columns = [part.strip() for part in rows[name].split("|")]
        assert columns[4] == ", ".join(rule.schedulers), name
    for names in (CLIENT_RULES, CODECS, SCHEDULERS):
        assert set(names) <= set(rows)


def test_the_reference_is_complete() -> None:
    """Every key that `config.parse` takes stands in it, with what it is."""
    from docs import reference

    from offbeat.runs.config import CHOICES

    text = reference.markdown()
    for section in reference.sections().values():
        for name, kind in CHOICES.get(section.kind, {"": section.kind}).items():
            place = f"{{ #{section.anchor}{name and '-'}{name} }}"
            assert place in text, place
            for field in fields(kind):
                assert reference._docs(kind)[field.name], f"{kind.__name__}.{field.name} says nothing of itself"
    assert {section.kind for section in reference.sections().values()} >= set(CHOICES)
    for row in (line for line in text.splitlines() if line.startswith("| `")):
        assert all(cell.strip() for cell in row.split("|")[1:-1]), row
    assert "| `alpha` | number > 0 | `0.3` | Small: few labels a client; large: all alike. |" in text


def test_the_pictures_are_those_that_the_script_makes(tmp_path: pathlib.Path) -> None:
    from docs import pictures

    shown = set(re.findall(r"images/(concepts-\w+\.png)", (ROOT / "docs/concepts.md").read_text(encoding="utf-8")))
    assert shown == {f"concepts-{picture.__name__}.png" for picture in pictures.PICTURES}
    for picture in (pictures.timeline, pictures.partitions, pictures.delays):
        picture().savefig(tmp_path / "picture.png")
        assert (tmp_path / "picture.png").stat().st_size > 10_000
    for name in shown:
        assert (ROOT / "docs/images" / name).stat().st_size < 100_000
