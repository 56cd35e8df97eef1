"""Jobs and updates as Flower's messages.

Flower moves every array of a message as an object of its own and by several requests, so offbeat's own clients get one
array, the coded x, which all jobs of a version share (objects go by their content: it is uploaded once), and send one
array back, the *payload*.  Clients that know nothing of offbeat get and send the arrays of a state dict by their names.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from torch import Tensor

from offbeat.compression import Codec, Compression, Raw
from offbeat.messages import Job, Update
from offbeat.payload import WireError, decode_update, encode_update, raw, vector
from offbeat.random import key
from offbeat.server.extensions import BUFFERS
from offbeat.vectors import Layout

MODEL, JOB, UPDATE = "offbeat.model", "offbeat.job", "offbeat.update"
ASKED = "offbeat-job"  # number, version and seed of a job, in the config of a message to any app
KEPT = 4  # versions whose coded model is kept
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # how torch names them


def raw_array(body: bytes) -> Array:
    """Bytes as an array of Flower's, without a format of their own."""
    return Array(dtype="uint8", shape=(len(body),), stype="offbeat", data=body)


# What client apps understand ----------------------------------------------------------------------------------------


class Dialect(ABC):
    """How a kind of client app is spoken to."""

    layout: Layout
    codec: Codec

    @abstractmethod
    def content(self, job: Job) -> RecordDict:
        """What goes down."""

    @abstractmethod
    def payload(self, job: Job, reply: RecordDict) -> tuple[bytes, int]:
        """A reply's update as a payload, and the bytes of the arrays that really came."""

    def understand(self, job: Job, reply: RecordDict) -> tuple[Update, bytes]:
        """A reply's update, with the bytes that really came, and its payload."""
        try:
            payload, size = self.payload(job, reply)
            return dataclasses.replace(self.read(job, payload), wire_bytes=size), payload
        except WireError:
            raise
        except Exception as error:  # what a client sends may be anything
            raise WireError(f"the reply makes no sense: {error!r}") from error

    def read(self, job: Job, payload: bytes) -> Update:
        return decode_update(payload, self.codec, self.layout, job)

    def message(self, job: Job, node: int, ttl: float) -> Message:
        return Message(self.content(job), node, MessageType.TRAIN, ttl=ttl, group_id=str(job.version))


class Flat(Dialect):
    """offbeat's own client."""

    def __init__(self, layout: Layout, compression: Compression) -> None:
        self.layout, self.codec, self.download = layout, compression.upload, compression.download
        self._models: dict[int, bytes] = {}  # the last versions as they travel

    def outgoing(self, x: Tensor, version: int) -> Tensor:
        """x as the clients will see it; what travels is kept for the jobs of this version."""
        if isinstance(self.download, Raw):
            return x
        body = self.download.encode(x, self.layout, key("download", version))
        self._models = {v: b for v, b in self._models.items() if v > version - KEPT} | {version: body}
        return self.download.decode(body, self.layout).to(x.device)

    def content(self, job: Job) -> RecordDict:
        told: dict[str, Any] = {
            "id": job.id, "client": job.client, "version": job.version, "steps": job.steps, "seed": str(job.seed),
            "rate": job.rate, "coded": job.version in self._models,
        }  # fmt: skip
        if job.compression_rate is not None:
            told["compression_rate"] = job.compression_rate
        if job.last_accepted_job is not None:
            told["last_accepted_job"] = job.last_accepted_job
        parts = {"x": self._models.get(job.version) or raw(job.x)}
        parts |= {name: raw(value) for name, value in job.extra.items()}
        arrays = ArrayRecord({name: raw_array(body) for name, body in parts.items()})
        return RecordDict({MODEL: arrays, JOB: ConfigRecord(told)})

    def job(self, content: RecordDict) -> Job:
        """What a client is asked: the inverse."""
        told: dict[str, Any] = dict(content.config_records[JOB])
        arrays = content.array_records[MODEL]
        body = arrays["x"].data
        x = self.download.decode(body, self.layout) if told["coded"] else vector(body)
        extra = {name: vector(array.data) for name, array in arrays.items() if name != "x"}
        return Job(
            id=int(told["id"]), client=int(told["client"]), version=int(told["version"]), x=x,
            steps=int(told["steps"]), seed=int(told["seed"]), rate=float(told["rate"]),
            compression_rate=told.get("compression_rate"), extra=extra, last_accepted_job=told.get("last_accepted_job"),
        )  # fmt: skip

    def payload(self, job: Job, reply: RecordDict) -> tuple[bytes, int]:
        if (body := _flat_update(reply)) is None:
            raise WireError(f"no record {UPDATE!r}: is the client app offbeat's?")
        return body, len(body)


class Named(Dialect):
    """Any Flower app that is sent the arrays of a model and returns them trained, with `num-examples`.

    Δ is what has come back minus what was sent.  Integers and BatchNorm's running statistics are no part of x: they go
    down beside it and are averaged plainly.
    """

    def __init__(self, arrays: ArrayRecord, config: ConfigRecord, compression: Compression) -> None:
        values = {name: array.numpy() for name, array in arrays.items()}
        if not values:
            raise WireError("initial_arrays is empty")
        beside = [n for n, a in values.items() if n.endswith(STATISTICS) or not np.issubdtype(a.dtype, np.floating)]
        self.names, self.config = list(values), config
        self.dtypes = {name: a.dtype for name, a in values.items()}
        self.layout = _layout(values, [name for name in values if name not in beside])
        self.buffers = _layout(values, beside)
        self.codec = compression.upload
        self.x = self._flat(values, self.layout)
        self.b = self._flat(values, self.buffers) if beside else None

    def _flat(self, values: Mapping[str, Any], layout: Layout) -> Tensor:
        parts = [torch.from_numpy(np.array(values[name], dtype=np.float32)).flatten() for name in layout.names]
        return torch.cat(parts)

    def arrays(self, x: Tensor, b: Tensor | None) -> ArrayRecord:
        """A model under its own names."""
        views = self.layout.unflatten(x.detach().cpu())
        if b is not None:
            views |= self.buffers.unflatten(b.detach().cpu())
        return ArrayRecord({name: Array(views[name].numpy().astype(self.dtypes[name])) for name in self.names})

    def content(self, job: Job) -> RecordDict:
        asked = f"{job.id} {job.version} {job.seed}"
        config = ConfigRecord({**self.config, "server-round": job.version + 1, ASKED: asked})
        return RecordDict({"arrays": self.arrays(job.x, job.extra.get(BUFFERS)), "config": config})

    def payload(self, job: Job, reply: RecordDict) -> tuple[bytes, int]:
        if (body := _flat_update(reply)) is not None:
            return body, len(body)
        arrays = next(iter(reply.array_records.values()), None)
        if arrays is None or set(arrays) != set(self.names):
            raise WireError(f"arrays {sorted(arrays or ())} came back, {sorted(self.names)} were sent")
        values = {name: arrays[name].numpy() for name in self.names}
        for name, shape in zip((*self.layout.names, *self.buffers.names), (*self.layout.shapes, *self.buffers.shapes),
                               strict=True):  # fmt: skip
            if values[name].shape != tuple(shape):
                raise WireError(f"{name} came back as {values[name].shape}, not {tuple(shape)}")
        return self.encode(job, values, Raw(), metrics(reply)), arrays.count_bytes()

    def encode(self, job: Job, values: Mapping[str, Any], codec: Codec, numbers: Mapping[str, Any]) -> bytes:
        """Trained arrays as the payload of an update."""
        delta = self._flat(values, self.layout) - job.x.cpu()
        extra = {BUFFERS: self._flat(values, self.buffers)} if self.b is not None else {}
        update = Update(
            job=job.id, client=job.client, version=job.version, delta=delta, steps=int(numbers.get("steps", 1)),
            examples=int(numbers.get("num-examples", 1)), wire_bytes=0, extra=extra,
        )  # fmt: skip
        return encode_update(update, codec, self.layout, job)


def coded_reply(message: Message, trained: ArrayRecord, numbers: MetricRecord, codec: Codec) -> Message:
    """What a client app under `AsyncStrategy` may return instead of its arrays: the coded change of them.

    The strategy must have been given the same code, as `compression=Compression(upload=codec)`.
    """
    content = message.content
    named = Named(content.array_records["arrays"], ConfigRecord(), Compression(upload=codec))
    number, version, seed = map(int, str(content.config_records["config"][ASKED]).split())
    job = Job(id=number, client=0, version=version, x=named.x, steps=0, seed=seed)
    payload = named.encode(job, {name: array.numpy() for name, array in trained.items()}, codec, numbers)
    arrays = ArrayRecord({"payload": raw_array(payload)})
    return Message(RecordDict({UPDATE: arrays, "metrics": numbers}), reply_to=message)


def _flat_update(reply: RecordDict) -> bytes | None:
    """The payload of a client that knows offbeat."""
    return reply.array_records[UPDATE]["payload"].data if UPDATE in reply.array_records else None


def _layout(values: Mapping[str, Any], names: list[str]) -> Layout:
    return Layout(tuple(names), tuple(torch.Size(values[name].shape) for name in names))


def metrics(reply: RecordDict) -> dict[str, Any]:
    """The numbers that came with a reply."""
    return dict(next(iter(reply.metric_records.values()), {}))
