"""The models with which clients are tested: x with each client's personal part, fine-tuned where that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from offbeat.client.rules import HEAD_STEPS
from offbeat.client.runtime import ClientRuntime
from offbeat.client.training import Trained, WorkItem
from offbeat.messages import Job
from offbeat.server.extensions import BUFFERS

Train = Callable[[Sequence[tuple[ClientRuntime, Job]]], Iterable[tuple[int, Trained]]]  # as `Executor.local_results`


class TestedRuntime(ClientRuntime):
    """A client runtime whose jobs start from the clients' state after their last accepted job and change nothing.

    Executors train jobs before they arrive, as it suits them. A test must not depend on that.

    Args:
        runtime: The client runtime of the run.
    """

    __test__ = False  # not a test class

    def __init__(self, runtime: ClientRuntime) -> None:
        super().__init__(runtime.context, runtime.compression)
        self.state = runtime.state

    def item(self, job: Job) -> WorkItem:
        """Return a job with everything that its training needs.

        Where the personal part has steps of its own, fine-tuning trains only this part.
        """
        values, rule = self.state.accepted(job.client, job.last_accepted_job), self.context.rule
        state = self.rule_state(job, values)
        if self.personal is not None:
            job, state = self.personal.joined(job, state, values)
            state |= {HEAD_STEPS: job.x.new_tensor([job.steps])} if HEAD_STEPS in state else {}
        return WorkItem(rule, job, state)


def tested_models(runtime: ClientRuntime, jobs: Sequence[Job], train: Train) -> tuple[Tensor, Tensor | None]:
    """Return the models (n, d) of clients, in the dimension of local training, and their running statistics (n, b).

    Args:
        runtime: The client runtime of the run.
        jobs: One job per client: the model to test and the steps of fine-tuning, which may be none.
        train: Trains jobs without a change of any client's state.
    """
    tested = TestedRuntime(runtime)
    items = [tested.item(job).job for job in jobs]
    models, statistics = [item.x for item in items], [item.extra.get(BUFFERS) for item in items]
    for place, trained in train([(tested, job) for job in jobs if job.steps]):
        models[place] = models[place] + trained.delta
        statistics[place] = trained.extra.get(BUFFERS)
    buffers = [each for each in statistics if each is not None]
    return torch.stack(models), torch.stack(buffers) if buffers else None
