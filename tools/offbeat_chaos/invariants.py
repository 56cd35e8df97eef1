"""Invariants that hold whatever faults are injected, and a log of their checks."""

from __future__ import annotations

import itertools
import pathlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from offbeat.runs.folder import (
    CHECKPOINT,
    METRICS,
    MODEL,
    STATUS,
    SUMMARY,
    UPDATES,
    read_metrics,
    read_setting,
    read_summary,
    read_updates,
)
from offbeat.server import checkpoint
from offbeat.server.pool import Pool

LEDGER = "sent = arrived + lost + rejected + in flight"
ONCE = "every accepted update is aggregated exactly once"
EXACT = "a resumed run equals the uninterrupted one"
BUSY = "no client stays busy forever"
REPORTED = "a run that cannot write reports it and leaves nothing behind"
DAMAGED = "a corrupted update changes nothing"
ACCURACY = "accuracy is within noise of the fault-free runs"
INVARIANTS = (LEDGER, ONCE, EXACT, BUSY, REPORTED, DAMAGED, ACCURACY)
LEVEL = 0.01  # significance level for a loss of accuracy


@dataclass
class InvariantLog:
    """How often each invariant was checked, and the evidence against it."""

    checks: dict[str, int] = field(default_factory=lambda: dict.fromkeys(INVARIANTS, 0))
    broken: list[dict[str, Any]] = field(default_factory=list)

    def check(self, invariant: str, held: bool, where: str, **evidence: Any) -> bool:
        """Record one check and return whether the invariant held.

        Args:
            invariant: The invariant.
            held: Whether it held.
            where: At which point of the campaign.
            **evidence: Figures to report if it did not.
        """
        self.checks[invariant] += 1
        if not held:
            self.broken.append({"invariant": invariant, "where": where, **evidence})
        return held


# A run folder -----------------------------------------------------------------------------------------------------


def equal_files(one: pathlib.Path, other: pathlib.Path) -> Iterator[tuple[str, bool]]:
    """Compare two finished runs bit for bit, apart from wall-clock times; yield each file and whether it agrees."""
    for name in (MODEL, UPDATES):
        yield name, (one / name).read_bytes() == (other / name).read_bytes()
    yield METRICS, [*map(_without_times, read_metrics(one))] == [*map(_without_times, read_metrics(other))]
    yield SUMMARY, _without_times(read_summary(one)) == _without_times(read_summary(other))


def _without_times(line: Mapping[str, Any]) -> dict[str, Any]:
    measured = {"client_steps_per_second", "executors_tried"}
    return {name: value for name, value in line.items() if not name.startswith("wall_") and name not in measured}


def count_rows(folder: pathlib.Path) -> dict[str, int]:
    """Count the rows of the update log by status; `again` counts rows of trips that already have one."""
    log = read_updates(folder)
    solicited = log[(log["status"] != STATUS.index("unsolicited")) & (log["time"] > log["sent"])]
    again = len(solicited) - len(np.unique(solicited[["client", "sent"]]))
    return {name: int((log["status"] == n).sum()) for n, name in enumerate(STATUS)} | {"again": again}


def check_checkpoint(log: InvariantLog, folder: pathlib.Path, where: str) -> None:
    """Check that the newest intact checkpoint, if there is one, accounts for every job and every busy client."""
    state = checkpoint.load(folder / CHECKPOINT, "cpu") if (folder / CHECKPOINT).is_dir() else None
    if state is None:
        return
    loop, queue = state["loop"], state["transport"]["queue"]
    jobs = [entry.get("job", entry) for _, _, entry, _ in queue if entry.keys() & {"job", "id"}]
    updates = read_updates(folder)
    logged = state["recorder"]["update_rows"]
    ended = int((updates["status"][:logged] != STATUS.index("unsolicited")).sum())
    log.check(
        LEDGER, len(updates) >= logged and loop["jobs"] == ended + len(loop["out"]), where,
        sent=loop["jobs"], ended=ended, in_flight=len(loop["out"]), rows_on_disk=len(updates),
    )  # fmt: skip
    busy = _busy_clients(loop["pool"], read_setting(folder)["clients"])
    clients, in_flight = sorted(job["client"] for job in jobs), sorted(job["id"] for job in jobs)
    log.check(
        BUSY, busy == clients and in_flight == loop["out"], where,
        busy=busy, clients_of_jobs_in_flight=clients, awaited=loop["out"], in_flight=in_flight,
    )  # fmt: skip


def _busy_clients(state: dict[str, Any], clients: int) -> list[int]:
    pool = Pool(clients, 0)
    pool.load_state_dict(state)
    return [client for client in range(clients) if not pool.idles(client)]


def check_ledger(log: InvariantLog, ledger: Mapping[str, Any], where: str) -> None:
    """Check the observer's ledger at the end of a run."""
    parts = {name: ledger[name] for name in ("sent", "aggregated", "late", "lost", "refused", "in_flight")}
    log.check(LEDGER, 2 * ledger["sent"] == sum(parts.values()), where, **parts)
    log.check(
        ONCE, not ledger["twice"] and ledger["accumulated"] == ledger["aggregated"], where,
        twice=ledger["twice"], accumulated=ledger["accumulated"], aggregated=ledger["aggregated"],
    )  # fmt: skip
    log.check(BUSY, ledger["busy"] == ledger["in_flight"], where, busy=ledger["busy"], in_flight=ledger["in_flight"])


# Accuracy ---------------------------------------------------------------------------------------------------------


def p_value(plain: Sequence[float], faulty: Sequence[float]) -> float:
    """Return the probability of a loss of mean accuracy at least as large if faults had no effect.

    This is an exact permutation test over all ways to divide the runs into two groups. It takes the noise from these
    runs and assumes no distribution.

    Args:
        plain: Accuracies of the runs without faults.
        faulty: Accuracies of the runs with faults.
    """
    together, n = [*plain, *faulty], len(faulty)
    observed = statistics.fmean(plain) - statistics.fmean(faulty)
    total = sum(together)
    losses = [
        (total - chosen) / len(plain) - chosen / n
        for chosen in map(sum, itertools.combinations(together, n))
    ]  # fmt: skip
    return sum(loss >= observed - 1e-12 for loss in losses) / len(losses)
