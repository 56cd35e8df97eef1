"""The `ray` executor: workers of a Ray cluster, on the cores or the GPUs of many machines.

A worker has the model and the data, which each node receives once. It trains a stack of jobs as `vectorized` does, or
job by job as `sequential` does if the model cannot be stacked or, on a CPU, has convolutions. Each version of x is put
into the object store once.

The jobs of one call are split into as many stacks as the cluster had workers when the run began, even after a resume
on another cluster. So workers that die or join change who trains a stack, but no bit of its result.
"""

from __future__ import annotations

import importlib.util
import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from offbeat.client.context import TrainingContext
from offbeat.client.rules import State
from offbeat.client.runtime import ClientRuntime
from offbeat.client.training import Trained
from offbeat.errors import ConfigError, first_line
from offbeat.executors.base import BULK_BYTES, Task
from offbeat.executors.pooled import Backend, PendingTask, Pooled, WorkerLost
from offbeat.executors.probe import why_not_stackable
from offbeat.executors.ray_trainer import (
    Array,
    RemoteItem,
    RemoteResult,
    RemoteTrainer,
    WorkerSetup,
    as_array,
    as_arrays,
)
from offbeat.executors.vectorized import height, plan, stacks
from offbeat.messages import parts

if TYPE_CHECKING:
    from offbeat.executors.cluster import Cluster, RayWorker

STACKED_JOBS_PER_WORKER = 256  # trained in one call
SINGLE_JOBS_PER_WORKER = 4  # few, since they must end soon after Ctrl-C


def missing() -> str | None:
    """Return what to do if Ray is not installed; None if it is."""
    return None if importlib.util.find_spec("ray") else "Ray is not installed: pip install 'offbeat[ray]'."


class RayBackend(Backend["RayWorker", list[RemoteResult]]):
    """Workers of a Ray cluster: one per core or, with device = "cuda", one per GPU. They start when there is work.

    Args:
        context: Model, data and device of the workers.
        stacked: Whether workers train stacks of jobs.
    """

    name = "workers of the Ray cluster"
    attempts = 4

    def __init__(self, context: TrainingContext, stacked: bool) -> None:
        self.context, self.stacked = context, stacked
        self.cluster: Cluster | None = None
        self._trainer: Any = None  # reference to a packed trainer in the object store
        self._stored: dict[int, tuple[Tensor, Any]] = {}  # by identity: the tensor, kept alive, and its reference

    def started(self) -> Cluster:
        """Return the cluster; join or start one if necessary."""
        if self.cluster is None:
            from offbeat.executors.cluster import Cluster

            self.cluster = Cluster("GPU" if self.context.device.type == "cuda" else "CPU")
            try:
                self._trainer = self.cluster.put((RemoteTrainer, WorkerSetup.of(self.context, self.stacked)))
            except (pickle.PicklingError, TypeError, AttributeError, ValueError) as error:
                cause = first_line(error.__cause__ or error.__context__ or error)  # without Ray's own explanations
                raise ConfigError(
                    f"'ray' cannot send the model to other processes: {cause}. Use 'sequential'.", key="executor"
                ) from error
        return self.cluster

    def prepare(self, tasks: Sequence[Task]) -> None:
        """Join or start the cluster."""
        self.started()

    def close(self) -> None:
        """End the workers, and the cluster if this process has started it."""
        self._stored.clear()
        self._trainer = None
        if self.cluster is not None:
            cluster, self.cluster = self.cluster, None
            cluster.close()

    def idle_worker(self, pending: PendingTask, outstanding: int) -> RayWorker | None:
        """Request more workers while there is work for them; return an idle one, if possible on another node.

        Where one worker was lost, others may be lost whose death nobody has noticed yet.
        """
        cluster = self.started()
        cluster.request_workers(outstanding, self._trainer)
        idle = [worker for worker in cluster.workers if worker.idle]
        avoided = {lost.node for lost in pending.losses}
        return next((worker for worker in idle if worker.node not in avoided), idle[0] if idle else None)

    def submit(self, worker: RayWorker, pending: PendingTask) -> WorkerLost | None:
        """Call the worker's trainer; a loss is noticed when the reply is due."""
        self.started().submit(worker, *self._request(pending))
        return None

    def _request(self, pending: PendingTask) -> tuple[Any, ...]:
        """Return the arguments of `RemoteTrainer.train`."""
        cluster = self.started()
        indices: dict[int, int] = {}  # by identity of a tensor
        references: list[Any] = []

        def store(tensor: Tensor) -> int:
            if id(tensor) not in self._stored:
                self._stored[id(tensor)] = tensor, cluster.put(as_array(tensor))
            if id(tensor) not in indices:
                indices[id(tensor)] = len(references)
                references.append(self._stored[id(tensor)][1])
            return indices[id(tensor)]

        items = []
        for item in (runtime.item(job) for runtime, job in pending.tasks):
            job = parts(item.job)
            x, extra = store(job.pop("x")), {name: store(value) for name, value in job.pop("extra").items()}
            items.append(RemoteItem(item.rule, job, x, extra, as_arrays(item.client_state)))
        return items, plan(pending.tasks), *references

    def replies(self) -> Iterator[tuple[RayWorker, list[RemoteResult] | WorkerLost]]:
        """Wait for replies, losses and new workers."""
        return self.started().replies()

    def results(self, pending: PendingTask, reply: list[RemoteResult]) -> list[Trained]:
        """Copy the results: in the object store they would stay as long as an update lives."""

        def copied(arrays: Mapping[str, Array]) -> State:
            return {name: torch.tensor(array, device=self.context.device) for name, array in arrays.items()}

        return [
            Trained(finite, copied({"delta": delta})["delta"], copied(extra), copied(state), loss)
            for finite, delta, extra, state, loss in reply
        ]

    def finish(self, tasks: Sequence[Task]) -> None:
        """Drop stored tensors that these tasks did not use; the next tasks may use the others."""
        used = {id(tensor) for _, job in tasks for tensor in (job.x, *job.extra.values())}
        self._stored = {identity: stored for identity, stored in self._stored.items() if identity in used}


class Ray(Pooled):
    """Trains jobs on a Ray cluster, in stacks where the model allows it.

    Attributes:
        stacked: Whether workers train stacks of jobs.
        rows: Maximum number of jobs per stack.
        parts: Number of stacks into which the jobs of a call are split; None before the first call.

    Args:
        runtime: The client runtime of the run.
    """

    backend: RayBackend

    def __init__(self, runtime: ClientRuntime) -> None:
        context = runtime.context
        if reason := missing():
            raise ConfigError(reason, key="executor")
        self.stacked = not _convolves_on_cpu(context) and why_not_stackable(context) is None
        super().__init__(runtime, RayBackend(context, self.stacked))
        self.rows = height(context, self.bulk)
        self.parts: int | None = None
        self._set_bulk(1)

    @property
    def poolable(self) -> bool:
        """Return False: the workers already share the cores."""
        return False

    def _set_bulk(self, workers: int) -> None:
        jobs = (STACKED_JOBS_PER_WORKER if self.stacked else SINGLE_JOBS_PER_WORKER) * workers
        self.bulk = max(workers, min(jobs, BULK_BYTES // (4 * max(1, self.context.layout.dim))))

    def state_dict(self) -> dict[str, Any]:
        """Return the clients' state and the number of stacks per call."""
        return super().state_dict() | {"parts": self.parts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a checkpoint; stacks stay the same on a cluster of another size."""
        super().load_state_dict(state)
        self.split(state["parts"])

    def split(self, parts: int | None) -> None:
        """Split the jobs of each call into this number of stacks; None leaves it to the cluster."""
        self.parts = parts
        if parts is not None:
            self._set_bulk(parts)

    def groups(self, tasks: Sequence[Task]) -> list[list[int]]:
        """Return the positions of the tasks of each stack."""
        if self.parts is None:
            self.split(max(1, self.backend.started().size()))
        assert self.parts is not None
        return stacks(tasks, self.rows, self.parts) if self.stacked else super().groups(tasks)


def _convolves_on_cpu(context: TrainingContext) -> bool:
    """Return whether the model has convolutions on a CPU, where stacking makes them slower."""
    convolutions = nn.Conv1d, nn.Conv2d, nn.Conv3d
    return context.device.type == "cpu" and any(isinstance(layer, convolutions) for layer in context.module.modules())
