"""Order of the tests, the `slow` marker, Triton's interpreter, and a loud summary of skipped tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads this when it is imported

pytest.register_assert_rewrite("tests.support")

from tests.support import pages  # noqa: E402
from tests.support.skips import counted, unexpected  # noqa: E402

LONGEST = (  # by processor time, from 170 to 8 s: they start first, or one worker is still busy when the rest is done
    "test_deployments.py", "test_docs.py", "test_ray.py", "test_examples.py", "test_kernels.py", "test_ray_nodes.py",
    "test_executors.py", "test_training_contract.py", "test_cli.py", "test_browser.py", "test_browser_comparison.py",
    "test_campaign.py", "test_newcomer.py", "test_resume.py", "test_server.py", "test_theory.py",
    "test_reproductions_short.py", "test_site.py", "test_resume_everything.py", "test_every_model.py",
    "test_personalization.py", "test_trackers.py", "test_commands.py", "test_strategy.py",
)  # fmt: skip
SLOW = (
    "tests/algorithms/test_theory.py",
    "tests/algorithms/test_theory_rates.py",
    "tests/chaos/test_campaign.py",
    "tests/cli/test_tuning.py",
    "tests/client/test_personalization.py",
    "tests/deploy/",
    "tests/executors/test_imports.py",
    "tests/executors/test_kernels.py",
    "tests/executors/test_processes.py",
    "tests/executors/test_processes_end.py",
    "tests/executors/test_ray.py",
    "tests/executors/test_ray_nodes.py",
    "tests/executors/test_stacked_form.py",
    "tests/executors/test_training_contract.py",
    "tests/interactive/test_tune.py",
    "tests/models/test_every_model.py",
    "tests/report/live/test_browser.py",
    "tests/report/live/test_browser_comparison.py",
    "tests/report/test_commands.py",
    "tests/report/test_other_metrics.py",
    "tests/report/test_plots.py",
    "tests/runs/callbacks/test_command_line.py",
    "tests/runs/callbacks/test_trackers.py",
    "tests/runs/test_disks.py",
    "tests/runs/test_exits.py",
    "tests/runs/test_pool.py",
    "tests/runs/test_resume.py",
    "tests/runs/test_resume_everything.py",
    "tests/runs/test_run_attacks.py",
    "tests/runs/test_scale.py",
    "tests/server/test_extensions.py",
    "tests/test_bench_shapes.py",
    "tests/test_docs.py",
    "tests/test_examples.py",
    "tests/test_newcomer.py",
    "tests/test_notebooks.py",
    "tests/test_peers.py",
    "tests/test_reproductions_short.py",
    "tests/test_site.py",
    "tests/test_skips.py",
    "tests/tuning/",
)
"""Modules and folders that `make check` leaves out. Single tests carry `@pytest.mark.slow` themselves."""


@pytest.fixture(scope="session")
def runner() -> Iterator[pages.Runner]:
    """Provide a process that has imported torch and runs pages and programs in its children."""
    with pages.runner() as run:
        yield run


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark slow modules and start the longest ones first."""
    for item in items:
        path = item.path.relative_to(config.rootpath).as_posix()
        if path.startswith(SLOW):
            item.add_marker("slow")
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


def _reasons(terminal: pytest.TerminalReporter) -> list[str]:
    reports = terminal.stats.get("skipped", [])
    return [report.longrepr[2] for report in reports if isinstance(report.longrepr, tuple)]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report what was skipped and why."""
    reasons = counted(_reasons(terminalreporter))
    if not reasons:
        return
    terminalreporter.section(f"SKIPPED: {reasons.total()}", yellow=True, bold=True)
    for reason, count in sorted(reasons.items()):
        terminalreporter.line(f"SKIPPED: {count} × {reason}", yellow=True)
    if os.environ.get("CI"):
        for reason in unexpected(reasons):
            terminalreporter.line(f"ERROR: unexpected skip on CI: {reason}", red=True, bold=True)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run on CI when a test was skipped for a reason that is not expected there."""
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if not os.environ.get("CI") or terminal is None or session.exitstatus != pytest.ExitCode.OK:
        return
    if unexpected(counted(_reasons(terminal))):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
