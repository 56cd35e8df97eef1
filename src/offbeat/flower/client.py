"""The client side of a deployment: train jobs with the client runtime on the data of a Flower node."""

from __future__ import annotations

import dataclasses
import importlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from torch import Tensor

from offbeat.client.context import TrainingContext
from offbeat.client.evaluation import ClientModels, Evaluator
from offbeat.client.runtime import ClientRuntime
from offbeat.client.tested import tested_models
from offbeat.client.training import Trained, train_job
from offbeat.data import Dataset, PartitionedDataset, data_dir
from offbeat.errors import ConfigError
from offbeat.flower.wire import UPDATE, FlatFormat, raw_array
from offbeat.messages import Job
from offbeat.runs.experiment import Experiment
from offbeat.server.extensions import BUFFERS
from offbeat.trees import map_tensors

# Records of the node's Flower context: the client's state, its state before the last job, and that job's id.
STATE, BEFORE, LAST = "offbeat.state", "offbeat.state-before", "offbeat.last-job"


class NodeClient:
    """Handles the messages of one node.

    Args:
        experiment: Model, rule and codecs.
        node: The node config, which says where the data of the node is.
    """

    def __init__(self, experiment: Experiment, node: dict[str, Any]) -> None:
        data = node_data(experiment, node)
        self.context = experiment.context(data)
        self.runtime = ClientRuntime(self.context, experiment.compression)
        self.wire = FlatFormat(self.context.split.shared, experiment.compression)
        self.batch_size = experiment.evaluation.batch_size

    def train(self, message: Message, context: Context) -> Message:
        """Train a job and reply with its encoded update."""
        requested = self.wire.job(message.content)
        job = self._local(requested)
        self._load_state(context, job.client)
        started = time.monotonic()
        update, payload = self.runtime.train_to_bytes(job)
        self._save_state(context, job.client)
        seconds = time.monotonic() - started
        metrics = MetricRecord(
            {"num-examples": update.examples, "steps": job.steps, "seconds": seconds, "train-loss": update.loss}
        )
        arrays = ArrayRecord({"payload": raw_array(payload)})
        return Message(RecordDict({UPDATE: arrays, "metrics": metrics}), reply_to=message)

    def _local(self, job: Job) -> Job:
        """Return the job on this node's device, for client 0: the client runtime knows only the data of this node."""
        device = self.context.device
        extra = {name: value.to(device) for name, value in job.extra.items()}
        return dataclasses.replace(
            job, client=0, steps=job.steps or self.context.steps(0), x=job.x.to(device), extra=extra
        )

    def evaluate(self, message: Message, state: Context) -> Message:
        """Evaluate a model on the data of the node, with the node's personal part if there is one."""
        job, data = self._local(self.wire.job(message.content)), self.context.data
        indices = data.indices(0)
        test_x, test_y = (map_tensors(lambda t: t[indices], tree) for tree in (data.dataset.x, data.dataset.y))
        local = dataclasses.replace(data.dataset, test_x=test_x, test_y=test_y, test_owners=None)
        context = TrainingContext(
            self.context.module, dataclasses.replace(data, dataset=local), self.context.rule, self.context.device,
            precision=self.context.precision, task=self.context.task, personalization=self.context.personalization,
        )  # fmt: skip
        evaluator = Evaluator(context, self.batch_size, owners=np.zeros(len(indices), dtype=np.int64))
        self._load_state(state, 0)
        models = self._models(job) if context.personalization.tests_clients else None
        found = evaluator(job.x, job.extra.get(BUFFERS), models)().metrics
        metrics = MetricRecord({"num-examples": evaluator.count, **found})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    def _models(self, job: Job) -> ClientModels:
        """Return the model of this node, fine-tuned if that is asked for."""
        steps = self.context.personalization.fine_tune_steps
        tested = dataclasses.replace(job, steps=steps)

        def train(tasks: Sequence[tuple[ClientRuntime, Job]]) -> Iterator[tuple[int, Trained]]:
            self.context.module.train()
            for place, (runtime, each) in enumerate(tasks):
                yield place, train_job(self.context, runtime.item(each), self.context.plan(each))

        return lambda clients: tested_models(self.runtime, [tested for _ in clients], train)

    def _load_state(self, context: Context, client: int) -> None:
        """Read the client's state from the node's Flower context."""
        state, records = self.runtime.state, context.state
        state.snapshots.clear()
        for name, value in self._vectors(records, STATE).items():
            state.set(name, client, value)
        if LAST in records.config_records:
            before = self._vectors(records, BEFORE)
            job = int(str(records.config_records[LAST]["job"]))
            state.snapshots[client] = job, {name: before.get(name) for name in state.rows}

    def _save_state(self, context: Context, client: int) -> None:
        """Write the client's state into the node's Flower context, with its state before the job for rollback."""
        state = self.runtime.state
        vectors = {name: rows[client] for name, rows in state.rows.items() if client in rows}
        if not vectors:
            return
        context.state[STATE] = _arrays(vectors)
        if client in state.snapshots:
            last, before = state.snapshots[client]
            context.state[BEFORE] = _arrays({name: value for name, value in before.items() if value is not None})
            context.state[LAST] = ConfigRecord({"job": last})

    def _vectors(self, records: RecordDict, name: str) -> dict[str, Tensor]:
        """Return the vectors of a record on this node's device."""
        arrays = records.array_records.get(name, ArrayRecord())
        device = self.context.device
        return {key: torch.from_numpy(array.numpy().copy()).to(device) for key, array in arrays.items()}


def _arrays(vectors: Mapping[str, Tensor]) -> ArrayRecord:
    return ArrayRecord({name: Array(value.cpu().numpy()) for name, value in vectors.items()})


def node_data(experiment: Experiment, node: dict[str, Any]) -> PartitionedDataset:
    """Return the data of a node.

    Args:
        experiment: The experiment whose data is partitioned among nodes that do not bring their own.
        node: The node config: `data` names a function that returns the data (`module:function`); otherwise
            `partition-id` selects a part of the experiment's data, which is cached in `data-dir`.

    Raises:
        ConfigError: The node config has neither, or `data` cannot be loaded.
    """
    if "data" in node:
        dataset = _load_dataset(str(node["data"]))
        return PartitionedDataset.of(dataset, [np.arange(len(dataset))])
    if "partition-id" not in node:
        raise ConfigError("set data or partition-id in the node config", key="node-config")
    whole = experiment.data.load(data_dir(node.get("data-dir")), experiment.seed)
    partition = int(node["partition-id"]) % whole.clients
    return PartitionedDataset.of(whole.dataset, [whole.indices(partition)])


def _load_dataset(name: str) -> Dataset:
    module, _, function = name.partition(":")
    try:
        dataset = getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{name!r}: {error}; expected module:function", key="data") from error
    if not isinstance(dataset, Dataset):
        raise ConfigError(
            f"{name} returned {type(dataset).__name__}, expected a Dataset (see offbeat.from_arrays)", key="data"
        )
    return dataset
