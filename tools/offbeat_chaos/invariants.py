"""What must hold whatever happens, and what was seen of it."""

from __future__ import annotations

import itertools
import json
import pathlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from offbeat.runs.folder import SETTING, STATUS, read_json
from offbeat.server import checkpoint
from offbeat.server.pool import Pool

LEDGER = "sent = arrived + lost + refused + in flight"
ONCE = "every accepted update is aggregated exactly once"
EXACT = "a resumed run equals the uninterrupted one"
BUSY = "no client is busy for ever"
SAID = "a run that cannot write says so, and nothing is left behind"
DAMAGED = "a damaged update changes nothing"
ACCURACY = "accuracy is within noise of the fault-free runs"
INVARIANTS = (LEDGER, ONCE, EXACT, BUSY, SAID, DAMAGED, ACCURACY)
LEVEL = 0.01  # how seldom chance alone would make a loss of accuracy as large


@dataclass
class InvariantLog:
    """How often each invariant was looked at, and what spoke against it."""

    checks: dict[str, int] = field(default_factory=lambda: dict.fromkeys(INVARIANTS, 0))
    broken: list[dict[str, Any]] = field(default_factory=list)

    def check(self, invariant: str, held: bool, where: str, **evidence: Any) -> bool:
        self.checks[invariant] += 1
        if not held:
            self.broken.append({"invariant": invariant, "where": where, **evidence})
        return held


# A run folder -----------------------------------------------------------------------------------------------------


def equal(one: pathlib.Path, other: pathlib.Path) -> Iterator[tuple[str, bool]]:
    """What two finished runs have to have in common, bit for bit; the seconds of the wall are nobody's."""
    for name in ("model.safetensors", "updates.npy"):
        yield name, (one / name).read_bytes() == (other / name).read_bytes()
    yield "metrics.jsonl", _metrics(one) == _metrics(other)
    yield "summary.json", _summary(one) == _summary(other)


def _metrics(folder: pathlib.Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [_timeless(line) for line in lines]


def _summary(folder: pathlib.Path) -> dict[str, Any]:
    return _timeless(json.loads((folder / "summary.json").read_text()))


def _timeless(line: Mapping[str, Any]) -> dict[str, Any]:
    measured = {"client_steps_per_second", "executors_tried"}
    return {name: value for name, value in line.items() if not name.startswith("wall_") and name not in measured}


def rows(folder: pathlib.Path) -> dict[str, int]:
    """How the trips ended, by the update log; `again`: rows of a trip that has a row already."""
    log = np.load(folder / "updates.npy")
    asked = log[(log["status"] != STATUS.index("unsolicited")) & (log["time"] > log["sent"])]
    again = len(asked) - len(np.unique(asked[["client", "sent"]]))
    return {name: int((log["status"] == n).sum()) for n, name in enumerate(STATUS)} | {"again": again}


def check_checkpoint(book: InvariantLog, folder: pathlib.Path, where: str) -> None:
    """The books of the newest checkpoint, if there is a whole one."""
    state = checkpoint.load(folder / "checkpoint", "cpu") if (folder / "checkpoint").is_dir() else None
    if state is None:
        return
    loop, queue = state["loop"], state["transport"]["queue"]
    jobs = [entry.get("job", entry) for _, _, entry, _ in queue if entry.keys() & {"job", "id"}]
    log = np.load(folder / "updates.npy")
    ended = int((log["status"][: state["update_rows"]] != STATUS.index("unsolicited")).sum())
    book.check(
        LEDGER, len(log) >= state["update_rows"] and loop["jobs"] == ended + len(loop["out"]), where,
        sent=loop["jobs"], ended=ended, in_flight=len(loop["out"]), rows_on_disk=len(log),
    )  # fmt: skip
    busy, theirs = _busy(loop["pool"], read_json(folder / SETTING)["clients"]), sorted(job["client"] for job in jobs)
    waited = sorted(job["id"] for job in jobs)
    book.check(
        BUSY, busy == theirs and waited == loop["out"], where,
        busy=busy, clients_of_jobs_in_flight=theirs, waited_for=loop["out"], in_flight=waited,
    )  # fmt: skip


def _busy(state: dict[str, Any], clients: int) -> list[int]:
    pool = Pool(clients, 0)
    pool.load_state_dict(state)
    return [client for client in range(clients) if not pool.idles(client)]


def check_ledger(book: InvariantLog, ledger: Mapping[str, Any], where: str) -> None:
    """The witness's books at the end of a run."""
    parts = {name: ledger[name] for name in ("sent", "aggregated", "late", "lost", "refused", "in_flight")}
    book.check(LEDGER, 2 * ledger["sent"] == sum(parts.values()), where, **parts)
    book.check(
        ONCE, not ledger["twice"] and ledger["accumulated"] == ledger["aggregated"], where,
        twice=ledger["twice"], accumulated=ledger["accumulated"], aggregated=ledger["aggregated"],
    )  # fmt: skip
    book.check(BUSY, ledger["busy"] == ledger["in_flight"], where, busy=ledger["busy"], in_flight=ledger["in_flight"])


# Accuracy ---------------------------------------------------------------------------------------------------------


def chance(plain: Sequence[float], faulty: Sequence[float]) -> float:
    """How often the runs, divided by lot, would show a loss of mean accuracy at least as large.

    An exact permutation test: the noise is that of these very runs, and no law is assumed for it.
    """
    together, n = [*plain, *faulty], len(faulty)
    seen = statistics.fmean(plain) - statistics.fmean(faulty)
    total = sum(together)
    losses = [
        (total - chosen) / len(plain) - chosen / n
        for chosen in map(sum, itertools.combinations(together, n))
    ]  # fmt: skip
    return sum(loss >= seen - 1e-12 for loss in losses) / len(losses)
