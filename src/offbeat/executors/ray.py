"""Jobs spread over the workers of a Ray cluster: over the cores or the GPUs of many machines.

A worker has the model and the data, which a node gets once, and trains what it is given: a stack as `vectorized` does
it, or job by job as `sequential` does it where the model cannot be stacked and, on a CPU, where it has convolutions.
What belongs to a run stays here: what its clients keep, its codec, its updates.  x is put into the object store once a
version.

The jobs that are trained at once are split into as many stacks as the cluster had workers when the run began, also
after a resume in another cluster.  So whoever dies or joins changes who trains a stack, and no bit of its result.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import pickle
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from offbeat.client.context import Precision, TrainingContext
from offbeat.client.rules import SGD, ClientRule, State
from offbeat.client.runtime import ClientRuntime
from offbeat.client.training import Plan, Trained, WorkItem
from offbeat.data import Augment, Dataset, PartitionedDataset
from offbeat.errors import ConfigError, OffbeatError, first_line
from offbeat.executors.base import BULK_BYTES, Executor, Task, TrainingOutcome, arithmetic, examples, outcome
from offbeat.executors.probe import why_not_stackable
from offbeat.executors.sequential import one_by_one
from offbeat.executors.vectorized import Vectorized, height, plan, stacks
from offbeat.executors.workers import keep_memory
from offbeat.messages import Job, parts

if TYPE_CHECKING:
    from offbeat.executors.cluster import Cluster, Member

STACKED, ALONE = 256, 4  # jobs a worker that are worth training at once; jobs that train alone must end after Ctrl-C
TRIES = 4

Array = NDArray[Any]
Answer = tuple[bool, Array, dict[str, Array], dict[str, Array]]  # a result as it travels


def missing() -> str | None:
    """What to do where there is no Ray."""
    return None if importlib.util.find_spec("ray") else "Ray is not installed: pip install 'offbeat[ray]'."


@dataclass(frozen=True, slots=True)
class Workplace:
    """What a worker needs to train any job."""

    module: nn.Module
    kind: Dataset  # with one example
    x: Array
    y: Array
    device: str
    precision: Precision
    augment: Augment | None
    stacked: bool

    @classmethod
    def of(cls, context: TrainingContext, stacked: bool) -> Workplace:
        data = context.data.dataset
        x, y = data.x[:1].clone(), data.y[:1].clone()  # a view would take the whole along
        kind = dataclasses.replace(data, x=x, y=y, test_x=x, test_y=y, owners=None)
        return cls(
            copy.deepcopy(context.module).cpu(), kind, data.x.numpy(), data.y.numpy(),
            context.device.type, context.precision, context.augment, stacked,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Parts:
    """A piece of work as it travels."""

    rule: ClientRule
    job: dict[str, Any]  # without its tensors
    x: int  # its place among the tensors that come along
    extra: dict[str, int]
    client_state: dict[str, Array]


class Trainer:
    """In a worker."""

    def __init__(self, place: Workplace) -> None:
        if place.device == "cpu":
            torch.set_num_threads(1)
        keep_memory()
        data = dataclasses.replace(place.kind, x=_view(place.x), y=_view(place.y))
        nobody = PartitionedDataset(data, np.zeros(1, dtype=np.int64), np.array([0, 1]))  # plans of batches come along
        device = torch.device(place.device)
        self.context = TrainingContext(
            place.module, nobody, SGD(), device, precision=place.precision, augment=place.augment
        )
        self.context.module.train()
        self.local_work = Vectorized(ClientRuntime(self.context)).local_work if place.stacked else self._one_by_one

    def _one_by_one(self, items: Sequence[WorkItem], plan: Plan) -> Iterator[Trained]:
        return one_by_one(self.context, items, plan)

    def train(self, order: Sequence[Parts], plan: Plan, *lent: Array) -> list[Answer]:
        device = self.context.device
        tensors = [_view(array).to(device) for array in lent]
        items = []
        for part in order:
            job = Job(**part.job, x=tensors[part.x], extra={name: tensors[i] for name, i in part.extra.items()})
            kept = {name: torch.tensor(array, device=device) for name, array in part.client_state.items()}
            items.append(WorkItem(part.rule, job, kept))
        with arithmetic(self.context):
            trained = list(self.local_work(items, plan))
        return [(finite, _array(delta), _arrays(sent), _arrays(kept)) for finite, delta, sent, kept in trained]


@dataclass(slots=True)
class PendingTask:
    """Tasks on their way through a worker."""

    places: Sequence[int]  # among all tasks
    tasks: Sequence[Task]
    lost: list[str] = field(default_factory=list)  # nodes of the workers that were lost over it


class Ray(Executor):
    """The workers are one for each core or, with device = "cuda", one for each GPU, and start when there is work."""

    def __init__(self, runtime: ClientRuntime) -> None:
        super().__init__(runtime)
        context = runtime.context
        if reason := missing():
            raise ConfigError(reason, key="executor")
        self.stacked = not _convolves(context) and why_not_stackable(context) is None
        self.rows = height(context, self.bulk)
        self.parts: int | None = None  # into which the jobs of a bulk are split
        self._look_ahead(1)
        self._cluster: Cluster | None = None
        self._trainer: Any = None  # a reference
        self._lent: dict[int, tuple[Tensor, Any]] = {}  # by identity: the tensor, so that it stays, and a reference
        self._busy: dict[Member, PendingTask] = {}

    @property
    def poolable(self) -> bool:
        """Workers already share their cores."""
        return False

    def _look_ahead(self, workers: int) -> None:
        """Jobs that are worth training at once by so many workers."""
        together = (STACKED if self.stacked else ALONE) * workers
        self.bulk = max(workers, min(together, BULK_BYTES // (4 * max(1, self.context.layout.dim))))

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"parts": self.parts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._split(state["parts"])

    def _split(self, parts: int | None) -> None:
        self.parts = parts
        if parts is not None:
            self._look_ahead(parts)

    def close(self) -> None:
        """End the workers, and the cluster if it is ours; the next job starts others."""
        self._busy.clear()
        self._lent.clear()
        self._trainer = None
        if self._cluster is not None:
            cluster, self._cluster = self._cluster, None
            cluster.close()

    def train_all(self, tasks: Sequence[Task]) -> list[TrainingOutcome]:
        if not tasks:
            return []
        try:
            return self._train(self._begun(), tasks)
        except BaseException:  # what the workers are at is nobody's any more
            self.close()
            raise

    def _begun(self) -> Cluster:
        if self._cluster is None:
            from offbeat.executors.cluster import Cluster

            self._cluster = Cluster("GPU" if self.context.device.type == "cuda" else "CPU")
            if self.parts is None:
                self._split(max(1, self._cluster.size()))
            try:
                self._trainer = self._cluster.put((Trainer, Workplace.of(self.context, self.stacked)))
            except (pickle.PicklingError, TypeError, AttributeError, ValueError) as error:
                why = first_line(error.__cause__ or error.__context__ or error)  # Ray adds all that it has looked at
                raise ConfigError(
                    f"'ray' cannot send the model to other processes: {why}  Use 'sequential'.", key="executor"
                ) from error
        return self._cluster

    def _train(self, cluster: Cluster, tasks: Sequence[Task]) -> list[TrainingOutcome]:
        """Longest first, and whoever is free takes the next: then all are done at about the same time."""
        errands = [PendingTask(places, [tasks[place] for place in places]) for places in self._groups(tasks)]
        waiting = deque(sorted(errands, key=lambda errand: -examples(errand.tasks)))
        outcomes: dict[int, TrainingOutcome] = {}
        while waiting or self._busy:
            self._feed(cluster, waiting)
            answered = self._collect(cluster, waiting)
            self._feed(cluster, waiting)  # before the answers are read, which takes its time
            for errand, answers in answered:
                outcomes |= zip(errand.places, self._outcomes(errand, answers), strict=True)
        used = {id(tensor) for _, job in tasks for tensor in (job.x, *job.extra.values())}
        self._lent = {name: lent for name, lent in self._lent.items() if name in used}  # the next jobs may use them
        return [outcomes[place] for place in range(len(tasks))]

    def _groups(self, tasks: Sequence[Task]) -> list[list[int]]:
        """Places of the tasks that go to a worker together."""
        if not self.stacked:
            return [[place] for place in range(len(tasks))]
        assert self.parts is not None
        return stacks(tasks, self.rows, self.parts)

    def _feed(self, cluster: Cluster, waiting: deque[PendingTask]) -> None:
        """Give every idle worker something, and ask for more workers while there is more to do."""
        if not waiting:
            return
        cluster.recruit(len(self._busy) + len(waiting), self._trainer)
        idle = [member for member in cluster.members if member.idle]
        while idle and waiting:
            errand = waiting.popleft()
            # Another node, if possible: where a worker has died, others may have that nobody has asked since.
            member = next((member for member in idle if member.node not in errand.lost), idle[0])
            idle.remove(member)
            cluster.ask(member, *self._order(cluster, errand))
            self._busy[member] = errand

    def _collect(self, cluster: Cluster, waiting: deque[PendingTask]) -> list[tuple[PendingTask, list[Answer]]]:
        """What has come; what a worker had that is lost waits again."""
        from offbeat.executors.cluster import Gone

        answered = []
        for member, answer in cluster.answers():
            errand = self._busy.pop(member)
            if not isinstance(answer, Gone):
                answered.append((errand, answer))
                continue
            errand.lost.append(member.node)
            if len(errand.lost) >= TRIES:
                _, job = errand.tasks[0]
                raise OffbeatError(
                    f"{TRIES} workers of the Ray cluster were lost over the same jobs, the first of them client "
                    f"{job.client}'s from version {job.version}; the last one: {answer.why}"
                )
            waiting.appendleft(errand)
        return answered

    def _order(self, cluster: Cluster, errand: PendingTask) -> tuple[Any, ...]:
        """What `Trainer.train` is called with."""
        lent: dict[int, int] = {}  # by identity: the place among the tensors that go along
        references: list[Any] = []

        def lend(tensor: Tensor) -> int:
            if id(tensor) not in self._lent:
                self._lent[id(tensor)] = tensor, cluster.put(_array(tensor))
            if id(tensor) not in lent:
                lent[id(tensor)] = len(references)
                references.append(self._lent[id(tensor)][1])
            return lent[id(tensor)]

        order = []
        for item in (runtime.item(job) for runtime, job in errand.tasks):
            job = parts(item.job)
            x, extra = lend(job.pop("x")), {name: lend(value) for name, value in job.pop("extra").items()}
            order.append(Parts(item.rule, job, x, extra, _arrays(item.client_state)))
        return order, plan(errand.tasks), *references

    def _outcomes(self, errand: PendingTask, answers: Sequence[Answer]) -> list[TrainingOutcome]:
        """In memory of their own: a result in the object store would stay there for as long as an update lives."""

        def own(arrays: Mapping[str, Array]) -> State:
            return {name: torch.tensor(array, device=self.context.device) for name, array in arrays.items()}

        return [
            outcome(task, finite, torch.tensor(delta, device=self.context.device), own(sent), own(kept))
            for task, (finite, delta, sent, kept) in zip(errand.tasks, answers, strict=True)
        ]


def _convolves(context: TrainingContext) -> bool:
    """Whether the model is faster job by job: on a CPU, where stacked convolutions are slow."""
    convolutions = nn.Conv1d, nn.Conv2d, nn.Conv3d
    return context.device.type == "cpu" and any(isinstance(layer, convolutions) for layer in context.module.modules())


def _array(tensor: Tensor) -> Array:
    """In this form tensors are sent, and read where they lie in the object store."""
    return tensor.detach().cpu().numpy()


def _arrays(tensors: Mapping[str, Tensor]) -> dict[str, Array]:
    return {name: _array(tensor) for name, tensor in tensors.items()}


def _view(array: Array) -> Tensor:
    """The array as a tensor, where it lies, and never to be written to."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # "not writable"
        return torch.from_numpy(array)
