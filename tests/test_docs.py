"""Run the code blocks of the documentation and check the names that it mentions."""

from __future__ import annotations

import ast
import importlib.util
import pathlib
import re
import shlex
import sys
import tomllib
import types
from dataclasses import fields
from typing import Any

import click
import pytest
from click.testing import CliRunner
from tests.support.pages import PAGES, ROOT, RUN, SHOWN, Block, Runner, blocks

from offbeat.cli import main

BLOCKS = [block for page in PAGES for block in blocks(page)]
README, *DOCS = PAGES
NEEDS = {  # modules of optional dependencies
    "deploy.md": ("flwr",),
    "devices.md": ("flwr",),
    "flower.md": ("flwr",),
    "privacy.md": ("dp_accounting",),
    "tasks.md": ("datasets",),
    "transformers.md": ("transformers",),
    "tracking.md": ("tensorboard", "mlflow", "wandb"),
}


def readme(language: str) -> list[str]:
    return [block.text for block in blocks(README) if block.language == language]


@pytest.mark.parametrize("page", [page for page in DOCS if any(blocks(page))], ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run(page: pathlib.Path, tmp_path: pathlib.Path, runner: Runner) -> None:
    for module in NEEDS.get(page.name, ()):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"needs {module}")
    folder, log = tmp_path / "here", tmp_path / "log"
    folder.mkdir()
    assert runner(page, folder, log) == 0, log.read_text(encoding="utf-8")


def test_every_block_runs_or_states_why_not() -> None:
    for block in BLOCKS:
        assert block.language in {*RUN, *SHOWN}, f"{block.place}: ```{block.language} is neither run nor shown"
        if block.language in SHOWN:
            assert not re.search(r"^\$? ?(offbeat|python|pip|make) ", block.text, flags=re.M), (
                f"{block.place}: a command"
            )
        assert not block.skipped or len(block.marks["not run"]) > 10, f"{block.place}: a reason, please"
        assert (ROOT / block.marks.get("run by", "tests")).exists(), block.place
    skipped = [block for block in BLOCKS if block.skipped]
    assert len(skipped) <= 18, [block.place for block in skipped]
    assert len(skipped) < len([block for block in BLOCKS if block.language in RUN]) / 4


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.skipped], ids=lambda block: block.place)
def test_commands_that_are_not_run_parse(block: Block) -> None:
    """Commands that are not run at least parse."""
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
    """Run the commands on a shortened version of the README's TOML."""
    monkeypatch.chdir(tmp_path)
    (toml,) = readme("toml")
    table: dict[str, Any] = tomllib.loads(toml)
    assert table["rounds"] == 150
    (tmp_path / "my.toml").write_text(toml.replace("rounds = 150", "rounds = 3"))
    lines = "\n".join(readme("bash")).splitlines()
    commands = [line.split("#")[0].strip() for line in lines if line.startswith("offbeat ")]
    assert len(commands) >= 7
    for command in commands:
        arguments = shlex.split(command)[1:] + (["--arrivals", "100"] if "bench" in command else [])
        result = CliRunner().invoke(main, arguments)
        if arguments[0] == "resume":
            assert "is finished: 3 rounds" in result.output
        else:
            assert result.exit_code == 0, (command, result.output)


def after(diff: str) -> str:
    """Return the new side of a diff."""
    return "\n".join(line[1:] for line in diff.splitlines() if not line.startswith("-"))


def test_a_flower_app_changes_as_the_page_says(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """Run the changed app up to the call of the strategy's `start`."""
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


def test_the_proxy_on_the_page_matches_the_bundle() -> None:
    (shown,) = (block.text for block in BLOCKS if block.language == "nginx")
    template = (ROOT / "src/offbeat/deploy/templates/server/nginx.conf").read_text(encoding="utf-8")
    known = {
        line.strip().replace("$listen", "8000")
        for line in re.sub(r"\{\s*(return.*;)\s*\}", r"{ \1 }", template).splitlines()
    }
    assert {line.strip() for line in shown.splitlines()} <= known


def test_links_have_targets() -> None:
    for page in (*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_table_of_algorithms_is_complete_and_correct() -> None:
    from offbeat.algorithms import ALGORITHMS
    from offbeat.client.rules import CLIENT_RULES
    from offbeat.compression import CODECS
    from offbeat.scheduling import SCHEDULERS

    text = (ROOT / "docs/algorithms.md").read_text(encoding="utf-8")
    rows = {line.split("|")[1].strip(" `"): line for line in text.splitlines() if line.startswith("| `")}
    for name, rule in ALGORITHMS.items():
        columns = [part.strip() for part in rows[name].split("|")]
        assert columns[4] == ", ".join(rule.schedulers), name
    for names in (CLIENT_RULES, CODECS, SCHEDULERS):
        assert set(names) <= set(rows)


def test_the_reference_is_complete() -> None:
    """The reference documents every key that `config.parse` accepts."""
    from docs import reference

    from offbeat.runs.config import CHOICES

    text = reference.markdown()
    for section in reference.sections().values():
        for name, kind in CHOICES.get(section.kind, {"": section.kind}).items():
            place = f"{{ #{section.anchor}{name and '-'}{name} }}"
            assert place in text, place
            for field in fields(kind):
                assert reference._docs(kind)[field.name], f"{kind.__name__}.{field.name} is not documented"
    assert {section.kind for section in reference.sections().values()} >= set(CHOICES)
    for row in (line for line in text.splitlines() if line.startswith("| `")):
        assert all(cell.strip() for cell in row.split("|")[1:-1]), row
    row = "| `alpha` | number > 0 | `0.3` | Concentration: small values give each client few labels, large values make "
    assert row in text


def test_the_figures_are_those_of_the_script(tmp_path: pathlib.Path) -> None:
    from docs import pictures

    shown = set(re.findall(r"images/(concepts-\w+\.png)", (ROOT / "docs/concepts.md").read_text(encoding="utf-8")))
    assert shown == {f"concepts-{picture.__name__}.png" for picture in pictures.PICTURES}
    for picture in (pictures.timeline, pictures.partitions, pictures.delays):
        picture().savefig(tmp_path / "picture.png")
        assert (tmp_path / "picture.png").stat().st_size > 10_000
    for name in shown:
        assert (ROOT / "docs/images" / name).stat().st_size < 100_000


def _defined_names() -> tuple[set[str], set[str]]:
    """Return the names of all classes and functions of the package, and all `Class.method`, inherited ones included."""
    names: set[str] = set()
    methods: dict[str, set[str]] = {}
    bases: dict[str, list[str]] = {}
    for file in (ROOT / "src/offbeat").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                names.add(node.name)
            if isinstance(node, ast.ClassDef):
                methods[node.name] = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
                bases[node.name] = [ast.unparse(base) for base in node.bases]

    def inherited(name: str) -> set[str]:
        own = methods.get(name, set())
        return own.union(*(inherited(base) for base in bases.get(name, ())))

    return names, {f"{name}.{method}" for name in methods for method in inherited(name)}


def test_the_architecture_page_names_what_exists() -> None:
    """Every hop names code that exists, in the file that the page states, and no table visits a class twice."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    names, methods = _defined_names()
    tables = re.findall(r"(?:^\| \d+ \|.*\n)+", text, flags=re.M)
    assert len(tables) == 4
    for table in tables:
        hops = re.findall(r"^\| \d+ \| `([\w.]+)`, `([\w/.]+)`", table, flags=re.M)
        assert len(hops) == len(table.splitlines())
        for hop, file in hops:
            assert hop in (methods if "." in hop else names), hop
            source = (ROOT / "src/offbeat" / file).read_text(encoding="utf-8")
            assert re.search(rf"^(?:class|def) {hop.split('.')[0]}\b", source, flags=re.M), f"{hop} is not in {file}"
        classes = [hop.split(".")[0] for hop, _ in hops]
        assert len(set(classes)) == len(classes), classes


def test_every_invariant_names_a_test_that_exists() -> None:
    text = (ROOT / "docs/design.md").read_text(encoding="utf-8")
    section = text.split("## Invariants")[1].split("\n## ")[0]
    assert len(re.findall(r"^\d+\. \*\*", section, flags=re.M)) >= 10
    for file, test in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", section):
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{test}"


def test_the_packages_of_the_design_page_are_those_of_the_tree() -> None:
    text = (ROOT / "docs/design.md").read_text(encoding="utf-8")
    section = text.split("## Packages")[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    listed = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    packages = {path.parent.name for path in (ROOT / "src/offbeat").glob("*/__init__.py")}
    assert packages <= set(listed)
    assert all((ROOT / "src/offbeat" / name).is_dir() or (ROOT / f"src/offbeat/{name}.py").is_file() for name in listed)
