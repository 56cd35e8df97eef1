"""A server that anyone can send to: whatever the bytes are, they are an update, are refused, or are a `WireError`."""

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
BESIDE = {"c": LAYOUT.dim}
EACH = 17_000  # payloads a code: more than 100,000 in all


def taken(payload: bytes, codec: str) -> str:
    """What becomes of a payload; anything but these is a crash."""
    try:
        update = decode_update(payload, CODECS[codec](), LAYOUT, JOB)
    except WireError:
        return "unreadable"
    verdict = UpdateValidator(max_norm=1e3).examine(JOB, update, 0, X, BESIDE, True)
    if isinstance(verdict, Update):
        assert verdict.delta.shape == X.shape
        assert bool(torch.isfinite(verdict.delta).all())
        return "taken"
    assert verdict in REASONS
    return verdict


def resealed(rng: random.Random, body: bytes) -> bytes:
    """Damaged behind a checksum that is right, as somebody would send it who means it."""
    return sealed(damaged(rng, body[4:]))


def damaged(rng: random.Random, body: bytes) -> bytes:
    """Bytes changed, cut, doubled, put in or made up."""
    kind = rng.randrange(6)
    if kind == 0:
        return rng.randbytes(rng.randrange(200))
    changed = bytearray(body)
    if kind == 1:
        return bytes(changed[: rng.randrange(len(changed))])
    if kind == 2:
        place = rng.randrange(len(changed))
        changed[place:place] = rng.randbytes(rng.randrange(1, 9))
        return bytes(changed)
    if kind == 3:
        begin, end = sorted(rng.randrange(len(changed)) for _ in range(2))
        return bytes(changed + changed[begin:end])
    for _ in range(rng.randrange(1, 6)):
        place = rng.randrange(len(changed))
        changed[place] = rng.randrange(256) if kind == 4 else changed[place] ^ (1 << rng.randrange(8))
    return bytes(changed)


@pytest.mark.parametrize("codec", CODECS)
def test_no_bytes_stop_the_server(codec: str) -> None:
    body = encode_update(GOOD, CODECS[codec](), LAYOUT, JOB)
    assert taken(body, codec) == "taken"
    rng = random.Random(codec)
    with np.errstate(all="ignore"):
        seen = {taken(resealed(rng, body), codec) for _ in range(EACH)}
    assert {"unreadable", "wrong-job", "taken"} <= seen


@pytest.mark.parametrize("codec", CODECS)
def test_what_a_network_has_damaged_is_not_read(codec: str) -> None:
    """A flipped bit of an exponent would be an update that is finite, of the right size, and ruins x."""
    body, rng = encode_update(GOOD, CODECS[codec](), LAYOUT, JOB), random.Random(codec)
    changed = [other for _ in range(1000) if (other := damaged(rng, body)) != body]
    assert {taken(other, codec) for other in changed} == {"unreadable"}


@settings(max_examples=100, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda v: st.lists(v) | st.dictionaries(st.text(), v),
    ),
    st.binary(max_size=100),
)
def test_no_head_stops_the_server(head: object, rest: bytes) -> None:
    text = json.dumps(head).encode()
    for body in (sealed(struct.pack("<I", len(text)), text, rest), sealed(struct.pack("<I", 2**31), text, rest)):
        assert taken(body, "none") in {"unreadable", "wrong-job", "invalid-counts", "wrong-extra", "wrong-size"}


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
def test_heads_that_lie(head: object) -> None:
    text = json.dumps(head).encode()
    assert taken(sealed(struct.pack("<I", len(text)), text, bytes(88)), "none") == "unreadable"


def test_a_head_that_goes_deep() -> None:
    text = b"[" * 60_000
    assert taken(sealed(struct.pack("<I", len(text)), text), "none") == "unreadable"


@pytest.mark.parametrize("positions", [[0, 0, 1], [2, 1, 0], [-1, 0, 1], [0, 1, 300], [0, 1, 2**31 - 1]])
def test_positions_that_make_no_sense(positions: list[int]) -> None:
    """Twice, not rising, before the first, behind the last."""
    layout, codec = Layout(("a",), (torch.Size((300,)),)), TopK(rate=0.01)
    good = codec.encode(torch.arange(300.0), layout, 0)
    assert len(good) == codec.size(layout)
    body = good[:5] + np.array(positions, np.int32).tobytes() + good[17:]
    with pytest.raises(ValueError, match="make no sense"):
        codec.decode(body, layout)


def test_a_code_for_more_than_there_is() -> None:
    """A small payload that would become a large vector, and one of more values than x has."""
    codec = TopK(rate=1.0)
    large = Layout(("a",), (torch.Size((LAYOUT.dim * 50,)),))
    body = encode_update(
        Update(job=7, client=2, version=3, delta=torch.ones(large.dim), steps=5, examples=4, wire_bytes=0),
        codec,
        large,
        JOB,
    )
    assert taken(body, "top-k") == "unreadable"
