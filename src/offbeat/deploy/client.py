"""A client's side: one job, trained on the data that the client has."""

from __future__ import annotations

import dataclasses
import importlib
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from torch import Tensor

from offbeat.clients import BUFFERS
from offbeat.compression import Compression
from offbeat.data import Dataset, Federated, data_dir
from offbeat.deploy.wire import UPDATE, Flat, raw_array
from offbeat.engine import Evaluator, Work
from offbeat.engine.executors import Sequential
from offbeat.errors import ConfigError
from offbeat.experiments.experiment import Experiment
from offbeat.messages import Job, Update
from offbeat.payload import encode_update

# What a client keeps between two jobs lies in its Flower context under these names, with what it kept before the last.
KEPT, BEFORE, LAST = "offbeat.kept", "offbeat.before", "offbeat.last"


class Client:
    """What one node needs to answer: the experiment's model, rule and code, and the node's own data."""

    def __init__(self, experiment: Experiment, node: dict[str, Any]) -> None:
        data = own_data(experiment, node)
        module = experiment.module(data.dataset)
        self.compression = experiment.compression
        self.work = Work(
            module, data, experiment.client, torch.device(experiment.device), Compression(), experiment.precision,
            experiment.data.augment,
        )  # fmt: skip
        self.wire = Flat(self.work.layout, experiment.compression)
        self.batch_size = experiment.evaluation.batch_size

    def train(self, message: Message, context: Context) -> Message:
        asked = self.wire.job(message.content)
        steps = asked.steps or self.work.steps(0)
        x = asked.x.to(self.work.device)
        extra = {name: value.to(self.work.device) for name, value in asked.extra.items()}
        job = dataclasses.replace(asked, client=0, steps=steps, x=x, extra=extra)
        self._recall(context)
        started = time.monotonic()
        (update,) = Sequential(self.work).train([job])
        payload = self._coded(dataclasses.replace(update, job=asked.id), asked)
        self._keep(context)
        seconds = time.monotonic() - started
        numbers = MetricRecord({"num-examples": update.examples, "steps": steps, "seconds": seconds})
        arrays = ArrayRecord({"payload": raw_array(payload)})
        return Message(RecordDict({UPDATE: arrays, "metrics": numbers}), reply_to=message)

    def evaluate(self, message: Message) -> Message:
        """The model on the client's own data."""
        job, data = self.wire.job(message.content), self.work.data
        has = data.indices(0)
        own = dataclasses.replace(data.dataset, test_x=data.dataset.x[has], test_y=data.dataset.y[has])
        work = Work(
            self.work.module, dataclasses.replace(data, dataset=own), self.work.rule, self.work.device,
            precision=self.work.precision,
        )  # fmt: skip
        accuracy, loss = Evaluator(work, self.batch_size)(job.x, job.extra.get(BUFFERS))()
        numbers = MetricRecord({"num-examples": len(own.test_y), "accuracy": accuracy, "loss": loss})
        return Message(RecordDict({"metrics": numbers}), reply_to=message)

    def _coded(self, update: Update, job: Job) -> bytes:
        """The update's bytes; with error feedback what the code costs is added to the next one."""
        codec, kept = self.compression.upload, self.work.kept["error"]
        if not self.compression.error_feedback:
            return encode_update(update, codec, self.work.layout, job)
        delta = update.delta + kept[0] if 0 in kept else update.delta
        payload = encode_update(dataclasses.replace(update, delta=delta), codec, self.work.layout, job)
        kept[0] = delta - codec.carry(delta, self.work.layout, job.seed, job.compression_rate)
        return payload

    def _recall(self, context: Context) -> None:
        work, state = self.work, context.state
        work.undo.clear()
        for name, value in self._vectors(state, KEPT).items():
            work.kept[name][0] = value
        if LAST in state.config_records:
            before = self._vectors(state, BEFORE)
            work.undo[0] = int(str(state.config_records[LAST]["job"])), {name: before.get(name) for name in work.kept}

    def _keep(self, context: Context) -> None:
        kept = {name: rows[0] for name, rows in self.work.kept.items() if 0 in rows}
        if not kept:
            return
        context.state[KEPT] = _arrays(kept)
        if 0 in self.work.undo:
            last, before = self.work.undo[0]
            context.state[BEFORE] = _arrays({name: value for name, value in before.items() if value is not None})
            context.state[LAST] = ConfigRecord({"job": last})

    def _vectors(self, state: RecordDict, record: str) -> dict[str, Tensor]:
        arrays = state.array_records.get(record, ArrayRecord())
        return {name: torch.from_numpy(a.numpy().copy()).to(self.work.device) for name, a in arrays.items()}


def _arrays(vectors: Mapping[str, Tensor]) -> ArrayRecord:
    return ArrayRecord({name: Array(value.cpu().numpy()) for name, value in vectors.items()})


def own_data(experiment: Experiment, node: dict[str, Any]) -> Federated:
    """What the node has: made by its function `data = "module:function"`, or its part of the experiment's data."""
    if "data" in node:
        dataset = _made(str(node["data"]))
        return Federated.of(dataset, [np.arange(len(dataset.y))])
    if "partition-id" not in node:
        raise ConfigError("the node's config has neither data nor partition-id", key="node-config")
    whole = experiment.data.load(data_dir(node.get("data-dir")), experiment.seed)
    part = int(node["partition-id"]) % whole.clients
    return Federated.of(whole.dataset, [whole.indices(part)])


def _made(name: str) -> Dataset:
    module, _, function = name.partition(":")
    try:
        made = getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{name!r}: {error}; expected module:function", key="data") from error
    if not isinstance(made, Dataset):
        raise ConfigError(f"{name} returned {type(made).__name__}, not a Dataset (see offbeat.from_arrays)", key="data")
    return made
