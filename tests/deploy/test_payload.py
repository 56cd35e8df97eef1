"""Tests of offbeat.payload: what the server decodes is what the client encoded."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from offbeat.compression import CODECS
from offbeat.messages import Job, Update
from offbeat.payload import WireError, decode_update, encode_update, pack, sealed, unpack
from offbeat.server.validation import UpdateValidator
from offbeat.vectors import Layout

LAYOUT = Layout(("w", "b"), (torch.Size((30, 10)), torch.Size((10,))))


def make_job(x: torch.Tensor) -> Job:
    return Job(id=7, client=2, version=3, x=x, steps=5, seed=2**63 + 11, rate=0.5)


@given(st.dictionaries(st.text(max_size=5), st.binary(max_size=40), max_size=4), st.integers(0, 2**70))
def test_unpack_inverts_pack(parts: dict[str, bytes], number: int) -> None:
    head, found = unpack(pack({"job": number}, parts))
    assert head == {"job": number}
    assert found == parts


@given(st.binary(max_size=60))
def test_random_bytes_are_refused(body: bytes) -> None:
    with pytest.raises(WireError):
        unpack(body)


@pytest.mark.parametrize("body", [b"\x02\0\0\0[]", b'\x10\0\0\0{"parts":{"a":"x"}}', b'\x0c\0\0\0{"parts":17}'])
def test_heads_of_the_wrong_type_are_refused(body: bytes) -> None:
    with pytest.raises(WireError):
        unpack(sealed(body))


@pytest.mark.parametrize("name", CODECS)
def test_decoding_inverts_encoding(name: str) -> None:
    codec, rng = CODECS[name](), torch.Generator().manual_seed(0)
    x, delta = (torch.randn(LAYOUT.dim, generator=rng) for _ in range(2))
    job = make_job(x)
    update = Update(job=7, client=2, version=3, delta=delta, steps=5, examples=40, wire_bytes=0, extra={"c": x})
    payload = encode_update(update, codec, LAYOUT, job)
    decoded = decode_update(payload, codec, LAYOUT, job)
    assert torch.equal(decoded.delta, codec.carry(delta, LAYOUT, job.seed))
    assert torch.equal(decoded.extra["c"], x)
    assert (decoded.steps, decoded.examples, decoded.wire_bytes) == (5, 40, len(payload))
    head = len(payload) - codec.size(LAYOUT) - 4 * LAYOUT.dim
    assert 0 < head < 200, "the payload is the encoded update and a small head"
    for other in (make_job(x[:-1]), Job(8, 2, 3, x, 5, 0), Job(7, 2, 4, x, 5, 0)):
        for_other = decode_update(payload, codec, LAYOUT, other)
        assert UpdateValidator().examine(other, for_other, 0, other.x, {"c": LAYOUT.dim}, True) in {
            "wrong-job",
            "wrong-size",
        }
    with pytest.raises(WireError, match="checksum"):
        decode_update(payload[:-1], codec, LAYOUT, job)
