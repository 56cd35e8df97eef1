"""One run, killed again and again, and resumed until it is finished."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shutil
import signal
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from offbeat.errors import OffbeatError
from offbeat_chaos import children
from offbeat_chaos.faults import Fault, drawn
from offbeat_chaos.invariants import (
    EXACT,
    LEDGER,
    ONCE,
    SAID,
    InvariantLog,
    check_checkpoint,
    check_ledger,
    equal,
    rows,
)

CHECKPOINTS = 30  # of a run
INTERRUPTED, REFUSED = 130, 2


@dataclass(frozen=True)
class Command:
    """An experiment as it is given on the command line."""

    file: str
    options: Sequence[str] = ()  # --set and others

    def words(self, seed: int, out: pathlib.Path, *more: str) -> list[str]:
        return ["run", self.file, *self.options, "--seed", str(seed), "--out", str(out), "--quiet", *more]


class KillTest:
    """A run without faults, and the same run with them."""

    def __init__(self, command: Command, seed: int, place: pathlib.Path, book: InvariantLog, name: str) -> None:
        self.command, self.seed, self.place, self.book, self.name = command, seed, place, book, name
        self.whole, self.killed = place / "whole", place / "killed"
        self.kills: list[dict[str, Any]] = []
        self.every, self.amounts = 1, dict[str, float]()

    def prepare(self) -> None:
        """The run without faults: once to count its turns, once more to count its checkpoints' operations on files."""
        self.every = self.fault_free().told("counts")["turn"] // CHECKPOINTS | 1  # seldom in step with a buffer
        end = self.fault_free()
        self.amounts = {"clock": end.seconds, **end.told("counts")}
        check_ledger(self.book, end.told("finished"), f"{self.name}, without faults")
        book = rows(self.whole)
        self.book.check(ONCE, not book["again"], f"{self.name}, without faults", **book)

    def fault_free(self) -> children.End:
        """The run as it should be."""
        shutil.rmtree(self.whole, ignore_errors=True)
        self.place.mkdir(parents=True, exist_ok=True)
        words = self.command.words(self.seed, self.whole)
        end = children.offbeat(words, self.whole, None, self.every, self.place)
        if end.status:
            raise OffbeatError(f"without a fault `offbeat {' '.join(words)}` ends with {end.status}:\n{end.said}")
        return end

    def undergo(self, campaign: int, number: int, most: int, told: Callable[[dict[str, Any]], None]) -> None:
        """Kill it until it is finished or has been killed often enough, then let it finish."""
        config = tomllib.loads((self.whole / "config.toml").read_text(encoding="utf-8"))
        faults = drawn(campaign, number, self.amounts)
        while not self._finished():
            fault = next(faults) if len(self.kills) < most else None
            end = self._on(fault, config["executor"])
            if fault is not None and end.struck is not None and "kind" in end.struck:  # may have come at the very end
                fault = dataclasses.replace(fault, kind=end.struck["kind"])
            if not self._sound(end, fault):
                return
            if fault is not None and end.status:
                self.kills.append({**(end.struck or {}), "kind": fault.name, "at": fault.at, "status": end.status})
                told(self.kills[-1])
        self._compare()

    def _on(self, fault: Fault | None, executor: str) -> children.End:
        """Begin it, or go on with it, as a user would: what was killed before it had begun is begun again."""
        if (self.killed / "config.toml").is_file():
            words = ["resume", str(self.killed), "--quiet"]
            return children.offbeat(words, self.killed, fault, self.every, self.place)
        shutil.rmtree(self.killed, ignore_errors=True)
        words = self.command.words(self.seed, self.killed, "--executor", executor)
        return children.offbeat(words, self.killed, fault, self.every, self.place)

    def _finished(self) -> bool:
        return (self.killed / "summary.json").is_file()

    def _where(self, fault: Fault | None) -> str:
        after = f"after kill {len(self.kills) + 1} ({fault.name})" if fault is not None else "at the end"
        return f"{self.name}, {after}"

    def _sound(self, end: children.End, fault: Fault | None) -> bool:
        """Whether the process has ended as it should."""
        where, book = self._where(fault), self.book
        for job in (line["twice"] for line in end.lines if "twice" in line):
            book.check(ONCE, False, where, twice=job)
        if (ledger := end.told("finished")) is not None:
            check_ledger(book, ledger, where)
        check_checkpoint(book, self.killed, where)
        said = end.said.strip()
        expected = {0} if fault is None or end.struck is None else _endings(fault)
        clear = "Traceback" not in said and (end.status != REFUSED or said.startswith("offbeat: "))
        return book.check(
            SAID, end.status in expected and clear and not end.left, where,
            status=end.status, said=said[-2000:], fault=fault and fault.name, place=end.struck, left_behind=end.left,
        )  # fmt: skip

    def _compare(self) -> None:
        where = f"{self.name}, after {len(self.kills)} kills"
        for what, same in equal(self.whole, self.killed):
            self.book.check(EXACT, same, where, differs=what)
        found = rows(self.killed)
        summary = json.loads((self.killed / "summary.json").read_text())
        self.book.check(ONCE, not found["again"] and summary["updates"] == found["aggregated"], where, **found)
        self.book.check(LEDGER, summary["lost"] == found["lost"], where, **found)
        self._on(None, "")  # killed behind its last word it has not cleared up
        status = json.loads((self.killed / "status.json").read_text())["state"]
        leftovers = [p.name for p in (*self.killed.glob("checkpoint/*"), *self.killed.glob("cache/*"))]
        self.book.check(SAID, status == "finished" and not leftovers, where, status=status, leftovers=leftovers)


def _endings(fault: Fault) -> set[int]:
    """How a process may end that a fault has struck."""
    if fault.kind in ("full disk", "read-only"):
        return {REFUSED}
    ended_itself = fault.kind in ("turn", "twice") and fault.signal != signal.SIGKILL
    return {INTERRUPTED, 0} if ended_itself else {-signal.SIGKILL}
