"""Private noise with real clients: it is secret, it is kept, and nothing goes past it."""

from __future__ import annotations

import logging
import pathlib
import stat
import tomllib
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import Result
from tests.deploy import stock
from tests.support import flower_server
from tests.support.stock_flower import LR, TWO, grid

from offbeat.aggregation import Median, Private
from offbeat.algorithms import FedBuff
from offbeat.errors import ConfigError, RunFolderError
from offbeat.flower import AsyncStrategy, secrets, server
from offbeat.runs.config import parse
from offbeat.scheduling.schedulers import Periodic
from offbeat.server.validation import UpdateValidator


def private(**more: Any) -> AsyncStrategy:
    return AsyncStrategy(FedBuff(aggregator=Private(clip=0.5, noise_multiplier=0.5)), **(TWO | more))


def start(strategy: AsyncStrategy, rounds: int = 3, normed: bool = False) -> Result:
    initial = ArrayRecord(stock.net(normed).state_dict())
    return strategy.start(grid(), initial, rounds, train_config=LR, timeout=30)


def test_the_noise_is_secret_and_lies_in_the_folder(tmp_path: pathlib.Path) -> None:
    """Clients know the run's seed, or can come to know it."""
    one, other = private(folder=tmp_path / "one"), private(folder=tmp_path / "other")
    found = start(one)
    start(other)
    keys = [(tmp_path / name / secrets.NOISE) for name in ("one", "other")]
    assert stat.S_IMODE(keys[0].stat().st_mode) == 0o600
    assert keys[0].read_text() != keys[1].read_text()
    initial = ArrayRecord(stock.net().state_dict())
    again = one.replay(initial)
    assert all(np.array_equal(again[name].numpy(), found.arrays[name].numpy()) for name in again)
    keys[0].write_text(keys[1].read_text())
    another = one.replay(initial)
    assert not any(np.array_equal(another[name].numpy(), found.arrays[name].numpy()) for name in another)


def test_a_run_does_not_go_on_without_its_key(tmp_path: pathlib.Path) -> None:
    start(private(folder=tmp_path), rounds=2)
    (tmp_path / secrets.NOISE).unlink()
    with pytest.raises(RunFolderError, match=r"noise\.key is missing"):
        start(private(folder=tmp_path), rounds=4)
    (tmp_path / secrets.NOISE).write_text("what?")
    with pytest.raises(RunFolderError, match=r"noise\.key is no key"):
        start(private(folder=tmp_path), rounds=4)


def test_what_clients_tell_of_their_data_is_not_passed_on(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("dp_accounting")
    with caplog.at_level(logging.INFO, logger="flwr"):
        result = start(private())
    assert not result.train_metrics_clientapp
    assert not any("train_loss" in record.getMessage() for record in caplog.records)
    assert any("ε = " in record.getMessage() and "δ = 1e-05" in record.getMessage() for record in caplog.records)


def test_what_would_go_past_the_noise_is_refused() -> None:
    with pytest.raises(ConfigError, match="evaluate_clients: what clients find"):
        private(evaluate_clients=1)
    with pytest.raises(ConfigError, match=r"validation\.beyond_norm"):
        private(validation=UpdateValidator(max_norm=1.0))
    with pytest.raises(ConfigError, match=r"algorithm\.aggregator: .*divided by the same number"):
        AsyncStrategy(FedBuff(aggregator=Private()), scheduler=Periodic())
    with pytest.raises(ConfigError, match="model: its layers' running statistics"):
        start(private(), normed=True)
    with pytest.raises(ConfigError, match=r"algorithm\.aggregator: a median needs at least 3"):
        AsyncStrategy(FedBuff(aggregator=Median()), **TWO)


def test_an_experiment_with_real_clients(tmp_path: pathlib.Path) -> None:
    text = flower_server.toml(
        '[algorithm]\nname = "fedbuff"\naggregator = { name = "private", clip = 0.5, noise_multiplier = 0.02 }\n'
        '[scheduler]\nname = "buffered"\nconcurrency = 4\nbuffer = 2\n'
    )
    result = flower_server.serve(parse(tomllib.loads(text)), flower_server.grid(text), tmp_path / "run")
    assert result.accuracy > 0.6
    assert (tmp_path / "run" / secrets.NOISE).is_file()
    assert server.replay(tmp_path / "run").same
    assert 16 * 2 / 4 <= result.summary["spent"] <= 16
