"""Runs with private noise: reported and rejected settings, and ε against published values and a formula."""

from __future__ import annotations

import json
import logging
import math
import pathlib
import tomllib
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

import offbeat as ob
from offbeat.aggregation import Median, Private
from offbeat.cli import main
from offbeat.data import Synthetic
from offbeat.environment import ByLabel, Constant
from offbeat.runs import api, config, privacy
from offbeat.runs.data import Data
from offbeat.runs.experiment import Experiment


def experiment(**more: Any) -> Experiment:
    base: dict[str, Any] = {
        "data": Data(source=Synthetic(examples=300, test_examples=60, features=12, classes=3), clients=6),
        "algorithm": ob.FedBuff(aggregator=Private(clip=0.5, noise_multiplier=0.7)),
        "client": ob.SGD(lr=0.1, steps=3, batch_size=8),
        "scheduler": ob.Buffered(concurrency=4, buffer=2),
        "rounds": 12,
        "evaluation": ob.Evaluation(every=4),
    }
    return Experiment(**(base | more))


# ε --------------------------------------------------------------------------------------------------------------------


def delta_of(epsilon: float, sigma: float) -> float:
    """Balle and Wang, *Improving the Gaussian Mechanism for Differential Privacy*, ICML 2018, Theorem 8, for Δ = 1:
    δ = Φ(1/(2σ) − εσ) − e^ε Φ(−1/(2σ) − εσ).  Φ(−x) = erfc(x/√2)/2; the second term in logarithms, as e^ε is large.
    """
    a, b = 1 / (2 * sigma) - epsilon * sigma, 1 / (2 * sigma) + epsilon * sigma
    tail = math.erfc(b / math.sqrt(2)) / 2
    return math.erfc(-a / math.sqrt(2)) / 2 - (math.exp(epsilon + math.log(tail)) if tail else 0.0)


def epsilon_of(sigma: float, delta: float) -> float:
    """Invert the formula by bisection, since δ falls with ε."""
    low, high = 0.0, 1.0
    while delta_of(high, sigma) > delta:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle, sigma) > delta else (low, middle)
    return high


@pytest.mark.parametrize("z", [0.5, 1.0, 4.0, 10.0])
@pytest.mark.parametrize("spent", [1, 7, 40])
@pytest.mark.parametrize("delta", [1e-5, 1e-9])
def test_epsilon_is_that_of_the_gaussian_mechanism(z: float, spent: int, delta: float) -> None:
    pytest.importorskip("dp_accounting")
    assert privacy.epsilon(z, spent, delta) == pytest.approx(epsilon_of(z / math.sqrt(spent), delta), rel=1e-5)


@pytest.mark.parametrize("z", [1.0, 5.0])
@pytest.mark.parametrize("times", [1, 10])
def test_numerical_composition_gives_the_same_epsilon(z: float, times: int) -> None:
    """The library's accountant composes privacy-loss distributions step by step, discretized pessimistically."""
    accounting = pytest.importorskip("dp_accounting")
    accountant = accounting.pld.PLDAccountant()
    accountant.compose(accounting.GaussianDpEvent(z), times)
    composed = accountant.get_epsilon(1e-5)
    told = privacy.epsilon(z, times, 1e-5)
    assert told == pytest.approx(composed, rel=1e-3)


LN3 = math.log(3)


@pytest.mark.parametrize(
    ("z", "spent", "delta", "expected"),
    [
        (10.0, 1, 0.008751768145810, 0.1),
        (20.0, 4, 0.008751768145810, 0.1),  # four coordinates of sensitivity one: √4
        (10.0, 25, 0.004159742234000802, LN3),  # one of sensitivity five
        (1.0, 1, 0.10985556344445052, LN3),
        (1.0, 2, 0.26546844106038714, LN3),
    ],
)
def test_published_values(z: float, spent: int, delta: float, expected: float) -> None:
    """Values of another implementation: google/differential-privacy, go/noise/gaussian_noise_test.go."""
    pytest.importorskip("dp_accounting")
    assert privacy.epsilon(z, spent, delta) == pytest.approx(expected, rel=1e-9)


# What a run tells -----------------------------------------------------------------------------------------------------


def test_epsilon_over_time_is_that_of_the_most_frequent_client(tmp_path: pathlib.Path) -> None:
    """Recount from the update log: the updates of a step met the same version."""
    pytest.importorskip("dp_accounting")
    described = experiment(scheduler=ob.Continuous(concurrency=6, buffer=4))
    result = api.execute(described, out=tmp_path / "run")
    log = np.load(tmp_path / "run/updates.npy")
    met = log["version"] + log["staleness"]
    squares: dict[int, int] = {}
    expected = {0: 0}
    for step in range(12):
        clients, counts = np.unique(log["client"][(met == step) & (log["status"] == 0)], return_counts=True)
        assert counts.sum() == 4
        for client, n in zip(clients.tolist(), counts.tolist(), strict=True):
            squares[client] = squares.get(client, 0) + n * n
        expected[step + 1] = max(squares.values())
    assert max(squares.values()) > np.bincount(log["client"][log["status"] == 0]).max(), "somebody was in a step twice"
    for line in result.evaluations:
        assert line["epsilon"] == privacy.epsilon(0.7, expected[line["version"]], 1e-5)
    assert result.evaluations[0]["epsilon"] == 0
    assert result.summary["spent"] == expected[12]
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert (summary["epsilon"], summary["delta"]) == (result.evaluations[-1]["epsilon"], 1e-5)


def test_without_noise_there_is_no_epsilon() -> None:
    result = api.execute(experiment(algorithm=ob.FedBuff(aggregator=Private(noise_multiplier=0.0))))
    assert result.summary["epsilon"] is None
    assert all("epsilon" not in line for line in result.evaluations)
    assert "epsilon" not in api.execute(experiment(algorithm=ob.FedBuff())).summary


def test_without_the_has_accountant_it_runs_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    privacy._has_accountant.cache_clear()
    try:
        with caplog.at_level(logging.WARNING, logger="offbeat"):
            result = api.execute(experiment())
    finally:
        privacy._has_accountant.cache_clear()
    assert [record.message for record in caplog.records] == [privacy.INSTALL]
    assert result.summary["epsilon"] is None
    assert result.summary["spent"] > 0, "enough to tell it later"


def test_the_command_line_reports_epsilon(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("dp_accounting")
    (tmp_path / "my.toml").write_text(config.dump(experiment()))
    ran = CliRunner().invoke(main, ["run", str(tmp_path / "my.toml"), "--out", str(tmp_path / "run")])
    assert ran.exit_code == 0, ran.output
    told = json.loads((tmp_path / "run/summary.json").read_text())["epsilon"]
    assert "ε at δ = 1e-05" in ran.output
    assert f"{told:.3g}" in ran.output


# What it refuses ------------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "what goes beside": (
        {"client": ob.client_rules.Scaffold(steps=3)},
        "client.name: its clients send .* in addition to Δ",
    ),
    "labels say who is awake": (
        {"environment": ob.Environment(delay=Constant(), availability=ByLabel())},
        "environment.availability: availability depends on the clients' labels",
    ),
    "gradients of the clients": (
        {"evaluation": ob.Evaluation(gradient_clients=2)},
        "evaluation.gradient_clients: figures on the clients' training data are not protected",
    ),
    "a gate that refuses": (
        {"validation": ob.UpdateValidator(max_norm=1.0)},
        "validation.beyond_norm: rejecting an update for its norm",
    ),
    "periods": (
        {"scheduler": ob.Periodic()},
        "algorithm.aggregator: .*fixed number of updates per step: use the scheduler",
    ),
    "who is awake": (
        {"scheduler": ob.schedulers.Available()},
        "algorithm.aggregator: .*fixed number of updates per step",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_settings_that_break_the_privacy_guarantee_are_rejected(name: str) -> None:
    more, message = REFUSED[name]
    with pytest.raises(ob.ConfigError, match=message):
        experiment(**more)
    experiment(**more, algorithm=ob.FedBuff())


def test_running_statistics_are_refused() -> None:
    def normed() -> nn.Module:
        return nn.Sequential(nn.Linear(12, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))

    settings: dict[str, Any] = {
        "data": Synthetic(examples=300, test_examples=60, features=12, classes=3), "clients": 6, "model": normed,
        "scheduler": ob.Buffered(concurrency=4, buffer=3), "rounds": 2,
    }  # fmt: skip
    with pytest.raises(ob.ConfigError, match="model: clients also send the running statistics of its layers"):
        ob.run(algorithm=ob.FedBuff(aggregator=Private()), **settings)
    assert ob.run(algorithm=ob.FedBuff(aggregator=Median()), **settings).summary["rounds"] == 2


@pytest.mark.parametrize("rule", [ob.FedAvg, ob.algorithms.FedLuck], ids=lambda rule: rule.__name__)
def test_weights_need_a_mean(rule: type[ob.FedAvg]) -> None:
    for aggregator in (Private(), Median()):
        with pytest.raises(ob.ConfigError, match="weighted: only the aggregator 'mean' supports weights"):
            rule(weighted=True, aggregator=aggregator)
    assert rule(weighted=True).weighted


# As a TOML ------------------------------------------------------------------------------------------------------------


def test_a_toml_selects_the_aggregator() -> None:
    text = """
    scheduler = { name = "buffered", concurrency = 12, buffer = 7 }
    [algorithm]
    name = "fadas"
    aggregator = { name = "krum", attackers = 2, select = 3 }
    """
    described = config.parse(tomllib.loads(text))
    again = config.parse(tomllib.loads(config.dump(described)))
    assert again.algorithm == described.algorithm
    assert config.describe(described.algorithm)["aggregator"] == {"name": "krum", "attackers": 2, "select": 3}
    plain = config.parse({"algorithm": "fedbuff"})
    assert config.describe(plain.algorithm)["aggregator"] == {"name": "mean"}


MISTAKES: list[tuple[str, object, str]] = [
    ("fedasync", "median", "algorithm.aggregator: unknown key.* 'aggregator' is a key of fedavg, .*fedbuff"),
    ("ca2fl", "median", "'aggregator' is a key of fedavg, "),
    ("fedbuff", "medain", "algorithm.aggregator.name: unknown name 'medain'.* Did you mean 'median'"),
    ("fedbuff", {"name": "median", "trim": 1}, "'trim' is a key of trimmed-mean"),
    ("fedbuff", {"name": "trimmed-mean", "trim": 3}, "algorithm.aggregator: trim = 3 at each end needs at least 7"),
    ("fedbuff", {"name": "private", "clip": -1.0}, "algorithm.aggregator.clip: -1.0 is not a number > 0"),
]


@pytest.mark.parametrize(("name", "aggregator", "message"), MISTAKES)
def test_mistakes_are_told_by_name(name: str, aggregator: object, message: str) -> None:
    with pytest.raises(ob.ConfigError, match=message):
        config.parse({"algorithm": {"name": name, "aggregator": aggregator}, "scheduler": {"buffer": 5}})


def test_the_default_is_the_mean_to_the_last_bit() -> None:
    """Compare with a NumPy sum in the same order, in single precision."""
    rule = ob.FedBuff()
    rule.start(torch.zeros(100), clients=3)
    random = torch.Generator().manual_seed(0)
    deltas = [torch.randn(100, generator=random) for _ in range(3)]
    for n, delta in enumerate(deltas):
        job = ob.Job(id=n, client=n, version=0, x=rule.x, steps=1, seed=0)
        rule.receive(job, ob.Update(n, n, 0, delta, steps=1, examples=1, wire_bytes=0))
    rule.step()
    total = deltas[0].numpy() + deltas[1].numpy() + deltas[2].numpy()
    assert np.array_equal(rule.x.numpy(), total / np.float32(3))
