"""The payload of an update: what a client sends, as bytes.

A checksum of all that follows, the length of the head, the head (a little JSON), and the vectors one behind the other.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from offbeat.compression import Codec, Raw
from offbeat.errors import OffbeatError
from offbeat.messages import Job, Update
from offbeat.vectors import Layout

HEAD = 1 << 16  # bytes of a head, at most


class WireError(OffbeatError):
    """A reply that makes no sense."""


def pack(head: Mapping[str, Any], parts: Mapping[str, bytes]) -> bytes:
    """A small JSON head and some byte strings as one."""
    text = json.dumps({**head, "parts": {name: len(body) for name, body in parts.items()}}).encode()
    return sealed(struct.pack("<I", len(text)) + text, *parts.values())


def sealed(*bodies: bytes) -> bytes:
    """Byte strings as one behind their checksum: what a network or a disk has damaged on the way is not read."""
    checksum = 0
    for body in bodies:
        checksum = zlib.crc32(body, checksum)
    return b"".join((struct.pack("<I", checksum), *bodies))


def unpack(payload: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The inverse of `pack`."""
    try:
        checksum, length = struct.unpack_from("<II", payload)
        if checksum != zlib.crc32(memoryview(payload)[4:]):
            raise ValueError("its checksum is another: damaged on the way, or of another version of offbeat")
        if length > HEAD:
            raise ValueError(f"a head of {length} bytes")
        head: dict[str, Any] = json.loads(payload[8 : 8 + length])
        place, parts = 8 + length, {}
        for name, size in head.pop("parts").items():
            if size < 0:
                raise ValueError(f"a part of {size} bytes")
            parts[name] = payload[place : place + size]
            place += size
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WireError(f"not a payload of offbeat: {error}") from error
    if place != len(payload):
        raise WireError(f"a payload of {len(payload)} bytes, {place} expected")
    return head, parts


def encode_update(update: Update, codec: Codec, layout: Layout, job: Job) -> bytes:
    """An update as its client sends it; `update.delta` is not coded yet."""
    head = {"job": update.job, "version": update.version, "steps": update.steps, "examples": update.examples}
    if isinstance(codec, Raw):
        head["raw"] = True
    delta = codec.encode(update.delta, layout, job.seed, job.compression_rate)
    return pack(head, {"delta": delta, **{name: raw(value) for name, value in update.extra.items()}})


def decode_update(payload: bytes, codec: Codec, layout: Layout, job: Job) -> Update:
    """The update of a job as its client describes it; whether it may be used is the gate's to say."""
    head, parts = unpack(payload)
    try:
        codec, body = Raw() if head.get("raw") else codec, parts.pop("delta")
        if len(body) != (expected := codec.size(layout, job.compression_rate)):  # also what would decode to too much
            raise ValueError(f"Δ in {len(body)} bytes, {expected} expected")
        delta = codec.decode(body, layout).to(job.x.device)
        extra = {name: vector(body).to(job.x.device) for name, body in parts.items()}
        number, version, steps, examples = (int(head[name]) for name in ("job", "version", "steps", "examples"))
    except Exception as error:  # what a client sends may be anything
        raise WireError(f"the update cannot be decoded: {error!r}") from error
    return Update(
        job=number, client=job.client, version=version, delta=delta, steps=steps,
        examples=examples, wire_bytes=len(payload), extra=extra,
    )  # fmt: skip


def raw(vector: Tensor) -> bytes:
    """Numbers as they are, of four bytes each."""
    return vector.detach().cpu().to(torch.float32).numpy().tobytes()


def vector(body: bytes) -> Tensor:
    """The inverse."""
    return torch.frombuffer(bytearray(body), dtype=torch.float32)
