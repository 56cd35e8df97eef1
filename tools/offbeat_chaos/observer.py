"""Looks on while a run goes on, and keeps books of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from offbeat.messages import Job, Update
from offbeat.runs.run import Run
from offbeat.server.events import Arrival, Lost, Outcome, Tick


class RunObserver:
    """Counts every job, whether or not the run's own books say the same.

    `told` hears of a job whose update the algorithm is given for a second time: once more, or though it had ended
    before the checkpoint from which the run goes on.
    """

    def __init__(self, run: Run, told: Callable[[int], None] = lambda job: None) -> None:
        self.run, self.told = run, told
        loop = run.loop
        self.before, self.out_before = loop.jobs, set(loop.out)
        self.accumulated: Counter[int] = Counter()
        self.ended: Counter[str] = Counter()
        self.longest = 0.0  # that a trip was waited for
        receive, turn = loop.algorithm.receive, loop.turn

        def received(job: Job, update: Update) -> None:
            self.accumulated[job.id] += 1
            if self.accumulated[job.id] > 1 or not (job.id > self.before or job.id in self.out_before):
                self.told(job.id)
            receive(job, update)

        def turned() -> Outcome:
            outcome = turn()
            self._count(outcome)
            return outcome

        loop.algorithm.receive, loop.turn = received, turned  # type: ignore[method-assign]

    def _count(self, outcome: Outcome) -> None:
        event = outcome.event
        if isinstance(event, Tick):
            return
        if outcome.refused == "unsolicited":
            self.ended["unsolicited"] += 1
            return
        self.longest = max(self.longest, outcome.now - event.sent)
        if outcome.refused is not None:
            self.ended["refused"] += 1
        elif isinstance(event, Lost):
            self.ended["lost"] += 1
        else:
            assert isinstance(event, Arrival)
            self.ended["aggregated" if outcome.aggregated else "late"] += 1

    def ledger(self) -> dict[str, Any]:
        """Where every job of this process is, and who is busy with it."""
        loop = self.run.loop
        return {
            "sent": loop.jobs - self.before + len(self.out_before),
            "in_flight": len(loop.out),
            **{name: self.ended[name] for name in ("aggregated", "late", "lost", "refused", "unsolicited")},
            "accumulated": sum(self.accumulated.values()),
            "twice": [job for job, times in self.accumulated.items() if times > 1],
            "busy": loop.pool.busy,
            "longest": self.longest,
        }
