"""A campaign: kill and resume runs, then disturb their messages, and report what was checked."""

from __future__ import annotations

import pathlib
import shlex
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from offbeat.errors import RunFolderError
from offbeat.files import write_json
from offbeat.random import key
from offbeat.runs.folder import environment
from offbeat_chaos import children
from offbeat_chaos.invariants import (
    ACCURACY,
    BUSY,
    DAMAGED,
    INVARIANTS,
    LEDGER,
    LEVEL,
    ONCE,
    InvariantLog,
    check_ledger,
    p_value,
)
from offbeat_chaos.kills import Command, KillTest

RESULT = "chaos.json"
SEEDS = 5  # runs with and runs without message faults
TIMEOUT_FACTOR = 2.0  # a job is given up after this many times the longest trip of the fault-free run
MAX_FRUITLESS = 10  # runs in a row without a kill, after which the experiment is too short for a campaign

Progress = Callable[[str, float, float, str], None]
"""Called with the stage, how much of it is done, of how much, and a note."""


@dataclass
class Campaign:
    """All faults of one command line.

    Everything follows from the file and the seed, apart from the place where a kill by the clock falls.
    """

    command: Command
    first_seed: int
    """Seed of the first run; each further run has the next one."""
    data_dir: pathlib.Path | None
    out: pathlib.Path
    kills: int
    """Number of kills to reach."""
    seed: int
    """Seed of the faults."""
    progress: Progress = lambda stage, done, total, note: None
    log: InvariantLog = field(default_factory=InvariantLog)
    runs: list[dict[str, Any]] = field(default_factory=list)
    messages: dict[str, Any] | None = None

    def run(self, only: int | None = None, messages: bool = True) -> dict[str, Any]:
        """Run the campaign, write its result and return it.

        Args:
            only: Repeat only this one of the killed runs.
            messages: Also disturb messages.

        Raises:
            RunFolderError: The output folder holds something else.
        """
        started = time.monotonic()
        self._prepare_folder()
        if only is not None:
            self._kill_run(only, self.kills)
        else:
            self._kill_runs()
        if messages and not self.log.broken:
            self._disturb_messages()
        found = self.report(time.monotonic() - started)
        write_json(self.out / RESULT, found)
        return found

    def _prepare_folder(self) -> None:
        """Refuse a folder that does not belong to a campaign, because the campaign deletes what it finds there."""
        if self.out.is_dir() and any(self.out.iterdir()) and not (self.out / RESULT).is_file():
            raise RunFolderError(
                f"{self.out} is not empty and not of a campaign (it has no {RESULT}): give another folder"
            )
        self.out.mkdir(parents=True, exist_ok=True)

    # Kills -----------------------------------------------------------------------------------------------------

    def _kill_runs(self) -> None:
        fruitless = 0
        while self.done < self.kills and not self.log.broken and fruitless < MAX_FRUITLESS:
            before = self.done
            self._kill_run(len(self.runs) + 1, self.kills - before)
            fruitless = 0 if self.done > before else fruitless + 1

    @property
    def done(self) -> int:
        """Number of kills so far."""
        return sum(len(run["kills"]) for run in self.runs)

    def _kill_run(self, number: int, max_kills: int) -> None:
        seed, name = self.first_seed + number - 1, f"run {number}"
        test = KillTest(self.command, seed, self._scratch(number), self.log, name)
        self.runs.append({"number": number, "seed": seed, "most": max_kills, "kills": test.kills})

        def on_kill(kill: dict[str, Any]) -> None:
            self.progress("kills", self.done, self.kills, f"{name}: {kill['kind']}, {kill.get('place', '')}")

        self.progress("kills", self.done, self.kills, f"{name}: without faults")
        test.prepare()
        self.runs[-1] |= {"turns": test.totals["turn"], "every": test.every}
        test.run_killed(self.seed, number, max_kills, on_kill)
        if not self.log.broken:
            shutil.rmtree(test.place)

    def _scratch(self, number: int | str) -> pathlib.Path:
        """Return the folder for a run of the campaign, emptied of what an earlier campaign left there."""
        place = self.out / f"run-{number}"
        shutil.rmtree(place, ignore_errors=True)
        return place

    # Messages --------------------------------------------------------------------------------------------------

    def _disturb_messages(self) -> None:
        place = self._scratch("messages")
        KillTest(self.command, self.first_seed, place, self.log, "messages").run_whole()
        plain: list[dict[str, Any]] = []
        faulty: list[dict[str, Any]] = []
        for n in range(SEEDS):
            plain.append(self._trial(place, n, None))
            if "skipped" in plain[-1]:
                self.messages = plain[-1]
                break
            faulty.append(self._trial(place, n, plain[-1]))
            if self.log.broken:
                return
        else:
            self._compare_accuracy(plain, faulty)
        if not self.log.broken:
            shutil.rmtree(place)

    def _trial(self, place: pathlib.Path, n: int, plain: dict[str, Any] | None) -> dict[str, Any]:
        """Run with the n-th seed: without faults, or with faults that are scaled to the run without."""
        seed = self.first_seed + n
        name = f"messages, seed {seed}, {'without' if plain is None else 'with'} faults"
        self.progress("messages", 2 * n + (plain is not None), 2 * SEEDS, name)
        arguments: dict[str, Any] = {
            "folder": str(place / "whole"), "seed": seed, "data_dir": self.data_dir and str(self.data_dir),
        }  # fmt: skip
        if plain is not None:
            arguments |= {"network": key(self.seed, "network", seed), "timeout": TIMEOUT_FACTOR * plain["longest"],
                          "until": plain["virtual_seconds"]}  # fmt: skip
        result = children.run_trial(arguments, place)
        found: dict[str, Any] | None = result.note("trial")
        if found is None:
            stuck = "the run cannot continue" in result.output or result.status == -9
            invariant = BUSY if stuck else ACCURACY
            self.log.check(invariant, False, name, status=result.status, output=result.output[-2000:])
            return {"longest": 1.0, "virtual_seconds": 1.0}
        if "skipped" in found:
            return found
        check_ledger(self.log, found, name)
        if plain is not None:
            self._check_faulty(found, arguments["timeout"], name)
        return found

    def _check_faulty(self, found: dict[str, Any], timeout: float, name: str) -> None:
        """Check the figures of a run with an unreliable network."""
        surplus, unsolicited, awaited, in_flight = (
            found[it] for it in ("surplus", "unsolicited", "awaited", "in_flight")
        )
        self.log.check(ONCE, unsolicited == surplus, name, arrived_unsolicited=surplus, rejected=unsolicited)
        self.log.check(LEDGER, awaited == in_flight, name, awaited=awaited, in_flight=in_flight)
        longest, accumulated = found["longest"], found["damaged_accumulated"]
        self.log.check(BUSY, longest <= timeout * (1 + 1e-9), name, longest_trip=longest, timeout=timeout)
        self.log.check(DAMAGED, not accumulated, name, damaged=found["damaged"], accumulated=accumulated)

    def _compare_accuracy(self, plain: list[dict[str, Any]], faulty: list[dict[str, Any]]) -> None:
        accuracies = [[each["accuracy"] for each in group] for group in (plain, faulty)]
        p = p_value(*accuracies)
        self.log.check(ACCURACY, p >= LEVEL, "messages", without=accuracies[0], with_faults=accuracies[1], p_value=p)
        faults, refused = (
            dict(sum((Counter(each.get(name, {})) for each in faulty), Counter())) for name in ("faults", "refused_for")
        )
        self.messages = {
            "faults": faults, "refused": refused, "jobs": sum(each.get("sent", 0) for each in faulty),
            "accuracy": accuracies[0], "accuracy_with_faults": accuracies[1], "chance": p,
            **{name: sum(each.get(name, 0) for each in faulty) for name in ("lost", "aggregated", "late", "in_flight")},
        }  # fmt: skip

    # Result ----------------------------------------------------------------------------------------------------

    def report(self, seconds: float) -> dict[str, Any]:
        """Return the campaign in figures.

        Args:
            seconds: How long it took.
        """
        broken = self.log.broken
        return {
            "file": self.command.file,
            "options": list(self.command.options),
            "seed": self.seed,
            "kills": self.done,
            "asked": self.kills,
            "held": not broken,
            "invariants": [
                {"name": name, "checks": self.log.checks[name], "held": all(b["invariant"] != name for b in broken)}
                for name in INVARIANTS
            ],
            "broken": broken,
            "replay": self.replay() if broken else None,
            "runs": self.runs,
            "messages": self.messages,
            "seconds": round(seconds, 1),
            "commit": commit(),
            **environment(),
        }

    def replay(self) -> str:
        """Return the command that reproduces the first violation."""
        where = self.log.broken[0]["where"].split(",")[0].removeprefix("run ")
        words = ["chaos", self.command.file, *self.command.options, "--seed", str(self.seed), "--only", where]
        kills = [] if where == "messages" else ["--kills", str(self.runs[-1]["most"])]
        return f"offbeat {shlex.join(words + kills)}"


def commit() -> str | None:
    """Return the commit of the source code, or None where it is not in a repository."""
    here = pathlib.Path(__file__).parent
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or None
