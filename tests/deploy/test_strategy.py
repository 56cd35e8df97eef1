"""Tests of AsyncStrategy with a client app that does not know offbeat."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Error, Message
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg
from flwr.serverapp.strategy import Result
from tests.deploy import stock
from tests.deploy.fake_grid import FakeGrid, unreliable
from tests.deploy.stock import evaluate_globally
from tests.support.stock_flower import BUFFER_OF_TWO, LR, grid

from offbeat.aggregation import Krum, Median, Private
from offbeat.algorithms import (
    ACE,
    AFACD,
    AFACS,
    AFGA,
    CA2FL,
    FADAS,
    MFCA2FL,
    MIFA,
    Algorithm,
    FedAdam,
    FedAMSGrad,
    FedAsync,
    FedBuff,
    FedDyn,
    FedLuck,
)
from offbeat.cache import Quantized
from offbeat.errors import ConfigError, OffbeatError
from offbeat.flower import AsyncStrategy, log, puller, transport
from offbeat.scheduling import Anarchic, Periodic, Rounds
from offbeat.server import checkpoint


def start(strategy: AsyncStrategy, fake_grid: FakeGrid, rounds: int = 20, normalized: bool = False) -> Result:
    initial = ArrayRecord(stock.net(normalized).state_dict())
    return strategy.start(fake_grid, initial, rounds, train_config=LR, evaluate_fn=evaluate_globally, timeout=30)


def final_accuracy(result: Result) -> float:
    return float(result.evaluate_metrics_serverapp[max(result.evaluate_metrics_serverapp)]["accuracy"])  # type: ignore[arg-type]


ALGORITHMS: list[tuple[Algorithm, dict[str, Any]]] = [
    (FedBuff(), BUFFER_OF_TWO),
    (FedAsync(), {"concurrency": 4}),
    (CA2FL(eta=0.5), BUFFER_OF_TWO),
    (MFCA2FL(eta=0.5, bits=2, levels=3, rounding="nearest", range="tensor"), BUFFER_OF_TWO),
    (MIFA(eta=0.3), BUFFER_OF_TWO),
    (AFACD(eta=0.3), {"buffer": 2}),
    (AFACS(eta=0.2), {"scheduler": Anarchic(buffer=2)}),
    (FedAdam(eta=0.02), BUFFER_OF_TWO),
    (FedAMSGrad(eta=0.02), BUFFER_OF_TWO),
    (FADAS(eta=0.02), BUFFER_OF_TWO),
    (ACE(eta=0.2), {"concurrency": 4}),
    (FedBuff(aggregator=Median()), {"concurrency": 4, "buffer": 3}),
    (FADAS(eta=0.02, aggregator=Krum(attackers=0, select=2)), {"concurrency": 4, "buffer": 3}),
    (FedLuck(eta=0.5), {"scheduler": Periodic(concurrency=4, period=0.1)}),
]


@pytest.mark.parametrize(("algorithm", "settings"), ALGORITHMS, ids=lambda a: type(a).__name__)
def test_every_supported_algorithm_learns(algorithm: Algorithm, settings: dict[str, Any]) -> None:
    result = start(AsyncStrategy(algorithm, **settings), grid(), rounds=12)
    assert final_accuracy(result) > 0.6, "chance level is 0.1"
    assert list(result.evaluate_metrics_serverapp) == list(range(13))
    assert set(result.train_metrics_clientapp) <= set(range(1, 13))
    assert all("train_loss" in record for record in result.train_metrics_clientapp.values())


def test_start_has_the_interface_of_flowers_strategies() -> None:
    """The same call starts Flower's FedAvg and an asynchronous strategy and returns the same kind of result."""
    results = []
    for strategy in (
        FlowerFedAvg(fraction_evaluate=1.0),
        AsyncStrategy(FedBuff(), evaluate_clients=4, **BUFFER_OF_TWO),
    ):
        results.append(
            strategy.start(
                grid=grid(),
                initial_arrays=ArrayRecord(stock.net().state_dict()),
                num_rounds=4,
                timeout=30,
                train_config=LR,
                evaluate_fn=evaluate_globally,
            )
        )
    synchronous, asynchronous = results
    assert type(synchronous) is type(asynchronous)
    assert asynchronous.arrays.keys() == synchronous.arrays.keys()
    for name in ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"):
        expected, actual = getattr(synchronous, name), getattr(asynchronous, name)
        assert 4 in actual.keys() <= expected.keys(), name
        assert expected[4].keys() == actual[4].keys(), name


def test_clients_evaluate_in_turn_during_training() -> None:
    fake_grid = grid()
    result = start(AsyncStrategy(FedBuff(), evaluate_clients=1, evaluate_every=2, **BUFFER_OF_TWO), fake_grid, rounds=8)
    assert list(result.evaluate_metrics_serverapp) == [0, 2, 4, 6, 8]
    assert list(result.evaluate_metrics_clientapp) == [2, 4, 6, 8]
    asked = [m.metadata.dst_node_id for m in fake_grid.pushed if m.metadata.message_type == "evaluate"]
    assert len(set(asked)) > 1


def test_running_statistics_are_averaged_and_counters_stay_integers() -> None:
    result = start(AsyncStrategy(FedAdam(eta=0.02), **BUFFER_OF_TWO), grid(), rounds=16, normalized=True)
    arrays = {name: array.numpy() for name, array in result.arrays.items()}
    assert arrays["1.num_batches_tracked"].dtype == np.int64
    assert (arrays["1.running_var"] > 0).all()
    assert final_accuracy(result) > 0.6


def test_fifty_nodes_with_random_failures() -> None:
    fake_grid = grid(50, behavior=unreliable(1, 0.3))
    result = start(AsyncStrategy(FedBuff(), concurrency=30, buffer=10), fake_grid, rounds=12)
    assert final_accuracy(result) > 0.2
    assert fake_grid.max_in_flight == 1, "at most one job in flight per node"
    assert len({m.metadata.dst_node_id for m in fake_grid.pushed}) == 50


@pytest.mark.parametrize("code", [0, 1, 2, 3, 4, 5, 6, 7, 8, 99])
def test_the_client_is_idle_again_after_any_error(code: int, tmp_path: pathlib.Path) -> None:
    fake_grid = grid(2, behavior=lambda n, message: Error(code, "because") if n % 2 else 0.0)
    strategy = AsyncStrategy(FedBuff(), concurrency=2, buffer=1, folder=tmp_path)
    start(strategy, fake_grid, rounds=2)
    reasons = [line["reason"] for line in log.read(tmp_path) if "lost" in line]
    assert reasons
    assert all(reason.endswith("because") for reason in reasons)


def test_an_offline_node_gets_no_jobs_until_it_returns(tmp_path: pathlib.Path) -> None:
    fake_grid = grid(2, behavior=lambda n, message: Error(5) if message.metadata.dst_node_id == 1001 else 0.05)
    start(AsyncStrategy(FedBuff(), concurrency=2, buffer=1, folder=tmp_path), fake_grid, rounds=20)
    sent = [line for line in log.read(tmp_path) if line.get("node") == "1001"]
    assert 1 <= len(sent) <= 2 + sent[-1]["at"] / puller.NODES_SECONDS
    assert [0] in [line["nodes"] for line in log.read(tmp_path) if "nodes" in line]


def test_late_duplicate_and_malformed_replies_are_harmless(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """One node replies twice, one too late, one with wrong arrays, one without arrays, and one correctly."""
    monkeypatch.setattr(transport, "GRACE_SECONDS", 0.0)
    fake_grid = grid(5, behavior=lambda n, message: 1.5 if message.metadata.dst_node_id == 1001 else 0.1)
    original = fake_grid._reply

    def reply(message: Message) -> None:
        node = message.metadata.src_node_id
        if node == 1000:
            original(message)
        if node == 1002:
            message.content["arrays"] = ArrayRecord([np.zeros(3, dtype=np.float32)])
        if node == 1003:
            del message.content["arrays"]
        original(message)

    monkeypatch.setattr(fake_grid, "_reply", reply)
    strategy = AsyncStrategy(FedBuff(), concurrency=5, buffer=3, folder=tmp_path)
    initial = ArrayRecord(stock.net().state_dict())
    result = strategy.start(fake_grid, initial, 10, train_config=LR, timeout=1)
    lines = list(log.read(tmp_path))
    arrived = [line["arrived"] for line in lines if "arrived" in line]
    assert len(arrived) == len(set(arrived)) >= 30, "no update is counted twice"
    reasons = {line["reason"].split(":")[0] for line in lines if "lost" in line}
    assert "no reply within the timeout" in reasons
    assert any(reason.startswith("the reply has the arrays [") for reason in reasons)
    assert all(np.isfinite(array.numpy()).all() for array in result.arrays.values())


def test_the_client_is_idle_again_after_a_rejected_push(tmp_path: pathlib.Path) -> None:
    fake_grid = grid(3)
    original, rejected = fake_grid._push, list[Message]()

    def push(message: Message) -> str:
        if len(rejected) < 4:
            rejected.append(message)
            return ""
        return original(message)

    fake_grid._push = push  # type: ignore[method-assign]
    start(AsyncStrategy(FedBuff(), concurrency=3, buffer=1, folder=tmp_path), fake_grid, rounds=3)
    assert sum("did not accept" in line.get("reason", "") for line in log.read(tmp_path)) == 4


def test_a_new_node_replaces_one_that_left(tmp_path: pathlib.Path) -> None:
    """A node leaves during a job and another one replaces it; the cached update of the client is kept."""
    fake_grid = grid(3)

    def replace_node() -> Error:
        fake_grid.leave(1002)
        fake_grid.join({"partition-id": 2, "num-partitions": 3})
        return Error(5)

    fake_grid.behavior = lambda n, message: replace_node() if message.metadata.dst_node_id == 1002 and n == 2 else 0.15
    start(AsyncStrategy(CA2FL(eta=0.3), concurrency=3, buffer=1, folder=tmp_path), fake_grid, rounds=40)
    nodes = {m.metadata.dst_node_id for m in fake_grid.pushed}
    assert nodes == {1000, 1001, 1002, 1003}
    assert {line["client"] for line in log.read(tmp_path) if "sent" in line} == {0, 1, 2}


class KilledError(Exception):
    pass


KILLED = [
    FedBuff(),
    CA2FL(eta=0.5),
    MIFA(eta=0.3, cache=Quantized(bits=8, range="tensor")),
    FedAdam(aggregator=Private(clip=0.5, noise_multiplier=0.1)),
]


@pytest.mark.parametrize("algorithm", KILLED, ids=lambda a: type(a).__name__)
def test_a_killed_run_resumes_and_its_replay_is_identical(algorithm: Algorithm, tmp_path: pathlib.Path) -> None:
    initial = ArrayRecord(stock.net().state_dict())

    def kill(version: int, arrays: ArrayRecord) -> None:
        if version == 5:
            raise KilledError

    strategy = AsyncStrategy(algorithm, folder=tmp_path, **BUFFER_OF_TWO)
    with pytest.raises(KilledError):
        strategy.start(grid(), initial, 9, train_config=LR, evaluate_fn=kill, timeout=30)
    before = strategy.replay(initial)
    saved = checkpoint.load(tmp_path / "checkpoint", "cpu")
    assert saved is not None
    assert saved["loop"]["algorithm"]["version"] == 4
    new = grid(first_id=7000)  # the nodes have other ids
    result = strategy.start(new, initial, 9, train_config=LR, evaluate_fn=evaluate_globally, timeout=30)
    assert list(result.evaluate_metrics_serverapp) == [5, 6, 7, 8, 9], "it resumes at version 4"
    after = strategy.replay(initial)
    for name, array in result.arrays.items():
        assert np.array_equal(after[name].numpy(), array.numpy()), "bit for bit"
        assert not np.array_equal(before[name].numpy(), array.numpy())
    sent = [line["sent"] for line in log.read(tmp_path) if "sent" in line]
    assert len(sent) == len(set(sent)), "jobs in flight are resent with their ids"


def test_the_job_of_a_node_that_does_not_return_after_a_restart_is_lost(tmp_path: pathlib.Path) -> None:
    """Otherwise the next round would wait forever."""
    initial = ArrayRecord(stock.net().state_dict())

    def kill(version: int, arrays: ArrayRecord) -> None:
        if version == 2:
            raise KilledError

    strategy = AsyncStrategy(FedBuff(), scheduler=Rounds(concurrency=3), folder=tmp_path, min_nodes=2)
    with pytest.raises(KilledError):
        strategy.start(grid(3), initial, 4, train_config=LR, evaluate_fn=kill, timeout=2)
    strategy.start(grid(2), initial, 4, train_config=LR, timeout=2)
    assert "the node did not return after the restart" in {line.get("reason") for line in log.read(tmp_path)}


def test_unsupported_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="communicate with each other"):
        AsyncStrategy(AFGA())
    with pytest.raises(ConfigError, match="client rule 'dyn'"):
        AsyncStrategy(FedDyn())
    with pytest.raises(ConfigError, match=r"no scheduler of FedAsync .* has the settings concurrency and buffer"):
        AsyncStrategy(FedAsync(), concurrency=3, buffer=2)
    with pytest.raises(OffbeatError, match="only 1 of 3 nodes connected within 1 s"):
        AsyncStrategy(FedBuff(), min_nodes=3).start(grid(1), ArrayRecord(stock.net().state_dict()), timeout=1)
    with pytest.raises(ConfigError, match="folder: a replay needs the folder of the run"):
        AsyncStrategy(FedBuff()).replay(ArrayRecord(stock.net().state_dict()))
