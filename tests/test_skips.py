"""Skipped tests are reported loudly, and an unexpected skip fails the run on CI."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest
from tests.support import ROOT
from tests.support.skips import unexpected

SKIPPING = """
import pytest

def test_runs():
    pass

def test_skipped():
    pytest.skip("{reason}")
"""


def run_pytest(folder: pathlib.Path, reason: str, ci: bool) -> tuple[int, str]:
    """Run a file with a skipped test under this project's conftest and return the exit status and the output."""
    (folder / "test_example.py").write_text(SKIPPING.format(reason=reason))
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "OFFBEAT_MISSING_PROGRAMS")}
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(folder)]
    command += ["-p", "tests.conftest", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment | ({"CI": "true"} if ci else {}), capture_output=True, text=True,
        timeout=600, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


def test_a_skip_is_reported_with_its_reason(tmp_path: pathlib.Path) -> None:
    status, output = run_pytest(tmp_path, "needs a rare program", ci=False)
    assert status == 0
    assert "SKIPPED: 1 × needs a rare program" in output


def test_an_unexpected_skip_fails_the_run_on_ci(tmp_path: pathlib.Path) -> None:
    status, output = run_pytest(tmp_path, "needs a rare program", ci=True)
    assert status == 1
    assert "unexpected skip on CI: needs a rare program" in output


def test_an_expected_skip_does_not_fail_the_run_on_ci(tmp_path: pathlib.Path) -> None:
    status, output = run_pytest(tmp_path, "needs MNIST in ../shared/data", ci=True)
    assert status == 0
    assert "SKIPPED: 1 × needs MNIST in ../shared/data" in output


def test_programs_that_ci_could_not_install_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OFFBEAT_MISSING_PROGRAMS", raising=False)
    assert unexpected(["needs nginx", "needs chromium"]) == ["needs chromium", "needs nginx"]
    monkeypatch.setenv("OFFBEAT_MISSING_PROGRAMS", "nginx-light")
    assert unexpected(["needs nginx", "needs chromium"]) == ["needs chromium"]
