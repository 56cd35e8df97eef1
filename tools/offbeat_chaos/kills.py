"""A run that is killed again and again and resumed until it finishes."""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from offbeat.errors import OffbeatError
from offbeat.runs.folder import CHECKPOINT, CONFIG, is_finished, read_config, read_status, read_summary
from offbeat_chaos import children
from offbeat_chaos.faults import Fault, draw_faults
from offbeat_chaos.invariants import (
    EXACT,
    LEDGER,
    ONCE,
    REPORTED,
    InvariantLog,
    check_checkpoint,
    check_ledger,
    count_rows,
    equal_files,
)

CHECKPOINTS = 30  # per run
INTERRUPTED, FAILED = 130, 2  # exit statuses


@dataclass(frozen=True)
class Command:
    """An experiment as it is given on the command line."""

    file: str
    options: Sequence[str] = ()
    """Further options, such as --set."""

    def words(self, seed: int, out: pathlib.Path, *more: str) -> list[str]:
        """Return the arguments of `offbeat` that run the experiment."""
        return ["run", self.file, *self.options, "--seed", str(seed), "--out", str(out), "--quiet", *more]


class KillTest:
    """A run without faults and the same run with faults, which must agree.

    Args:
        command: The experiment.
        seed: Seed of the experiment.
        place: Scratch folder.
        log: Where the checks are recorded.
        name: Name of the run in reports.
    """

    def __init__(self, command: Command, seed: int, place: pathlib.Path, log: InvariantLog, name: str) -> None:
        self.command, self.seed, self.place, self.log, self.name = command, seed, place, log, name
        self.whole, self.killed = place / "whole", place / "killed"
        self.kills: list[dict[str, Any]] = []
        self.every, self.totals = 1, dict[str, float]()

    def prepare(self) -> None:
        """Run without faults: once to count the turns, once more to count the file operations of checkpoints."""
        turns = self.run_whole().note("counts")["turn"]
        self.every = turns // CHECKPOINTS | 1  # an odd number rarely coincides with the steps of a buffer
        result = self.run_whole()
        self.totals = {"clock": result.seconds, **result.note("counts")}
        check_ledger(self.log, result.note("finished"), f"{self.name}, without faults")
        rows = count_rows(self.whole)
        self.log.check(ONCE, not rows["again"], f"{self.name}, without faults", **rows)

    def run_whole(self) -> children.ProcessResult:
        """Run the experiment without faults.

        Raises:
            OffbeatError: It fails on its own.
        """
        shutil.rmtree(self.whole, ignore_errors=True)
        self.place.mkdir(parents=True, exist_ok=True)
        words = self.command.words(self.seed, self.whole)
        result = children.run_command(words, self.whole, None, self.every, self.place)
        if result.status:
            raise OffbeatError(
                f"`offbeat {' '.join(words)}` fails without a fault, with exit status {result.status}:\n{result.output}"
            )
        return result

    def run_killed(
        self, campaign_seed: int, number: int, max_kills: int, on_kill: Callable[[dict[str, Any]], None]
    ) -> None:
        """Kill and resume the run until it finishes, then compare it with the run without faults.

        Args:
            campaign_seed: Seed of the faults.
            number: Number of this run in the campaign.
            max_kills: After this many kills the run may finish.
            on_kill: Called after each kill.
        """
        config = read_config(self.whole)
        faults = draw_faults(campaign_seed, number, self.totals)
        while not is_finished(self.killed):
            fault = next(faults) if len(self.kills) < max_kills else None
            result = self._continue(fault, config["executor"])
            place = result.fault_place
            if fault is not None and place is not None and "kind" in place:  # the kind changes at the very end of a run
                fault = dataclasses.replace(fault, kind=place["kind"])
            if not self._check_result(result, fault):
                return
            if fault is not None and result.status:
                self.kills.append({**(place or {}), "kind": fault.name, "at": fault.at, "status": result.status})
                on_kill(self.kills[-1])
        self._compare()

    def _continue(self, fault: Fault | None, executor: str) -> children.ProcessResult:
        """Start or resume the run as a user would; a run killed before it had a config starts over."""
        if (self.killed / CONFIG).is_file():
            words = ["resume", str(self.killed), "--quiet"]
            return children.run_command(words, self.killed, fault, self.every, self.place)
        shutil.rmtree(self.killed, ignore_errors=True)
        words = self.command.words(self.seed, self.killed, "--executor", executor)
        return children.run_command(words, self.killed, fault, self.every, self.place)

    def _where(self, fault: Fault | None) -> str:
        after = f"after kill {len(self.kills) + 1} ({fault.name})" if fault is not None else "at the end"
        return f"{self.name}, {after}"

    def _check_result(self, result: children.ProcessResult, fault: Fault | None) -> bool:
        """Check how a process ended and return whether that is as it should be."""
        where, log = self._where(fault), self.log
        for job in (note["twice"] for note in result.notes if "twice" in note):
            log.check(ONCE, False, where, twice=job)
        if (ledger := result.note("finished")) is not None:
            check_ledger(log, ledger, where)
        check_checkpoint(log, self.killed, where)
        output, place = result.output.strip(), result.fault_place
        expected = {0} if fault is None or place is None else _expected_statuses(fault)
        clear = "Traceback" not in output and (result.status != FAILED or output.startswith("offbeat: "))
        return log.check(
            REPORTED, result.status in expected and clear and not result.left_behind, where,
            status=result.status, output=output[-2000:], fault=fault and fault.name, place=place,
            left_behind=result.left_behind,
        )  # fmt: skip

    def _compare(self) -> None:
        where = f"{self.name}, after {len(self.kills)} kills"
        for file, same in equal_files(self.whole, self.killed):
            self.log.check(EXACT, same, where, differs=file)
        rows = count_rows(self.killed)
        summary = read_summary(self.killed)
        self.log.check(ONCE, not rows["again"] and summary["updates"] == rows["aggregated"], where, **rows)
        self.log.check(LEDGER, summary["lost"] == rows["lost"], where, **rows)
        self._continue(None, "")  # a run that was killed after its summary has not cleaned up yet
        status = read_status(self.killed)["state"]
        leftovers = [p.name for p in (*self.killed.glob(f"{CHECKPOINT}/*"), *self.killed.glob("cache/*"))]
        self.log.check(REPORTED, status == "finished" and not leftovers, where, status=status, leftovers=leftovers)


def _expected_statuses(fault: Fault) -> set[int]:
    """Return the exit statuses that a process may have after a fault struck it."""
    if fault.kind in ("full disk", "read-only"):
        return {FAILED}
    handled = fault.kind in ("turn", "twice") and fault.signal != signal.SIGKILL
    return {INTERRUPTED, 0} if handled else {-signal.SIGKILL}
