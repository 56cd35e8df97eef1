"""Fuzzing of update payloads: any bytes are either a valid update, rejected, or a `WireError`, never a crash."""

from __future__ import annotations

import json
import random
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from offbeat.compression import CODECS, TopK
from offbeat.messages import Job, Update
from offbeat.payload import WireError, decode_update, encode_update, sealed
from offbeat.server.validation import REASONS, UpdateValidator
from offbeat.vectors import Layout

LAYOUT = Layout(("a", "b"), (torch.Size((3, 5)), torch.Size((7,))))
X = torch.zeros(LAYOUT.dim)
JOB = Job(7, 2, 3, X, 5, 11)
GOOD = Update(
    job=7, client=2, version=3, delta=torch.linspace(-1, 1, LAYOUT.dim), steps=5, examples=40, wire_bytes=0,
    extra={"c": torch.ones(LAYOUT.dim)},
)  # fmt: skip
AUXILIARY_SIZES = {"c": LAYOUT.dim}
PAYLOADS = 17_000  # per codec: more than 100,000 in total


def verdict(payload: bytes, codec: str) -> str:
    """Return "unreadable", "accepted" or the reason for the rejection; anything else is a crash."""
    try:
        update = decode_update(payload, CODECS[codec](), LAYOUT, JOB)
    except WireError:
        return "unreadable"
    result = UpdateValidator(max_norm=1e3).examine(JOB, update, 0, X, AUXILIARY_SIZES, True)
    if isinstance(result, Update):
        assert result.delta.shape == X.shape
        assert bool(torch.isfinite(result.delta).all())
        return "accepted"
    assert result in REASONS
    return result


def resealed(rng: random.Random, body: bytes) -> bytes:
    """Damage a payload and correct its checksum, as an attacker would."""
    return sealed(damaged(rng, body[4:]))


def damaged(rng: random.Random, body: bytes) -> bytes:
    """Change, truncate, duplicate, insert or invent bytes."""
    kind = rng.randrange(6)
    if kind == 0:
        return rng.randbytes(rng.randrange(200))
    result = bytearray(body)
    if kind == 1:
        return bytes(result[: rng.randrange(len(result))])
    if kind == 2:
        position = rng.randrange(len(result))
        result[position:position] = rng.randbytes(rng.randrange(1, 9))
        return bytes(result)
    if kind == 3:
        start, end = sorted(rng.randrange(len(result)) for _ in range(2))
        return bytes(result + result[start:end])
    for _ in range(rng.randrange(1, 6)):
        position = rng.randrange(len(result))
        result[position] = rng.randrange(256) if kind == 4 else result[position] ^ (1 << rng.randrange(8))
    return bytes(result)


@pytest.mark.parametrize("codec", CODECS)
def test_damaged_payloads_do_not_crash_the_server(codec: str) -> None:
    body = encode_update(GOOD, CODECS[codec](), LAYOUT, JOB)
    assert verdict(body, codec) == "accepted"
    rng = random.Random(codec)
    with np.errstate(all="ignore"):
        seen = {verdict(resealed(rng, body), codec) for _ in range(PAYLOADS)}
    assert {"unreadable", "wrong-job", "accepted"} <= seen


@pytest.mark.parametrize("codec", CODECS)
def test_transmission_errors_are_detected(codec: str) -> None:
    """Without a checksum, a flipped bit of an exponent would be a finite update of the right size that ruins x."""
    body, rng = encode_update(GOOD, CODECS[codec](), LAYOUT, JOB), random.Random(codec)
    changed = [other for _ in range(1000) if (other := damaged(rng, body)) != body]
    assert {verdict(other, codec) for other in changed} == {"unreadable"}


@settings(max_examples=100, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda v: st.lists(v) | st.dictionaries(st.text(), v),
    ),
    st.binary(max_size=100),
)
def test_arbitrary_heads_do_not_crash_the_server(head: object, rest: bytes) -> None:
    text = json.dumps(head).encode()
    for body in (sealed(struct.pack("<I", len(text)), text, rest), sealed(struct.pack("<I", 2**31), text, rest)):
        assert verdict(body, "none") in {"unreadable", "wrong-job", "invalid-counts", "wrong-extra", "wrong-size"}


@pytest.mark.parametrize(
    "head",
    [
        {"parts": {"delta": -4}},
        {"parts": {"delta": 10**30}},
        {"parts": {"delta": 88.0}},
        {"parts": ["delta"]},
        {"job": "7", "version": None, "steps": 1, "examples": 1, "parts": {"delta": 88}},
        {"job": 7, "version": 3, "steps": 1e400, "examples": 1, "raw": True, "parts": {"delta": 88}},
    ],
)
def test_inconsistent_heads_are_unreadable(head: object) -> None:
    text = json.dumps(head).encode()
    assert verdict(sealed(struct.pack("<I", len(text)), text, bytes(88)), "none") == "unreadable"


def test_a_deeply_nested_head_is_unreadable() -> None:
    text = b"[" * 60_000
    assert verdict(sealed(struct.pack("<I", len(text)), text), "none") == "unreadable"


@pytest.mark.parametrize("positions", [[0, 0, 1], [2, 1, 0], [-1, 0, 1], [0, 1, 300], [0, 1, 2**31 - 1]])
def test_invalid_positions_are_refused(positions: list[int]) -> None:
    """Positions may be repeated, not increasing, negative or too large."""
    layout, codec = Layout(("a",), (torch.Size((300,)),)), TopK(rate=0.01)
    good = codec.encode(torch.arange(300.0), layout, 0)
    assert len(good) == codec.size(layout)
    body = good[:5] + np.array(positions, np.int32).tobytes() + good[17:]
    with pytest.raises(ValueError, match="are invalid"):
        codec.decode(body, layout)


def test_a_payload_for_a_larger_model_is_unreadable() -> None:
    """A small payload must not decode to a vector with more elements than x."""
    codec = TopK(rate=1.0)
    large = Layout(("a",), (torch.Size((LAYOUT.dim * 50,)),))
    body = encode_update(
        Update(job=7, client=2, version=3, delta=torch.ones(large.dim), steps=5, examples=4, wire_bytes=0),
        codec,
        large,
        JOB,
    )
    assert verdict(body, "top-k") == "unreadable"
