"""The two forms of an encoded update, a tensor in simulation and bytes in a deployment, agree."""

from __future__ import annotations

import pytest
import torch

from offbeat.client.encoder import RESIDUAL, UpdateEncoder
from offbeat.client.state import ClientState
from offbeat.compression import QSGD, Codec, Compression, RandomK, Raw, Sign, TopK, Uniform
from offbeat.messages import Job, Update
from offbeat.payload import decode_update, unpack
from offbeat.random import key
from offbeat.vectors import Layout

LAYOUT = Layout(("w", "b"), (torch.Size((9, 4)), torch.Size((4,))))
CODECS: list[Codec] = [
    Raw(),
    TopK(rate=0.1),
    TopK(rate=0.1, scope="global"),
    RandomK(rate=0.25, unbiased=False),
    QSGD(bits=4),
    Sign(),
    Uniform(bits=4),
]


def encoder(codec: Codec, error_feedback: bool) -> UpdateEncoder:
    compression = Compression(upload=codec, error_feedback=error_feedback)
    return UpdateEncoder(compression, LAYOUT, ClientState([RESIDUAL]))


def jobs(codec: Codec) -> list[tuple[Job, torch.Tensor]]:
    """Return several jobs of two clients with their Δ; an adjustable codec gets a rate per job."""
    rng = torch.Generator().manual_seed(0)
    found = []
    for number in range(8):
        rate = 0.3 if codec.adjustable and number % 2 else None
        job = Job(number, number % 2, 0, torch.zeros(LAYOUT.dim), 1, key(number), compression_rate=rate)
        found.append((job, torch.randn(LAYOUT.dim, generator=rng)))
    return found


@pytest.mark.parametrize("error_feedback", [False, True])
@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_bytes_decode_to_the_tensor_of_the_simulation(codec: Codec, error_feedback: bool) -> None:
    simulated, deployed = encoder(codec, error_feedback), encoder(codec, error_feedback)
    for job, delta in jobs(codec):
        expected = simulated.to_tensor(job, delta)
        update = Update(job.id, job.client, 0, delta, 1, 1, 0)
        payload = deployed.to_bytes(job, update)
        assert torch.equal(decode_update(payload, codec, LAYOUT, job).delta, expected)
        stored, kept = (one.state.get(RESIDUAL, job.client) for one in (deployed, simulated))
        if error_feedback:
            assert stored is not None
            assert kept is not None
            assert torch.equal(stored, kept)
        else:
            assert stored is kept is None


@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_the_payload_has_the_stated_size(codec: Codec) -> None:
    one = encoder(codec, error_feedback=True)
    for job, delta in jobs(codec):
        _, parts = unpack(one.to_bytes(job, Update(job.id, job.client, 0, delta, 1, 1, 0)))
        assert len(parts["delta"]) == one.upload_bytes(job)


@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_encoding_never_changes_the_update(codec: Codec) -> None:
    one = encoder(codec, error_feedback=True)
    for job, delta in jobs(codec):
        before = delta.clone()
        one.to_tensor(job, delta)
        one.to_bytes(job, Update(job.id, job.client, 0, delta, 1, 1, 0))
        assert torch.equal(delta, before)
