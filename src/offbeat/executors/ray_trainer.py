"""The part of the `ray` executor that runs on a worker of the cluster."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from offbeat.client.context import Precision, TrainingContext
from offbeat.client.personalization import Personalization
from offbeat.client.rules import ClientRule
from offbeat.client.runtime import ClientRuntime
from offbeat.client.training import Plan, Trained, WorkItem
from offbeat.data import Augment, Dataset, PartitionedDataset
from offbeat.executors.base import arithmetic
from offbeat.executors.sequential import one_by_one
from offbeat.executors.vectorized import Vectorized
from offbeat.executors.workers import retain_freed_memory
from offbeat.messages import Job
from offbeat.tasks import Task
from offbeat.trees import Tree, map_leaves, map_tensors

Array = NDArray[Any]
RemoteResult = tuple[bool, Array, dict[str, Array], dict[str, Array], float]  # `Trained`, as NumPy arrays


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """Everything a worker needs to train any job.

    Attributes:
        module: The model.
        template: The dataset with a single example.
        x: Inputs of all examples.
        y: Labels of all examples.
        task: What is learned.
        rule: The client rule of a run; items carry their own.
        device: Type of the worker's device.
        precision: Precision of the training.
        augment: Augmentation of the inputs.
        stacked: Whether jobs are trained in stacks.
        personalization: What stays on the clients.
    """

    module: nn.Module
    template: Dataset
    x: Tree
    y: Tree
    task: Task
    rule: ClientRule
    device: str
    precision: Precision
    augment: Augment | None
    stacked: bool
    personalization: Personalization

    @classmethod
    def of(cls, context: TrainingContext, stacked: bool) -> WorkerSetup:
        """Return the setup of workers that train like a context."""
        data = context.data.dataset
        # One example, cloned: pickling a view would take the whole tensor along.
        x, y = (map_tensors(lambda t: t[:1].clone(), tree) for tree in (data.x, data.y))
        template = dataclasses.replace(
            data, x=x, y=y, test_x=None, test_y=None, owners=None, test_owners=None, table=None
        )
        return cls(
            copy.deepcopy(context.module).cpu(), template, map_tensors(as_array, data.x),
            map_tensors(as_array, data.y), context.task, context.rule,
            context.device.type, context.precision, context.augment, stacked,
            context.personalization,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class RemoteItem:
    """A `WorkItem` as it is sent to a worker.

    Attributes:
        rule: The client rule.
        job: Fields of the job without its tensors.
        x: Index of the job's model among the tensors that are sent along.
        extra: Indices of the job's auxiliary vectors.
        client_state: The client's state.
    """

    rule: ClientRule
    job: dict[str, Any]
    x: int
    extra: dict[str, int]
    client_state: dict[str, Array]


class RemoteTrainer:
    """Trains work items in a worker.

    Args:
        setup: Model, data and device.
    """

    def __init__(self, setup: WorkerSetup) -> None:
        if setup.device == "cpu":
            torch.set_num_threads(1)
        retain_freed_memory()
        x, y = (map_leaves(as_tensor, tree) for tree in (setup.x, setup.y))
        data = dataclasses.replace(setup.template, x=x, y=y)
        # The partition is a placeholder: plans of batches come with the work items.
        unpartitioned = PartitionedDataset(data, np.zeros(1, dtype=np.int64), np.array([0, 1]))
        self.context = TrainingContext(
            setup.module, unpartitioned, setup.rule, torch.device(setup.device),
            precision=setup.precision, augment=setup.augment, task=setup.task,
            personalization=setup.personalization,
        )  # fmt: skip
        self.context.module.train()
        self.local_work = Vectorized(ClientRuntime(self.context)).local_work if setup.stacked else self._one_by_one

    def _one_by_one(self, items: Sequence[WorkItem], plan: Plan) -> Iterator[Trained]:
        return one_by_one(self.context, items, plan)

    def train(self, remote_items: Sequence[RemoteItem], plan: Plan, *arrays: Array) -> list[RemoteResult]:
        """Train the items.

        Args:
            remote_items: The items.
            plan: Their batches.
            arrays: Models and auxiliary vectors to which the items refer.
        """
        device = self.context.device
        tensors = [as_tensor(array).to(device) for array in arrays]
        items = []
        for item in remote_items:
            job = Job(**item.job, x=tensors[item.x], extra={name: tensors[i] for name, i in item.extra.items()})
            state = {name: torch.tensor(array, device=device) for name, array in item.client_state.items()}
            items.append(WorkItem(item.rule, job, state))
        with arithmetic(self.context):
            trained = list(self.local_work(items, plan))
        return [
            (each.finite, as_array(each.delta), as_arrays(each.extra), as_arrays(each.client_state), each.loss)
            for each in trained
        ]


def as_array(tensor: Tensor) -> Array:
    """Return a tensor as an array, which Ray sends without a copy and maps from the object store."""
    return tensor.detach().cpu().numpy()


def as_arrays(tensors: Mapping[str, Tensor]) -> dict[str, Array]:
    """Return named tensors as arrays."""
    return {name: as_array(tensor) for name, tensor in tensors.items()}


def as_tensor(array: Array) -> Tensor:
    """Return an array of the object store as a tensor on the same memory, which must not be written to."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # "not writable"
        return torch.from_numpy(array)
