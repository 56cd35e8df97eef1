"""An independent ledger of a run's jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from offbeat.messages import Job, Update
from offbeat.runs.run import Run
from offbeat.server.events import Arrival, Lost, Outcome, Tick


class RunObserver:
    """Counts what happens to every job, independently of the run's own records.

    Args:
        run: The run to observe.
        on_repeat: Called with a job whose update the algorithm receives again: a second time in this process, or
            although the job had ended before the checkpoint from which the run resumes.
    """

    def __init__(self, run: Run, on_repeat: Callable[[int], None] = lambda job: None) -> None:
        self.run, self.on_repeat = run, on_repeat
        loop = run.loop
        self.jobs_before, self.out_before = loop.jobs, set(loop.out)
        self.accumulated: Counter[int] = Counter()
        self.ended: Counter[str] = Counter()
        self.longest = 0.0  # longest time between sending a job and its end
        receive, turn = loop.algorithm.receive, loop.turn

        def observed_receive(job: Job, update: Update) -> None:
            self.accumulated[job.id] += 1
            if self.accumulated[job.id] > 1 or not (job.id > self.jobs_before or job.id in self.out_before):
                self.on_repeat(job.id)
            receive(job, update)

        def observed_turn() -> Outcome:
            outcome = turn()
            self._count(outcome)
            return outcome

        loop.algorithm.receive, loop.turn = observed_receive, observed_turn  # type: ignore[method-assign]

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
        """Return how many jobs of this process ended in which way, and how many are in flight."""
        loop = self.run.loop
        return {
            "sent": loop.jobs - self.jobs_before + len(self.out_before),
            "in_flight": len(loop.out),
            **{name: self.ended[name] for name in ("aggregated", "late", "lost", "refused", "unsolicited")},
            "accumulated": sum(self.accumulated.values()),
            "twice": [job for job, times in self.accumulated.items() if times > 1],
            "busy": loop.pool.busy,
            "longest": self.longest,
        }
