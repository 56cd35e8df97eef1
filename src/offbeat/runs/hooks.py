"""Hooks into the runs of this process, for tools that observe runs or inject faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from offbeat.runs.run import Run


class RunHooks:
    """Methods that every run of this process calls. The defaults do nothing."""

    def on_begin(self, run: Run) -> None:
        """Called before a run starts or resumes."""

    def before_turn(self, run: Run) -> None:
        """Called before each turn of the loop."""

    def checkpoint_due(self, run: Run, due: bool) -> bool:
        """Return whether to write a checkpoint now; `due` is the run's own decision."""
        return due

    def before_finish(self, run: Run) -> None:
        """Called before a finished run writes its model and summary."""

    def on_finish(self, run: Run) -> None:
        """Called after a finished run has written everything."""


_INSTALLED = [RunHooks()]


def install_hooks(hooks: RunHooks) -> None:
    """Use these hooks for all runs of this process from now on."""
    _INSTALLED[0] = hooks


def installed_hooks() -> RunHooks:
    """Return the hooks in use."""
    return _INSTALLED[0]
