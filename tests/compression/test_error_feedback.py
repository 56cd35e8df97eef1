"""Error feedback: the compression error is sent later instead of being lost."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from offbeat.client.context import TrainingContext
from offbeat.client.rules import SGD
from offbeat.client.runtime import ClientRuntime
from offbeat.client.training import Trained
from offbeat.compression import QSGD, Codec, Compression, RandomK, Raw, Sign, TopK, Uniform
from offbeat.data import PartitionedDataset, from_arrays
from offbeat.errors import ConfigError
from offbeat.messages import Job
from offbeat.random import key

CODECS: list[Codec] = [
    Raw(),
    TopK(rate=0.1),
    TopK(rate=0.1, scope="global"),
    RandomK(rate=0.25, unbiased=False),
    QSGD(bits=4),
    Sign(),
    Uniform(bits=4),
]
EVERY = pytest.mark.parametrize("codec", CODECS, ids=repr)
CLIENTS = 3


def work(codec: Codec, error_feedback: bool = True) -> ClientRuntime:
    """Return a runtime with 20 parameters; nothing is trained, the updates are synthetic."""
    x, y = torch.zeros((6, 4)), torch.arange(6).remainder(4)
    data = PartitionedDataset.of(from_arrays(x, y, x, y), [[0, 1], [2, 3], [4, 5]])
    compression = Compression(upload=codec, error_feedback=error_feedback)
    return ClientRuntime(TrainingContext(nn.Linear(4, 4), data, SGD(), torch.device("cpu")), compression)


def send(to: ClientRuntime, client: int, number: int, delta: Tensor, rate: float | None = None) -> Tensor:
    """Return the Δ that the server decodes."""
    job = Job(
        id=number, client=client, version=0, x=torch.zeros(20), steps=1, seed=key(client, number), compression_rate=rate
    )
    result = to.finish(job, Trained(True, delta, {}, {}, 0.0))
    assert result.wire_bytes == to.compression.upload.size(to.context.layout, rate)
    return result.delta


@EVERY
def test_error_feedback_loses_nothing(codec: Codec) -> None:
    there, rng = work(codec), torch.Generator().manual_seed(0)
    fed, out = torch.zeros((CLIENTS, 20)).double(), torch.zeros((CLIENTS, 20)).double()
    for n in range(60):
        client, delta = n * 5 % 7 % CLIENTS, torch.randn(20, generator=rng)
        fed[client] += delta
        out[client] += send(there, client, n, delta, rate=None if n % 3 else 0.3)
        remaining = torch.stack(
            [there.state.rows["error"].get(i, torch.zeros(20)) for i in range(CLIENTS)]
        )  # one a client, and they do not mix
        torch.testing.assert_close(out + remaining, fed, rtol=0, atol=1e-4)


@EVERY
def test_without_error_feedback_no_residual_is_stored(codec: Codec) -> None:
    there, delta = work(codec, error_feedback=False), torch.randn(20, generator=torch.Generator().manual_seed(1))
    for n in range(3):
        expected = codec.carry(delta, there.context.layout, key(0, n))
        assert torch.equal(send(there, 0, n, delta), expected)
    assert there.state.rows["error"] == {}


def test_by_hand() -> None:
    """One of twenty entries travels; the rest is added the next time."""
    there, delta = work(TopK(rate=0.05, scope="global")), torch.zeros(20)
    delta[:3] = torch.tensor([3.0, -5.0, 4.0])
    assert send(there, 0, 0, delta)[:3].tolist() == [0, -5, 0]
    assert there.state.rows["error"][0][:3].tolist() == [3, 0, 4]
    assert send(there, 0, 1, delta)[:3].tolist() == [0, 0, 8], "4 + 4 is now the largest"
    assert there.state.rows["error"][0][:3].tolist() == [6, -5, 0]
    assert send(there, 1, 2, delta)[:3].tolist() == [0, -5, 0], "another client has its own"


def test_error_feedback_transmits_everything_in_the_end() -> None:
    """After one vector and nothing new, a tenth at a time transmits everything in ten updates."""
    there, delta = work(TopK(rate=0.1, scope="global")), torch.arange(1.0, 21.0)
    arrived = send(there, 0, 0, delta)
    for n in range(1, 10):
        assert not torch.equal(arrived, delta)
        arrived = arrived + send(there, 0, n, torch.zeros(20))
    assert torch.equal(arrived, delta)
    assert not there.state.rows["error"][0].any()


def test_the_error_stays_bounded() -> None:
    """A contraction with δ = k/d: ‖e‖ ≤ √(1−δ)/(1−√(1−δ)) · max‖Δ‖."""
    there, rng, limit = work(TopK(rate=0.25, scope="global")), torch.Generator().manual_seed(0), 0.75**0.5
    largest = 0.0
    for n in range(300):
        delta = torch.randn(20, generator=rng)
        largest = max(largest, float(delta.norm()))
        send(there, 0, n, delta)
        assert there.state.rows["error"][0].norm() <= limit / (1 - limit) * largest


def test_error_feedback_corrects_the_bias_of_sign() -> None:
    """Sign encodes (10, 1) as (5½, 5½); with error feedback the mean over many updates is right."""
    delta = torch.zeros(20)
    delta[:2] = torch.tensor([10.0, 1.0])
    with_it, without = (
        torch.stack([send(there, 0, n, delta) for n in range(1000)]).mean(dim=0)
        for there in (work(Sign()), work(Sign(), error_feedback=False))
    )
    assert (with_it - delta).abs().max() < 0.2
    assert (without - delta).abs().max() > 5


def test_the_updates_and_the_errors_do_not_share_memory() -> None:
    """A server that changes an update in place does not change what the client keeps."""
    there, delta = work(TopK(rate=0.1)), torch.arange(20.0)
    out = send(there, 0, 0, delta)
    error = there.state.rows["error"][0].clone()
    out.fill_(7.0)
    delta.fill_(9.0)
    assert torch.equal(there.state.rows["error"][0], error)


def test_error_feedback_with_unbiased_random_k_is_rejected() -> None:
    with pytest.raises(ConfigError):
        Compression(upload=RandomK(rate=0.1), error_feedback=True)
