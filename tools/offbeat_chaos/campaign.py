"""A whole campaign: kills, then messages; what was done, what was seen, and how to see it again."""

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
    chance,
    check_ledger,
)
from offbeat_chaos.kills import Command, KillTest

RESULT = "chaos.json"
SEEDS = 5  # runs with and runs without faults of messages
PATIENCE = 2.0  # a job is given up after so many times the longest trip of the fault-free run
RUNS = 10  # without a single kill, after which an experiment is too short for a campaign

Tell = Callable[[str, float, float, str], None]
"""What is done, how much of it, of how much, and a note."""


@dataclass
class Campaign:
    """Everything follows from the file and the seed but the place where a kill by the clock falls."""

    command: Command
    first_seed: int  # of the experiment; every run has the next one
    data_dir: pathlib.Path | None
    out: pathlib.Path
    kills: int
    seed: int
    tell: Tell = lambda what, done, total, note: None
    book: InvariantLog = field(default_factory=InvariantLog)
    runs: list[dict[str, Any]] = field(default_factory=list)
    messages: dict[str, Any] | None = None

    def run(self, only: int | None = None, messages: bool = True) -> dict[str, Any]:
        """Kills, then messages; `only` this one of the runs that are killed."""
        begun = time.monotonic()
        self._make_room()
        if only is not None:
            self._ordeal(only, self.kills)
        else:
            self._ordeals()
        if messages and not self.book.broken:
            self._trials()
        found = self.report(time.monotonic() - begun)
        write_json(self.out / RESULT, found)
        return found

    def _make_room(self) -> None:
        """A folder of its own: what an earlier campaign has left in it will be removed, and nobody else's."""
        if self.out.is_dir() and any(self.out.iterdir()) and not (self.out / RESULT).is_file():
            raise RunFolderError(f"{self.out} is not empty and not of a campaign (it has no {RESULT})")
        self.out.mkdir(parents=True, exist_ok=True)

    # Kills -----------------------------------------------------------------------------------------------------

    def _ordeals(self) -> None:
        fruitless = 0
        while self.done < self.kills and not self.book.broken and fruitless < RUNS:
            before = self.done
            self._ordeal(len(self.runs) + 1, self.kills - before)
            fruitless = 0 if self.done > before else fruitless + 1

    @property
    def done(self) -> int:
        return sum(len(run["kills"]) for run in self.runs)

    def _ordeal(self, number: int, most: int) -> None:
        seed, name = self.first_seed + number - 1, f"run {number}"
        ordeal = KillTest(self.command, seed, self._scratch(number), self.book, name)
        self.runs.append({"number": number, "seed": seed, "most": most, "kills": ordeal.kills})

        def told(kill: dict[str, Any]) -> None:
            self.tell("kills", self.done, self.kills, f"{name}: {kill['kind']}, {kill.get('place', '')}")

        self.tell("kills", self.done, self.kills, f"{name}: without faults")
        ordeal.prepare()
        self.runs[-1] |= {"turns": ordeal.amounts["turn"], "every": ordeal.every}
        ordeal.undergo(self.seed, number, most, told)
        if not self.book.broken:
            shutil.rmtree(ordeal.place)

    def _scratch(self, number: int | str) -> pathlib.Path:
        """Where a run of the campaign lies; what an earlier campaign has left is gone."""
        place = self.out / f"run-{number}"
        shutil.rmtree(place, ignore_errors=True)
        return place

    # Messages --------------------------------------------------------------------------------------------------

    def _trials(self) -> None:
        place = self._scratch("messages")
        model = KillTest(self.command, self.first_seed, place, self.book, "messages")
        model.fault_free()
        plain: list[dict[str, Any]] = []
        faulty: list[dict[str, Any]] = []
        for n in range(SEEDS):
            plain.append(self._trial(place, n, None))
            if "skipped" in plain[-1]:
                self.messages = plain[-1]
                break
            faulty.append(self._trial(place, n, plain[-1]))
            if self.book.broken:
                return
        else:
            self._judge(plain, faulty)
        if not self.book.broken:
            shutil.rmtree(place)

    def _trial(self, place: pathlib.Path, n: int, plain: dict[str, Any] | None) -> dict[str, Any]:
        """A run with the n-th seed; with faults, beside the one without."""
        seed = self.first_seed + n
        name = f"messages, seed {seed}, {'without' if plain is None else 'with'} faults"
        self.tell("messages", 2 * n + (plain is not None), 2 * SEEDS, name)
        arguments: dict[str, Any] = {
            "folder": str(place / "whole"), "seed": seed, "data_dir": self.data_dir and str(self.data_dir),
        }  # fmt: skip
        if plain is not None:
            arguments |= {"network": key(self.seed, "network", seed), "timeout": PATIENCE * plain["longest"],
                          "until": plain["virtual_seconds"]}  # fmt: skip
        end = children.trial(arguments, place)
        found: dict[str, Any] | None = end.told("trial")
        if found is None:
            stuck = "come to rest" in end.said or end.status == -9
            self.book.check(BUSY if stuck else ACCURACY, False, name, status=end.status, said=end.said[-2000:])
            return {"longest": 1.0, "virtual_seconds": 1.0}
        if "skipped" in found:
            return found
        check_ledger(self.book, found, name)
        if plain is not None:
            self._look(found, arguments["timeout"], name)
        return found

    def _look(self, found: dict[str, Any], timeout: float, name: str) -> None:
        """What a run says that had an unreliable network."""
        surplus, unasked, awaited, flying = (found[it] for it in ("surplus", "unsolicited", "awaited", "in_flight"))
        self.book.check(ONCE, unasked == surplus, name, came_though_nobody_waited=surplus, refused_as_unasked=unasked)
        self.book.check(LEDGER, awaited == flying, name, awaited=awaited, in_flight=flying)
        longest, accumulated = found["longest"], found["damaged_absorbed"]
        self.book.check(BUSY, longest <= timeout * (1 + 1e-9), name, longest_trip=longest, timeout=timeout)
        self.book.check(DAMAGED, not accumulated, name, damaged=found["damaged"], accumulated=accumulated)

    def _judge(self, plain: list[dict[str, Any]], faulty: list[dict[str, Any]]) -> None:
        accuracies = [[each["accuracy"] for each in group] for group in (plain, faulty)]
        p = chance(*accuracies)
        self.book.check(ACCURACY, p >= LEVEL, "messages", without=accuracies[0], with_faults=accuracies[1], chance=p)
        faults, refused = (
            dict(sum((Counter(each.get(name, {})) for each in faulty), Counter())) for name in ("faults", "refused_for")
        )
        trips = sum(each.get("sent", 0) for each in faulty)
        self.messages = {
            "faults": faults, "refused": refused, "jobs": trips, "accuracy": accuracies[0],
            "accuracy_with_faults": accuracies[1], "chance": p,
            **{name: sum(each.get(name, 0) for each in faulty) for name in ("lost", "aggregated", "late", "in_flight")},
        }  # fmt: skip

    # What came out ---------------------------------------------------------------------------------------------

    def report(self, seconds: float) -> dict[str, Any]:
        broken = self.book.broken
        return {
            "file": self.command.file,
            "options": list(self.command.options),
            "seed": self.seed,
            "kills": self.done,
            "asked": self.kills,
            "held": not broken,
            "invariants": [
                {"name": name, "checks": self.book.checks[name], "held": all(b["invariant"] != name for b in broken)}
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
        """The command that lets the same faults come again."""
        where = self.book.broken[0]["where"].split(",")[0].removeprefix("run ")
        words = ["chaos", self.command.file, *self.command.options, "--seed", str(self.seed), "--only", where]
        most = [] if where == "messages" else ["--kills", str(self.runs[-1]["most"])]
        return f"offbeat {shlex.join(words + most)}"


def commit() -> str | None:
    """Of the source that runs, where it is a repository's."""
    here = pathlib.Path(__file__).parent
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or None
