"""Train jobs in a pool of worker processes, on this machine (`processes`) or on a Ray cluster (`ray`).

`Pooled` has everything that both have in common: it sends the longest tasks first, keeps every worker busy, collects
the replies and retries what a lost worker had. A `Backend` knows how its workers start, receive, reply and end.

State that belongs to a run stays in this process: the state of its clients, its encoder and its updates. A worker has
the model and the data, and turns a job into Δ and the vectors that the client rule sends and keeps. So a worker can be
lost at any time, and who trains a task does not change its result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from offbeat.client.runtime import ClientRuntime
from offbeat.client.training import Trained
from offbeat.errors import OffbeatError
from offbeat.executors.base import Executor, Task, examples

WorkerT = TypeVar("WorkerT")
ReplyT = TypeVar("ReplyT")


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """The end of a worker that had work to do.

    Attributes:
        reason: How it ended, for an error message.
        node: The cluster node on which it ran; empty where there is only one.
    """

    reason: str
    node: str = ""


@dataclass(eq=False, slots=True)
class PendingTask:
    """Tasks that one worker trains together, from the queue until their outcomes are there.

    Attributes:
        positions: Positions of the tasks in the call of `train_all`.
        tasks: The tasks themselves.
        losses: Workers that were lost while they trained these tasks.
    """

    positions: Sequence[int]
    tasks: Sequence[Task]
    losses: list[WorkerLost] = field(default_factory=list)


class Backend(ABC, Generic[WorkerT, ReplyT]):
    """Workers of a pool and the way to them.

    Attributes:
        name: The kind of worker, for error messages.
        attempts: Number of workers that may be lost over the same tasks before the run fails.
    """

    name: str
    attempts: int

    @abstractmethod
    def prepare(self, tasks: Sequence[Task]) -> None:
        """Provide what the workers need for these tasks, before the first of them is submitted."""

    @abstractmethod
    def idle_worker(self, pending: PendingTask, outstanding: int) -> WorkerT | None:
        """Return a worker for the task, started if necessary; None while all are busy.

        Args:
            pending: The task that is submitted next.
            outstanding: Number of pending tasks without a reply, which more workers could share.
        """

    @abstractmethod
    def submit(self, worker: WorkerT, pending: PendingTask) -> WorkerLost | None:
        """Send a task to an idle worker; returns its loss if it no longer exists."""

    @abstractmethod
    def replies(self) -> Iterable[tuple[WorkerT, ReplyT | WorkerLost]]:
        """Wait until at least one busy worker replies or is lost, if there is one; raise what a worker has raised."""

    @abstractmethod
    def results(self, pending: PendingTask, reply: ReplyT) -> list[Trained]:
        """Turn a reply into one result per task."""

    def release(self, pending: PendingTask) -> None:
        """Free what `submit` has reserved for a task whose worker is lost."""

    @abstractmethod
    def finish(self, tasks: Sequence[Task]) -> None:
        """Free what was shared with the workers and is no longer needed after these tasks."""

    @abstractmethod
    def close(self) -> None:
        """End the workers; the next task starts others."""


class Pooled(Executor):
    """Feeds the workers of a backend.

    Args:
        runtime: The client runtime of the run.
        backend: The workers.
    """

    def __init__(self, runtime: ClientRuntime, backend: Backend[Any, Any]) -> None:
        super().__init__(runtime)
        self.backend = backend
        self._busy: dict[Any, PendingTask] = {}  # by worker

    def close(self) -> None:
        """End the workers; the next task starts others."""
        self._busy.clear()
        self.backend.close()

    def groups(self, tasks: Sequence[Task]) -> list[list[int]]:
        """Return the positions of the tasks that one worker trains together; by default each task is alone."""
        return [[position] for position in range(len(tasks))]

    def local_results(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Trained]]:
        """Distribute the tasks over the workers.

        Raises:
            OffbeatError: Too many workers were lost over the same tasks, or none can be started.
        """
        if not tasks:
            return
        try:
            self.backend.prepare(tasks)
            yield from self._train(tasks)
            self.backend.finish(tasks)
        except BaseException:  # nobody will collect the replies of workers that are still busy
            self.close()
            raise

    def _train(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Trained]]:
        """Train the longest tasks first, so that all workers finish at about the same time."""
        pending = [PendingTask(positions, [tasks[i] for i in positions]) for positions in self.groups(tasks)]
        queue = deque(sorted(pending, key=lambda task: -examples(task.tasks)))
        while queue or self._busy:
            self._feed(queue)
            replies = self._collect(queue)
            self._feed(queue)  # before the replies are decoded: no worker waits for that
            for task, reply in replies:
                yield from zip(task.positions, self.backend.results(task, reply), strict=True)

    def _feed(self, queue: deque[PendingTask]) -> None:
        """Give every idle worker a task."""
        while queue:
            worker = self.backend.idle_worker(queue[0], len(self._busy) + len(queue))
            if worker is None:
                return
            pending = queue.popleft()
            if lost := self.backend.submit(worker, pending):
                self._retry(pending, lost, queue)
            else:
                self._busy[worker] = pending

    def _collect(self, queue: deque[PendingTask]) -> list[tuple[PendingTask, Any]]:
        """Wait for replies; the tasks of lost workers return to the head of the queue."""
        replies = []
        for worker, reply in self.backend.replies():
            pending = self._busy.pop(worker)
            if isinstance(reply, WorkerLost):
                self._retry(pending, reply, queue)
            else:
                replies.append((pending, reply))
        return replies

    def _retry(self, pending: PendingTask, lost: WorkerLost, queue: deque[PendingTask]) -> None:
        self.backend.release(pending)
        pending.losses.append(lost)
        if len(pending.losses) >= self.backend.attempts:
            _, job = pending.tasks[0]
            more = f" and {len(pending.tasks) - 1} more" if len(pending.tasks) > 1 else ""
            raise OffbeatError(
                f"{len(pending.losses)} {self.backend.name} were lost while training client {job.client} from version "
                f"{job.version}{more}; the last one: {lost.reason}"
            )
        queue.appendleft(pending)
