"""Train one client after the other with ordinary autograd: the reference for every other executor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from offbeat.client.context import TrainingContext
from offbeat.client.runtime import ClientRuntime
from offbeat.client.training import Plan, Trained, WorkItem, train_job
from offbeat.executors.base import Executor, Task


class Sequential(Executor):
    """Trains jobs one by one; runs any model.

    Args:
        runtime: The client runtime of the run.
    """

    def __init__(self, runtime: ClientRuntime) -> None:
        super().__init__(runtime)
        self.bulk, self.sample = 1, 4  # training ahead gains nothing

    def local_results(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Trained]]:
        """Train the tasks in order."""
        self.context.module.train()
        for place, (runtime, job) in enumerate(tasks):
            yield place, train_job(self.context, runtime.item(job), runtime.context.plan(job))


def one_by_one(context: TrainingContext, items: Sequence[WorkItem], plan: Plan) -> Iterator[Trained]:
    """Train several jobs with a joint plan (most steps, n, B) and yield their results."""
    batches, counts = plan
    for i, item in enumerate(items):
        yield train_job(context, item, (batches[: item.job.steps, i], counts[: item.job.steps, i]))
