"""`list`, `show`, ranges of seeds and shell completion."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from click.testing import CliRunner

from offbeat.cli import main
from offbeat.cli.common import seeds_of
from offbeat.errors import ConfigError
from offbeat.runs import catalog
from offbeat.runs.config import CHOICES
from offbeat.runs.presets import PRESETS, summary


def offbeat(*arguments: str, status: int = 0) -> str:
    found = CliRunner().invoke(main, arguments)
    assert found.exit_code == status, found.output
    return found.output


def completed(words: str, place: int, shell: str = "zsh") -> str:
    """Return what the completion of a shell prints."""
    more = {"_OFFBEAT_COMPLETE": f"{shell}_complete", "COMP_WORDS": words, "COMP_CWORD": str(place)}
    command = [
        sys.executable,
        "-c",
        "import sys; sys.argv = ['offbeat']; from offbeat.cli import main; main(prog_name='offbeat')",
    ]
    return subprocess.run(command, env=os.environ | more, capture_output=True, text=True, check=True).stdout


def test_every_name_has_a_kind_and_a_description() -> None:
    listed = {base for base, _ in catalog.KINDS.values()}
    assert {base.__name__ for base in CHOICES.keys() - listed} == {"LocalOptimizer"}, "they are client rules as well"
    for kind in catalog.KINDS:
        for name, cls in catalog.names(kind).items():
            assert len(catalog.summary(cls)) > 7, (kind, name)
            assert all(text for _, _, text in catalog.keys(cls)), (kind, name)
    assert all(summary(name).endswith(".") for name in PRESETS)


def test_a_list_of_one_kind() -> None:
    shown = offbeat("list", "algorithms").splitlines()
    assert shown[0] == "algorithms"
    assert [line.split()[0] for line in shown[1:]] == list(catalog.names("algorithms"))
    assert offbeat("list", "algorithm") == offbeat("list", "algorithms")
    assert offbeat("list", "client-rule") == offbeat("list", "client_rules")
    assert offbeat("list", "availability") == offbeat("list", "availabilities")
    assert list(json.loads(offbeat("list", "codecs", "--json"))) == ["codecs"]
    assert "Did you mean 'delays'?" in offbeat("list", "dealys", status=2)


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_a_list_fits_terminals_of_any_width(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("FORCE_COLOR", "1")
    shown = offbeat("list").splitlines()
    names = [name for kind in catalog.KINDS for name in catalog.names(kind)]
    assert all(any(line.strip().startswith(name) for line in shown) for name in names)
    assert max(map(len, shown)) <= max(width, 28)


def test_a_rule_is_shown_with_its_keys_defaults_and_paper() -> None:
    shown = offbeat("show", "FedBuff")
    assert shown.startswith('algorithm = "fedbuff"')
    assert "Nguyen et al., *Federated Learning with Buffered Asynchronous Aggregation*" in shown
    assert 'staleness = "constant"     Staleness function s(τ).' in shown
    assert "eta = 1.0" in shown
    assert "schedulers: buffered, continuous" in shown


def test_a_name_of_several_kinds_is_shown_with_each() -> None:
    shown = offbeat("show", "uniform")
    for place in ("compression.upload", "environment.delay", "environment.local_work"):
        assert f'{place} = "uniform"' in shown
    assert "mean (optional)" in shown
    assert "file (required)" in offbeat("show", "fedscale")


def test_an_unknown_name_suggests_another() -> None:
    assert "Did you mean 'fedbuff'?" in offbeat("show", "fedbuf", status=2)
    assert "Did you mean" not in offbeat("show", "qqqqqq", status=2)


def test_seeds_are_numbers_and_ranges() -> None:
    assert seeds_of("0-9") == list(range(10))
    assert seeds_of("3, 5-6 ,10") == [3, 5, 6, 10]
    assert seeds_of("") == []
    for wrong in ("3-1", "-2", "1-", "a", "1-2-3"):
        with pytest.raises(ConfigError, match=f"--seeds: '{wrong}': expected integers or ranges"):
            seeds_of(wrong)


def test_shells_complete_presets(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pathlib.Path("my.toml").touch()
    assert "preset:digits-demo\n" in completed("offbeat run preset:dig", 2)
    assert "preset:million" not in completed("offbeat run preset:dig", 2)
    assert "preset:digits-demo\n" in completed("offbeat sweep p", 2)
    assert {"my.toml", "preset:million"} <= set(completed("offbeat run ", 2).split())
    assert completed("offbeat run my.", 2).startswith("file")
    assert "digits-compare\n" in completed("offbeat show digits-c", 2)


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_presets_as_documented(tmp_path: pathlib.Path) -> None:
    """A colon would divide the word; the guide says how to prevent it."""
    program = tmp_path / "offbeat"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m offbeat "$@"\n')
    program.chmod(0o755)
    script = """
    COMP_WORDBREAKS=${COMP_WORDBREAKS//:}
    eval "$(_OFFBEAT_COMPLETE=bash_source offbeat)"
    COMP_WORDS=(offbeat run preset:digits-d) COMP_CWORD=2
    _offbeat_completion offbeat
    echo "${COMPREPLY[@]}"
    """
    path = f"{tmp_path}:{os.environ['PATH']}"
    found = subprocess.run(["bash", "-c", script], env=os.environ | {"PATH": path}, capture_output=True, text=True)
    assert found.stdout == "preset:digits-demo\n", found.stderr
