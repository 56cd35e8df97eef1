"""The payload of an update: the bytes that a client sends.

A payload consists of a checksum of everything that follows, the length of the header, the header (a small JSON object),
and the vectors one after another.
"""

from __future__ import annotations

import json
import math
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

MAX_HEADER_BYTES = 1 << 16


class WireError(OffbeatError):
    """A payload that cannot be decoded."""


def pack(header: Mapping[str, Any], parts: Mapping[str, bytes]) -> bytes:
    """Return a payload with a JSON header and named byte strings."""
    text = json.dumps({**header, "parts": {name: len(body) for name, body in parts.items()}}).encode()
    return sealed(struct.pack("<I", len(text)) + text, *parts.values())


def sealed(*bodies: bytes) -> bytes:
    """Return byte strings joined and preceded by their checksum, which reveals damage by a network or a disk."""
    checksum = 0
    for body in bodies:
        checksum = zlib.crc32(body, checksum)
    return b"".join((struct.pack("<I", checksum), *bodies))


def unpack(payload: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the header and the byte strings of a payload.

    Raises:
        WireError: The payload is damaged or was not made by `pack`.
    """
    try:
        checksum, length = struct.unpack_from("<II", payload)
        if checksum != zlib.crc32(memoryview(payload)[4:]):
            raise ValueError("the checksum does not match: damaged in transit, or sent by another version of offbeat")
        if length > MAX_HEADER_BYTES:
            raise ValueError(f"the header has {length} bytes, at most {MAX_HEADER_BYTES} are allowed")
        header: dict[str, Any] = json.loads(payload[8 : 8 + length])
        position, parts = 8 + length, {}
        for name, size in header.pop("parts").items():
            if size < 0:
                raise ValueError(f"a part has {size} bytes")
            parts[name] = payload[position : position + size]
            position += size
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WireError(f"not a valid payload: {error}") from error
    if position != len(payload):
        raise WireError(f"the payload has {len(payload)} bytes, {position} expected")
    return header, parts


def encode_update(update: Update, codec: Codec, layout: Layout, job: Job) -> bytes:
    """Return the payload of an update whose Δ is not encoded yet."""
    header: dict[str, Any] = {
        "job": update.job,
        "version": update.version,
        "steps": update.steps,
        "examples": update.examples,
    }
    if math.isfinite(update.loss):
        header["loss"] = update.loss
    if codec.lossless:
        header["raw"] = True
    delta = codec.encode(update.delta, layout, job.seed, job.compression_rate)
    return pack(header, {"delta": delta, **{name: raw(value) for name, value in update.extra.items()}})


def decode_update(payload: bytes, codec: Codec, layout: Layout, job: Job) -> Update:
    """Return the update that a payload describes; `UpdateValidator` decides whether it is accepted.

    Raises:
        WireError: The payload cannot be decoded.
    """
    header, parts = unpack(payload)
    try:
        codec, body = Raw() if header.get("raw") else codec, parts.pop("delta")
        if len(body) != (expected := codec.size(layout, job.compression_rate)):  # before it is decoded
            raise ValueError(f"Δ has {len(body)} bytes, {expected} expected")
        delta = codec.decode(body, layout).to(job.x.device)
        extra = {name: vector(body).to(job.x.device) for name, body in parts.items()}
        number, version, steps, examples = (int(header[name]) for name in ("job", "version", "steps", "examples"))
        loss = float(header.get("loss", math.nan))
    except Exception as error:  # a client may send anything
        raise WireError(f"the update cannot be decoded: {error!r}") from error
    return Update(
        job=number, client=job.client, version=version, delta=delta, steps=steps,
        examples=examples, wire_bytes=len(payload), extra=extra, loss=loss,
    )  # fmt: skip


def raw(vector: Tensor) -> bytes:
    """Return a vector as float32 bytes."""
    return vector.detach().cpu().to(torch.float32).numpy().tobytes()


def vector(body: bytes) -> Tensor:
    """Return the vector of float32 bytes."""
    return torch.frombuffer(bytearray(body), dtype=torch.float32)
