"""Private noise in a deployment: its seed is secret and saved, and nothing bypasses it."""

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
from tests.support.stock_flower import BUFFER_OF_TWO, LR, grid

from offbeat.aggregation import Median, Private
from offbeat.algorithms import FedBuff
from offbeat.errors import ConfigError, RunFolderError
from offbeat.flower import AsyncStrategy, secrets, server
from offbeat.runs.config import parse
from offbeat.scheduling import Periodic
from offbeat.server.validation import UpdateValidator


def private(**options: Any) -> AsyncStrategy:
    return AsyncStrategy(FedBuff(aggregator=Private(clip=0.5, noise_multiplier=0.5)), **(BUFFER_OF_TWO | options))


def start(strategy: AsyncStrategy, rounds: int = 3, normalized: bool = False) -> Result:
    initial = ArrayRecord(stock.net(normalized).state_dict())
    return strategy.start(grid(), initial, rounds, train_config=LR, timeout=30)


def test_the_seed_of_the_noise_is_a_secret_in_the_run_folder(tmp_path: pathlib.Path) -> None:
    """The seed of the run is not secret: clients can derive it."""
    first, second = private(folder=tmp_path / "first"), private(folder=tmp_path / "second")
    result = start(first)
    start(second)
    keys = [(tmp_path / name / secrets.NOISE) for name in ("first", "second")]
    assert stat.S_IMODE(keys[0].stat().st_mode) == 0o600
    assert keys[0].read_text() != keys[1].read_text()
    initial = ArrayRecord(stock.net().state_dict())
    replayed = first.replay(initial)
    assert all(np.array_equal(replayed[name].numpy(), result.arrays[name].numpy()) for name in replayed)
    keys[0].write_text(keys[1].read_text())
    with_other_key = first.replay(initial)
    for name, array in with_other_key.items():
        assert not np.array_equal(array.numpy(), result.arrays[name].numpy())


def test_a_run_is_not_resumed_without_its_key(tmp_path: pathlib.Path) -> None:
    start(private(folder=tmp_path), rounds=2)
    (tmp_path / secrets.NOISE).unlink()
    with pytest.raises(RunFolderError, match=r"noise\.key is missing"):
        start(private(folder=tmp_path), rounds=4)
    (tmp_path / secrets.NOISE).write_text("not a number")
    with pytest.raises(RunFolderError, match=r"noise\.key is not a hexadecimal key"):
        start(private(folder=tmp_path), rounds=4)


def test_metrics_of_clients_are_not_revealed(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("dp_accounting")
    with caplog.at_level(logging.INFO, logger="flwr"):
        result = start(private())
    assert not result.train_metrics_clientapp
    assert not any("train_loss" in record.getMessage() for record in caplog.records)
    assert any("ε = " in record.getMessage() and "δ = 1e-05" in record.getMessage() for record in caplog.records)


def test_settings_that_bypass_the_noise_are_refused() -> None:
    with pytest.raises(ConfigError, match="evaluate_clients: private noise does not protect metrics"):
        private(evaluate_clients=1)
    with pytest.raises(ConfigError, match=r"validation\.beyond_norm"):
        private(validation=UpdateValidator(max_norm=1.0))
    with pytest.raises(ConfigError, match=r"algorithm\.aggregator: .*fixed number of updates per step"):
        AsyncStrategy(FedBuff(aggregator=Private()), scheduler=Periodic())
    with pytest.raises(ConfigError, match="model: clients also send the running statistics"):
        start(private(), normalized=True)
    with pytest.raises(ConfigError, match=r"algorithm\.aggregator: a median needs at least 3"):
        AsyncStrategy(FedBuff(aggregator=Median()), **BUFFER_OF_TWO)


def test_an_experiment_with_private_noise_is_deployed(tmp_path: pathlib.Path) -> None:
    text = flower_server.toml(
        '[algorithm]\nname = "fedbuff"\naggregator = { name = "private", clip = 0.5, noise_multiplier = 0.02 }\n'
        '[scheduler]\nname = "buffered"\nconcurrency = 4\nbuffer = 2\n'
    )
    result = flower_server.serve(parse(tomllib.loads(text)), flower_server.grid(text), tmp_path / "run")
    assert result.accuracy > 0.6
    assert (tmp_path / "run" / secrets.NOISE).is_file()
    assert server.replay(tmp_path / "run").same
    assert 16 * 2 / 4 <= result.summary["spent"] <= 16
