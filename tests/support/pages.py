"""Run the blocks of a documentation page, in one folder and one namespace.

Command line: `python -m tests.support.pages PAGE.md FOLDER`.

Without arguments it takes pages, or programs with arguments, and folders from its input, and runs each in a child that
need not import torch again (`runner`).

python    is run; with title="FILE" it is written there and imported
pycon     is run as a doctest
toml      is read as an experiment, or as a sweep; with title="FILE" it is written there, too
bash      every command has to succeed; with title="FILE" it is only written there
console   what follows `$ ` is run and has to print what is below it; `…` stands for anything
text      is shown only, and so are the other languages of SHOWN

`<!-- not run: REASON -->` before a block says why it is not, `<!-- run by: TEST -->` which test does it instead,
`<!-- figures may differ -->` that any number will do, `<!-- without: MODULE -->` that a module is missing.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import json
import os
import pathlib
import re
import runpy
import shlex
import signal
import subprocess
import sys
import tomllib
import traceback
import types
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SECONDS = 600  # for a page, at most: ends what would hang, however busy the machine is
SHOWN = ("text", "diff", "nginx")
IMPORTED = (  # once for all pages: these take up to a second, and several pages need them
    "offbeat.cli", "offbeat.runs.sweep", "matplotlib.pyplot", "pydantic", "rich.progress", "rich.table",
    "torch._dynamo",
)  # fmt: skip
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
SHELL = re.compile(r"[|;<>&$]|^(?:if|for) ", flags=re.M)


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    title: str
    text: str
    marks: dict[str, str]

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def skipped(self) -> bool:
        return "not run" in self.marks


def blocks(page: pathlib.Path) -> Iterator[Block]:
    """Return the fenced blocks of a page, with the marks in the comments directly before them."""
    lines = page.read_text(encoding="utf-8").split("\n")
    marks: dict[str, str] = {}
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if mark := re.fullmatch(r"<!-- (not run|run by|figures may differ|without)(?:: (.*))? -->", line):
            marks[mark[1]] = mark[2] or ""
        elif fence := re.match(r"\s*```(\w*)(.*)", line):
            end = next(n for n in range(number, len(lines)) if lines[n].strip() == "```")
            title = re.search(r'title="(.*?)"', fence[2])
            text = "\n".join(lines[number:end]) + "\n"
            yield Block(page.name, number, fence[1], title[1] if title else "", text, marks)
            number, marks = end + 1, {}
        elif line.strip():
            marks = {}


def run(page: pathlib.Path) -> int:
    """Run a page in the current folder and return 0; the first failing block raises an error."""
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main  # where dataclasses look for what an annotation names
    sys.path.insert(0, str(pathlib.Path.cwd()))
    for block in blocks(page):
        if block.language in RUN and not block.skipped and "run by" not in block.marks:
            with _without(block.marks.get("without")):
                RUN[block.language](block, vars(main))
    return 0


def _python(block: Block, names: dict[str, object]) -> None:
    if block.title:
        pathlib.Path(block.title).write_text(block.text, encoding="utf-8")
        importlib.import_module(pathlib.Path(block.title).stem)
    else:
        exec(compile("\n" * block.line + block.text, block.place, "exec"), names)


def _pycon(block: Block, names: dict[str, object]) -> None:
    test = doctest.DocTestParser().get_doctest(block.text.replace("…", "..."), names, block.place, block.page, 0)
    assert not doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, clear_globs=False).failed, block.place
    names.update(test.globs)


def _toml(block: Block, names: dict[str, object]) -> None:
    from offbeat.cli.common import SEVERAL
    from offbeat.runs import config
    from offbeat.runs.sweep import Sweep
    from offbeat.tuning.table import parse

    table = tomllib.loads(block.text)
    if block.title:
        pathlib.Path(block.title).write_text(block.text, encoding="utf-8")
    if block.title == "pyproject.toml":
        return
    if "tune" in table:
        parse(table)
    elif SEVERAL & table.keys():
        Sweep.plan(table, (), ())
    else:
        config.parse(table)


def _bash(block: Block, names: dict[str, object]) -> None:
    if block.title:
        pathlib.Path(block.title).write_text(block.text, encoding="utf-8")
        return
    if SHELL.search(re.sub(r"#.*", "", block.text)):
        code, output = _shell(block.text)
        assert code == 0, f"{block.place}:\n{output}"
        return
    for command in re.sub(r"\\\n\s*", "", block.text).splitlines():
        if words := shlex.split(command, comments=True):
            code, output = _command(words)
            assert code == 0, f"{block.place}: {command}\n{output}"


def _console(block: Block, names: dict[str, object]) -> None:
    for command, expected in commands(block):
        _, output = _shell(command) if SHELL.search(command) else _command(shlex.split(command))
        assert as_shown(block, expected, output), f"{block.place}: {command} printed\n{output}"


def commands(block: Block) -> Iterator[tuple[str, str]]:
    """Return the commands of a console block and their output."""
    for part in re.split(r"^\$ ", block.text, flags=re.M)[1:]:
        command, _, expected = re.sub(r"\\\n\s*", "", part).partition("\n")
        yield command, expected


def as_shown(block: Block, expected: str, output: str) -> bool:
    """Return whether a command printed what the block shows."""
    pattern = re.escape(_squeezed(expected)).replace("…", ".*")
    if "figures may differ" in block.marks:
        pattern = NUMBER.sub(lambda _: NUMBER.pattern, pattern.replace(r"\.", "."))
    return re.fullmatch(pattern, _squeezed(output), flags=re.S) is not None


def _squeezed(text: str) -> str:
    """Remove what depends on the terminal's width, and progress lines, which appear on a slow machine."""
    return re.sub(r"[\s─]+", " ", re.sub(r"^.*: round \d.* virtual .*$", "", text, flags=re.M)).strip()


def _command(words: list[str]) -> tuple[int, str]:
    """Run an offbeat command in this process, which has imported torch already; run others as they are."""
    from click.testing import CliRunner

    from offbeat.cli import main

    if words[0] == "pip":
        return _pip(words)
    if words[0] != "offbeat":
        return _shell(shlex.join(words))
    result = CliRunner().invoke(main, words[1:], prog_name="offbeat")
    output = result.output
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        output += "".join(traceback.format_exception(result.exception))
        with warnings.catch_warnings(action="ignore", category=ResourceWarning):  # the process would have ended here
            traceback.clear_frames(result.exception.__traceback__)
    return result.exit_code, output


def _pip(words: list[str]) -> tuple[int, str]:
    """Check that an installed extra is one of offbeat's; install nothing."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    wanted = re.fullmatch(r"(?:offbeat|\.)(?:\[(\w+)\])?", words[-1])
    known = wanted is not None and (wanted[1] is None or wanted[1] in extras)
    return (0 if known else 1), f"extras are {', '.join(extras)}"


def _shell(command: str) -> tuple[int, str]:
    path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        env=os.environ | {"PATH": path}, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@contextlib.contextmanager
def _without(module: str | None) -> Iterator[None]:
    if module is None:
        yield
        return
    before = sys.modules.get(module)
    sys.modules[module] = None  # type: ignore[assignment]  # so an import is refused
    try:
        yield
    finally:
        del sys.modules[module]
        if before is not None:
            sys.modules[module] = before


RUN = {"python": _python, "pycon": _pycon, "toml": _toml, "bash": _bash, "console": _console}


class Runner(Protocol):
    """Runs a page or a program in a folder, with its output in a log, and returns its exit status."""

    def __call__(self, page: pathlib.Path, folder: pathlib.Path, log: pathlib.Path, *arguments: str) -> int: ...


@contextlib.contextmanager
def runner() -> Iterator[Runner]:
    """Run pages and programs, each in its own process, without a network and with warnings as errors."""
    no_network = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "no_proxy": ""}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.pages"], cwd=ROOT, env=os.environ | no_network,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        assert server.stdin is not None
        assert server.stdout is not None
        requests, replies = server.stdin, server.stdout

        def run(page: pathlib.Path, folder: pathlib.Path, log: pathlib.Path, *arguments: str) -> int:
            requests.write(json.dumps([str(page), str(folder), str(log), *arguments]) + "\n")
            requests.flush()
            return int(replies.readline())

        yield run


def _program(path: str) -> int:
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def serve() -> None:
    """Run every line [page or program, folder, log, *arguments] of the input in a child and print its exit status."""
    for module in IMPORTED:
        importlib.import_module(module)
    for line in sys.stdin:
        page, folder, log, *arguments = json.loads(line)
        child = os.fork()
        if child == 0:
            output = os.open(log, os.O_WRONLY | os.O_CREAT)
            os.dup2(output, 1)
            os.dup2(output, 2)
            code = 1
            try:
                signal.alarm(SECONDS)
                os.chdir(folder)
                sys.argv = [page, *arguments]
                code = _program(page) if page.endswith(".py") else run(pathlib.Path(page))
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message="'click", category=DeprecationWarning)  # by typer, which Flower imports
    if len(sys.argv) > 1:
        shown = pathlib.Path(sys.argv[1]).resolve()
        os.chdir(sys.argv[2])
        run(shown)
    else:
        serve()
