"""Jobs and updates as Flower messages.

Flower transfers every array of a message as a separate object, with several requests each. offbeat's own client
therefore receives one array, the encoded x, which all jobs of a version share (objects are addressed by their content,
so it is uploaded once), and returns one array, the *payload*. Client apps that know nothing of offbeat receive and
return the named arrays of a state dict.
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
JOB_KEY = "offbeat-job"  # id, version and seed of a job, in the config of a message to any client app
CACHED_VERSIONS = 4  # versions whose encoded model is kept
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # PyTorch's names of BatchNorm statistics


def raw_array(body: bytes) -> Array:
    """Return bytes as an array of Flower, without a serialization format."""
    return Array(dtype="uint8", shape=(len(body),), stype="offbeat", data=body)


class WireFormat(ABC):
    """How jobs and updates are represented in the messages of one kind of client app."""

    layout: Layout
    codec: Codec

    @abstractmethod
    def content(self, job: Job) -> RecordDict:
        """Return the content of the message that carries a job."""

    @abstractmethod
    def extract_payload(self, job: Job, reply: RecordDict) -> tuple[bytes, int]:
        """Return the update in a reply as a payload, and the size of the arrays that were received in bytes."""

    def decode_reply(self, job: Job, reply: RecordDict) -> tuple[Update, bytes]:
        """Return the update in a reply and its payload.

        Raises:
            WireError: The reply contains no valid update.
        """
        try:
            payload, size = self.extract_payload(job, reply)
            return dataclasses.replace(self.decode_payload(job, payload), wire_bytes=size), payload
        except WireError:
            raise
        except Exception as error:  # a client can send anything
            raise WireError(f"the reply cannot be decoded: {error!r}") from error

    def decode_payload(self, job: Job, payload: bytes) -> Update:
        """Return the update in a payload."""
        return decode_update(payload, self.codec, self.layout, job)

    def message(self, job: Job, node: int, ttl: float) -> Message:
        """Return the message that carries a job to a node."""
        return Message(self.content(job), node, MessageType.TRAIN, ttl=ttl, group_id=str(job.version))


class FlatFormat(WireFormat):
    """Messages of offbeat's own client: flat, encoded vectors.

    Args:
        layout: Layout of x.
        compression: Codecs of both directions.
    """

    def __init__(self, layout: Layout, compression: Compression) -> None:
        self.layout, self.codec, self.download = layout, compression.upload, compression.download
        self._encoded: dict[int, bytes] = {}  # the latest versions of x

    def outgoing(self, x: Tensor, version: int) -> Tensor:
        """Return x as clients decode it; its encoded form is kept for the jobs of this version."""
        if self.download.lossless:
            return x
        body = self.download.encode(x, self.layout, key("download", version))
        self._encoded = {v: b for v, b in self._encoded.items() if v > version - CACHED_VERSIONS} | {version: body}
        return self.download.decode(body, self.layout).to(x.device)

    def content(self, job: Job) -> RecordDict:
        """Return the encoded x, auxiliary vectors and the fields of the job."""
        fields: dict[str, Any] = {
            "id": job.id, "client": job.client, "version": job.version, "steps": job.steps, "seed": str(job.seed),
            "rate": job.rate, "encoded": job.version in self._encoded,
        }  # fmt: skip
        if job.compression_rate is not None:
            fields["compression_rate"] = job.compression_rate
        if job.last_accepted_job is not None:
            fields["last_accepted_job"] = job.last_accepted_job
        bodies = {"x": self._encoded.get(job.version) or raw(job.x)}
        bodies |= {name: raw(value) for name, value in job.extra.items()}
        arrays = ArrayRecord({name: raw_array(body) for name, body in bodies.items()})
        return RecordDict({MODEL: arrays, JOB: ConfigRecord(fields)})

    def job(self, content: RecordDict) -> Job:
        """Return the job in a message: the inverse of `content`."""
        fields: dict[str, Any] = dict(content.config_records[JOB])
        arrays = content.array_records[MODEL]
        body = arrays["x"].data
        x = self.download.decode(body, self.layout) if fields["encoded"] else vector(body)
        extra = {name: vector(array.data) for name, array in arrays.items() if name != "x"}
        return Job(
            id=int(fields["id"]), client=int(fields["client"]), version=int(fields["version"]), x=x,
            steps=int(fields["steps"]), seed=int(fields["seed"]), rate=float(fields["rate"]), extra=extra,
            compression_rate=fields.get("compression_rate"), last_accepted_job=fields.get("last_accepted_job"),
        )  # fmt: skip

    def extract_payload(self, job: Job, reply: RecordDict) -> tuple[bytes, int]:
        """Return the payload in a reply of offbeat's client."""
        if (body := _payload_of(reply)) is None:
            raise WireError(f"the reply has no record {UPDATE!r}; does the node run offbeat's client app?")
        return body, len(body)


class StateDictFormat(WireFormat):
    """Messages of any Flower app that receives the arrays of a model and returns them trained, with `num-examples`.

    Δ is the difference between the returned and the sent arrays. Integers and BatchNorm's running statistics are not
    part of x: they are sent in addition and averaged without weights.

    Args:
        arrays: The initial model.
        config: Config that every training message carries.
        compression: Codec of clients that use `coded_reply`.
    """

    def __init__(self, arrays: ArrayRecord, config: ConfigRecord, compression: Compression) -> None:
        values = {name: array.numpy() for name, array in arrays.items()}
        if not values:
            raise WireError("initial_arrays is empty; pass the arrays of the model")
        buffers = [n for n, a in values.items() if n.endswith(STATISTICS) or not np.issubdtype(a.dtype, np.floating)]
        self.names, self.config = list(values), config
        self.dtypes = {name: a.dtype for name, a in values.items()}
        self.layout = _layout(values, [name for name in values if name not in buffers])
        self.buffer_layout = _layout(values, buffers)
        self.codec = compression.upload
        self.x = self._flatten(values, self.layout)
        self.buffers = self._flatten(values, self.buffer_layout) if buffers else None

    def _flatten(self, values: Mapping[str, Any], layout: Layout) -> Tensor:
        return torch.cat(
            [torch.from_numpy(np.array(values[name], dtype=np.float32)).flatten() for name in layout.names]
        )

    def arrays(self, x: Tensor, buffers: Tensor | None) -> ArrayRecord:
        """Return a model under the names and types of the initial arrays."""
        views = self.layout.unflatten(x.detach().cpu())
        if buffers is not None:
            views |= self.buffer_layout.unflatten(buffers.detach().cpu())
        return ArrayRecord({name: Array(views[name].numpy().astype(self.dtypes[name])) for name in self.names})

    def content(self, job: Job) -> RecordDict:
        """Return the arrays of the model and the config of Flower's own strategies."""
        identity = f"{job.id} {job.version} {job.seed}"
        config = ConfigRecord({**self.config, "server-round": job.version + 1, JOB_KEY: identity})
        return RecordDict({"arrays": self.arrays(job.x, job.extra.get(BUFFERS)), "config": config})

    def extract_payload(self, job: Job, reply: RecordDict) -> tuple[bytes, int]:
        """Return the payload in a reply, or make one of the arrays that it contains."""
        if (body := _payload_of(reply)) is not None:
            return body, len(body)
        arrays = next(iter(reply.array_records.values()), None)
        if arrays is None or set(arrays) != set(self.names):
            raise WireError(f"the reply has the arrays {sorted(arrays or ())}, expected {sorted(self.names)}")
        values = {name: arrays[name].numpy() for name in self.names}
        shapes = zip(
            (*self.layout.names, *self.buffer_layout.names), (*self.layout.shapes, *self.buffer_layout.shapes),
            strict=True,
        )  # fmt: skip
        for name, shape in shapes:
            if values[name].shape != tuple(shape):
                raise WireError(f"the array {name} has the shape {values[name].shape}, expected {tuple(shape)}")
        return self.encode(job, values, Raw(), metrics(reply)), arrays.count_bytes()

    def encode(self, job: Job, values: Mapping[str, Any], codec: Codec, reply_metrics: Mapping[str, Any]) -> bytes:
        """Return trained arrays as the payload of an update."""
        delta = self._flatten(values, self.layout) - job.x.cpu()
        extra = {BUFFERS: self._flatten(values, self.buffer_layout)} if self.buffers is not None else {}
        update = Update(
            job=job.id, client=job.client, version=job.version, delta=delta, steps=int(reply_metrics.get("steps", 1)),
            examples=int(reply_metrics.get("num-examples", 1)), wire_bytes=0, extra=extra,
        )  # fmt: skip
        return encode_update(update, codec, self.layout, job)


def coded_reply(message: Message, trained: ArrayRecord, numbers: MetricRecord, codec: Codec) -> Message:
    """Return a compressed reply to a training message of `AsyncStrategy`: the encoded change of the arrays.

    The strategy must use the same codec, as `compression=Compression(upload=codec)`.

    Args:
        message: The training message.
        trained: The trained arrays, under the names of those in the message.
        numbers: Metrics of the reply, with `num-examples`.
        codec: Encodes the change.
    """
    content = message.content
    wire = StateDictFormat(content.array_records["arrays"], ConfigRecord(), Compression(upload=codec))
    job_id, version, seed = map(int, str(content.config_records["config"][JOB_KEY]).split())
    job = Job(id=job_id, client=0, version=version, x=wire.x, steps=0, seed=seed)
    payload = wire.encode(job, {name: array.numpy() for name, array in trained.items()}, codec, numbers)
    arrays = ArrayRecord({"payload": raw_array(payload)})
    return Message(RecordDict({UPDATE: arrays, "metrics": numbers}), reply_to=message)


def metrics(reply: RecordDict) -> dict[str, Any]:
    """Return the metrics of a reply."""
    return dict(next(iter(reply.metric_records.values()), {}))


def _payload_of(reply: RecordDict) -> bytes | None:
    """Return the payload of a client that knows offbeat, or None."""
    return reply.array_records[UPDATE]["payload"].data if UPDATE in reply.array_records else None


def _layout(values: Mapping[str, Any], names: list[str]) -> Layout:
    return Layout(tuple(names), tuple(torch.Size(values[name].shape) for name in names))
