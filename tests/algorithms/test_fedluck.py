"""FedLuck's objective φ and its choice of k and δ."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import torch
from tests.support.updates import job, update

import offbeat as ob
from offbeat.algorithms.fedluck import best
from offbeat.algorithms.workload import Device
from offbeat.compression import TopK
from offbeat.data import Synthetic
from offbeat.environment import Constant, Devices
from offbeat.fedluck_objective import phi
from offbeat.models import LR
from offbeat.vectors import Layout


def test_phi_by_hand() -> None:
    """k = 10, δ = ¼, α = 0.2, β = 4, T̃ = 3, e = ½: ((2 + 1)/3)²·1.75 + 1 over 10·½."""
    assert phi(10, 0.25, 0.2, 4.0, 3.0) == pytest.approx((1.75 + 1) / 5)


def test_the_choice_is_the_smallest_phi_of_the_grid() -> None:
    for alpha, beta in ((0.6, 20.0), (0.15, 3.0), (0.01, 100.0)):
        k, delta = best(alpha, beta, 3.0)
        smallest = min(
            (float(phi(kk, d / 100, alpha, beta, 3.0)), kk, d / 100) for kk in range(2, 61) for d in range(1, 101)
        )
        assert (k, delta) == smallest[1:]


def test_slow_lines_compress_more_and_slow_processors_step_less() -> None:
    deltas = [best(0.2, beta, 3.0)[1] for beta in (1.0, 10.0, 100.0)]
    steps = [best(alpha, 5.0, 3.0)[0] for alpha in (0.05, 0.2, 1.0)]
    assert deltas == sorted(deltas, reverse=True)
    assert deltas[0] > deltas[-1]
    assert steps == sorted(steps, reverse=True)
    assert steps[0] > steps[-1]


def test_the_plan_counts_positions_as_the_codec_sends_them() -> None:
    """An update with as many positions as values takes twice the time, so the best plan compresses more."""
    k, delta = best(0.2, 20.0, 3.0, share=lambda rate: min(1.0, 2 * rate))
    smallest = min(
        (float(phi(kk, d / 100, 0.2, 20.0, 3.0, share=min(1.0, d / 50))), kk, d / 100)
        for kk in range(2, 61)
        for d in range(1, 101)
    )
    assert (k, delta) == smallest[1:]
    assert delta < best(0.2, 20.0, 3.0)[1]


def test_fixed_steps_or_a_fixed_rate() -> None:
    """The paper's ablations adapt one of the two."""
    assert best(0.2, 20.0, 3.0, steps=(7, 7))[0] == 7
    assert best(0.2, 20.0, 3.0, rates=(0.125, 0.125))[1] == 0.125
    assert best(0.2, 20.0, 3.0, rates=(0.3, 0.6))[1] == 0.3
    result = run(algorithm=ob.algorithms.FedLuck(min_rate=0.5, max_rate=0.5, min_steps=3, max_steps=3), rounds=3)
    assert result.summary["client_steps"] == 3 * result.summary["updates"]
    with pytest.raises(ob.ConfigError, match=r"min_rate: 0\.6 is above max_rate = 0\.5"):
        ob.algorithms.FedLuck(min_rate=0.6, max_rate=0.5)


def test_the_printed_exponent_hardly_ever_compresses() -> None:
    """With e = 1 a device that needs 20 s for an upload, seven periods, would still send everything."""
    assert best(0.2, 20.0, 3.0, exponent=1.0)[1] == 1.0
    assert best(0.2, 20.0, 3.0)[1] < 0.1


def run(**more: object) -> ob.Result:
    settings: dict[str, object] = {
        "data": Synthetic(examples=600, test_examples=100),
        "clients": 6,
        "model": LR(),
        "algorithm": ob.algorithms.FedLuck(),
        "client": ob.SGD(lr=0.05, batch_size=16, steps=5),
        "scheduler": ob.Periodic(concurrency=6, period=3.0),
        "environment": ob.Environment(
            delay=Devices(seconds_per_step=(0.6, 0.5, 0.4, 0.3, 0.2, 0.15), up=(100, 300, 500, 700, 900, 1000))
        ),
        "compression": ob.Compression(upload=TopK()),
        "rounds": 30,
    }
    return ob.run(**(settings | more))  # type: ignore[arg-type]


def test_every_device_uses_its_own_steps_and_rate(tmp_path: pathlib.Path) -> None:
    result = run(out=tmp_path / "r")
    log = np.load(tmp_path / "r/updates.npy")
    d = result.summary["parameters"]
    for client, (alpha, up) in enumerate(
        zip((0.6, 0.5, 0.4, 0.3, 0.2, 0.15), (100, 300, 500, 700, 900, 1000), strict=True)
    ):
        k, delta = best(alpha, 4 * d / up, 3.0, share=lambda rate: TopK().size(_layout(), rate) / (4 * d))
        own = log[log["client"] == client]
        assert (own["steps"] == k).all()
        expected = TopK().size(_layout(), delta)
        assert (own["bytes"] == expected).all()
        # The trip takes k·α and the time of the very bytes on the line (the download is at the default 4 MB/s).
        assert own["time"][0] - own["sent"][0] == pytest.approx(k * alpha + expected / up, rel=0.01)
    assert result.accuracy > 0.5


def _layout() -> Layout:
    return Layout.of(LR().build((32,), 10))


def test_fedluck_requires_known_devices() -> None:
    with pytest.raises(ob.ConfigError, match=r"algorithm\.alpha: unknown: set alpha"):
        run(environment=ob.Environment(delay=Constant()))
    assert (
        run(
            environment=ob.Environment(delay=Constant()),
            algorithm=ob.algorithms.FedLuck(alpha=(0.2,) * 6, beta=(4.0,) * 6),
        ).accuracy
        > 0.5
    )
    with pytest.raises(ob.ConfigError, match=r"algorithm\.beta: 2 values for 6 clients"):
        run(algorithm=ob.algorithms.FedLuck(alpha=(0.2,) * 6, beta=(4.0, 1.0)))


def test_a_period_without_arrivals_keeps_x_and_counts_as_a_version() -> None:
    result = run(
        algorithm=ob.algorithms.FedLuckFixed(),
        scheduler=ob.Periodic(concurrency=6, period=0.01),
        rounds=20,
        evaluation=1,
    )
    assert result.summary["rounds"] == 20
    assert result.summary["virtual_seconds"] == pytest.approx(0.2)
    assert len({m["loss"] for m in result.evaluations}) == 1


def test_clients_are_weighted_by_their_examples_on_request() -> None:
    for kind in (ob.algorithms.FedLuckFixed, ob.algorithms.FedLuck):
        for weighted, expected in ((False, 2.0), (True, 2.5)):
            algorithm = kind(weighted=weighted)
            algorithm.start(torch.zeros(1), clients=2)
            for client, examples in enumerate((10, 30)):
                sent = job(client, client, 0, algorithm.x)
                algorithm.receive(sent, update(sent, torch.tensor([1.0 + 2 * client]), examples))
            algorithm.step()
            assert algorithm.x.item() == expected


def test_fedcompass_makes_unequal_clients_arrive_together() -> None:
    """A client twice as slow does half the steps, so all trips take the time of the fastest one's Q_max steps."""
    rule = ob.algorithms.FedCompass(min_steps=2, max_steps=40)
    profile = [(0.1, 1.0), (0.2, 1.0), (0.4, 1.0), (10.0, 1.0)]
    devices = [Device(client, 4, 5, profile_of=profile.__getitem__) for client in range(4)]
    assert [rule.workload(device).steps for device in devices] == [40, 20, 10, 2]
    speeds = (0.1, 0.2, 0.4, 0.8, 0.5, 0.1)
    result = run(
        algorithm=rule,
        scheduler=ob.Buffered(concurrency=6, buffer=6),
        environment=ob.Environment(delay=Devices(seconds_per_step=speeds, up=(1e9,) * 6, down=(1e9,) * 6)),
        rounds=10,
    )
    assert result.summary["virtual_seconds"] == pytest.approx(10 * 4.0, rel=0.01)
    assert result.summary["staleness_max"] == 0
    with pytest.raises(ob.ConfigError, match="min_steps: 9 is above max_steps = 3"):
        ob.algorithms.FedCompass(min_steps=9, max_steps=3)
