"""A Flower app that knows nothing of offbeat, under an asynchronous strategy."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Error, Message
from flwr.serverapp.strategy import FedAvg as FlowerFedAvg
from flwr.serverapp.strategy import Result
from tests.deploy import stock
from tests.deploy.double import Double, unreliable
from tests.deploy.stock import accuracy
from tests.support.stock_flower import LR, TWO, grid

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
from offbeat.errors import ConfigError, OffbeatError
from offbeat.flower import AsyncStrategy, log, puller, transport
from offbeat.scheduling.schedulers import Anarchic, Periodic, Rounds
from offbeat.server import checkpoint


def start(strategy: AsyncStrategy, double: Double, rounds: int = 20, normed: bool = False) -> Result:
    initial = ArrayRecord(stock.net(normed).state_dict())
    return strategy.start(double, initial, rounds, train_config=LR, evaluate_fn=accuracy, timeout=30)


def last(result: Result) -> float:
    return float(result.evaluate_metrics_serverapp[max(result.evaluate_metrics_serverapp)]["accuracy"])  # type: ignore[arg-type]


RULES: list[tuple[Algorithm, dict[str, Any]]] = [
    (FedBuff(), TWO),
    (FedAsync(), {"concurrency": 4}),
    (CA2FL(eta=0.5), TWO),
    (MFCA2FL(eta=0.5), TWO),
    (MIFA(eta=0.3), TWO),
    (AFACD(eta=0.3), {"buffer": 2}),
    (AFACS(eta=0.2), {"scheduler": Anarchic(buffer=2)}),
    (FedAdam(eta=0.02), TWO),
    (FedAMSGrad(eta=0.02), TWO),
    (FADAS(eta=0.02), TWO),
    (ACE(eta=0.2), {"concurrency": 4}),
    (FedBuff(aggregator=Median()), {"concurrency": 4, "buffer": 3}),
    (FADAS(eta=0.02, aggregator=Krum(attackers=0, select=2)), {"concurrency": 4, "buffer": 3}),
    (FedLuck(eta=0.5), {"scheduler": Periodic(concurrency=4, period=0.1)}),
]


@pytest.mark.parametrize(("algorithm", "more"), RULES, ids=lambda a: type(a).__name__)
def test_every_rule_that_a_server_can_run(algorithm: Algorithm, more: dict[str, Any]) -> None:
    result = start(AsyncStrategy(algorithm, **more), grid(), rounds=12)
    assert last(result) > 0.6, "from 0.1"
    assert list(result.evaluate_metrics_serverapp) == list(range(13))
    assert set(result.train_metrics_clientapp) <= set(range(1, 13))
    assert all("train_loss" in record for record in result.train_metrics_clientapp.values())


def test_one_line_changes() -> None:
    """The same call starts Flower's own FedAvg and an asynchronous strategy, and gives the same kind of result."""
    results = []
    for strategy in (FlowerFedAvg(fraction_evaluate=1.0), AsyncStrategy(FedBuff(), evaluate_clients=4, **TWO)):
        results.append(
            strategy.start(
                grid=grid(),
                initial_arrays=ArrayRecord(stock.net().state_dict()),
                num_rounds=4,
                timeout=30,
                train_config=LR,
                evaluate_fn=accuracy,
            )
        )
    synchronous, asynchronous = results
    assert type(synchronous) is type(asynchronous)
    assert asynchronous.arrays.keys() == synchronous.arrays.keys()
    for name in ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"):
        one, other = getattr(synchronous, name), getattr(asynchronous, name)
        assert 4 in other.keys() <= one.keys(), name
        assert one[4].keys() == other[4].keys(), name


def test_tests_on_clients_go_round_while_training_goes_on() -> None:
    double = grid()
    result = start(AsyncStrategy(FedBuff(), evaluate_clients=1, evaluate_every=2, **TWO), double, rounds=8)
    assert list(result.evaluate_metrics_serverapp) == [0, 2, 4, 6, 8]
    assert list(result.evaluate_metrics_clientapp) == [2, 4, 6, 8]
    asked = [m.metadata.dst_node_id for m in double.pushed if m.metadata.message_type == "evaluate"]
    assert len(set(asked)) > 1


def test_running_statistics_are_averaged_and_counters_stay_whole() -> None:
    result = start(AsyncStrategy(FedAdam(eta=0.02), **TWO), grid(), rounds=16, normed=True)
    arrays = {name: array.numpy() for name, array in result.arrays.items()}
    assert arrays["1.num_batches_tracked"].dtype == np.int64
    assert (arrays["1.running_var"] > 0).all()
    assert last(result) > 0.6


def test_fifty_nodes_with_random_failures() -> None:
    double = grid(50, fate=unreliable(1, 0.3))
    result = start(AsyncStrategy(FedBuff(), concurrency=30, buffer=10), double, rounds=12)
    assert last(result) > 0.2
    assert double.most == 1, "one job in flight a node"
    assert len({m.metadata.dst_node_id for m in double.pushed}) == 50


@pytest.mark.parametrize("code", [0, 1, 2, 3, 4, 5, 6, 7, 8, 99])
def test_an_error_frees_the_client_whatever_its_code(code: int, tmp_path: pathlib.Path) -> None:
    double = grid(2, fate=lambda n, message: Error(code, "because") if n % 2 else 0.0)
    strategy = AsyncStrategy(FedBuff(), concurrency=2, buffer=1, folder=tmp_path)
    start(strategy, double, rounds=2)
    reasons = [line["reason"] for line in log.read(tmp_path) if "lost" in line]
    assert reasons
    assert all(reason.endswith("because") for reason in reasons)


def test_a_node_that_is_gone_is_given_nothing_until_it_is_seen_again(tmp_path: pathlib.Path) -> None:
    double = grid(2, fate=lambda n, message: Error(5) if message.metadata.dst_node_id == 1001 else 0.05)
    start(AsyncStrategy(FedBuff(), concurrency=2, buffer=1, folder=tmp_path), double, rounds=20)
    given = [line for line in log.read(tmp_path) if line.get("node") == "1001"]
    assert 1 <= len(given) <= 2 + given[-1]["at"] / puller.WATCH_SECONDS
    assert [0] in [line["nodes"] for line in log.read(tmp_path) if "nodes" in line]


def test_replies_that_are_late_doubled_or_senseless_do_no_harm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """One node answers twice, one after the time to live, one with other arrays, one with none, one as it should."""
    monkeypatch.setattr(transport, "GRACE", 0.0)
    double = grid(5, fate=lambda n, message: 1.5 if message.metadata.dst_node_id == 1001 else 0.1)
    plain = double._reply

    def reply(message: Message) -> None:
        node = message.metadata.src_node_id
        if node == 1000:
            plain(message)
        if node == 1002:
            message.content["arrays"] = ArrayRecord([np.zeros(3, dtype=np.float32)])
        if node == 1003:
            del message.content["arrays"]
        plain(message)

    monkeypatch.setattr(double, "_reply", reply)
    strategy = AsyncStrategy(FedBuff(), concurrency=5, buffer=3, folder=tmp_path)
    initial = ArrayRecord(stock.net().state_dict())
    result = strategy.start(double, initial, 10, train_config=LR, timeout=1)
    lines = list(log.read(tmp_path))
    arrived = [line["arrived"] for line in lines if "arrived" in line]
    assert len(arrived) == len(set(arrived)) >= 30, "no update counts twice"
    reasons = {line["reason"].split(":")[0] for line in lines if "lost" in line}
    assert "no answer within the time to live" in reasons
    assert any(reason.startswith("arrays [") for reason in reasons)
    assert all(np.isfinite(array.numpy()).all() for array in result.arrays.values())


def test_a_push_that_is_refused_frees_the_client(tmp_path: pathlib.Path) -> None:
    double = grid(3)
    plain, refused = double._push, list[Message]()

    def push(message: Message) -> str:
        if len(refused) < 4:
            refused.append(message)
            return ""
        return plain(message)

    double._push = push  # type: ignore[method-assign]
    start(AsyncStrategy(FedBuff(), concurrency=3, buffer=1, folder=tmp_path), double, rounds=3)
    assert sum("did not take" in line.get("reason", "") for line in log.read(tmp_path)) == 4


def test_nodes_come_and_go(tmp_path: pathlib.Path) -> None:
    """One leaves for good in mid job, another takes its place; the memory goes on with the client."""
    double = grid(3)
    double.fate = lambda n, message: (
        _leave(double, message) if message.metadata.dst_node_id == 1002 and n == 2 else 0.15
    )

    def _leave(double: Double, message: Message) -> Error:
        double.leave(1002)
        double.join({"partition-id": 2, "num-partitions": 3})
        return Error(5)

    start(AsyncStrategy(CA2FL(eta=0.3), concurrency=3, buffer=1, folder=tmp_path), double, rounds=40)
    by_node = {m.metadata.dst_node_id for m in double.pushed}
    assert by_node == {1000, 1001, 1002, 1003}
    assert {line["client"] for line in log.read(tmp_path) if "sent" in line} == {0, 1, 2}


class KilledError(Exception):
    pass


KILLED = [FedBuff(), CA2FL(eta=0.5), MIFA(eta=0.3), FedAdam(aggregator=Private(clip=0.5, noise_multiplier=0.1))]


@pytest.mark.parametrize("algorithm", KILLED, ids=lambda a: type(a).__name__)
def test_a_killed_run_goes_on_and_its_replay_is_the_same(algorithm: Algorithm, tmp_path: pathlib.Path) -> None:
    initial = ArrayRecord(stock.net().state_dict())

    def killer(version: int, arrays: ArrayRecord) -> None:
        if version == 5:
            raise KilledError

    strategy = AsyncStrategy(algorithm, folder=tmp_path, **TWO)
    with pytest.raises(KilledError):
        strategy.start(grid(), initial, 9, train_config=LR, evaluate_fn=killer, timeout=30)
    before = strategy.replay(initial)
    saved = checkpoint.load(tmp_path / "checkpoint", "cpu")
    assert saved is not None
    assert saved["loop"]["algorithm"]["version"] == 4
    new = grid(first=7000)  # nodes under other ids
    result = strategy.start(new, initial, 9, train_config=LR, evaluate_fn=accuracy, timeout=30)
    assert list(result.evaluate_metrics_serverapp) == [5, 6, 7, 8, 9], "it goes on at version 4"
    after = strategy.replay(initial)
    for name, array in result.arrays.items():
        assert np.array_equal(after[name].numpy(), array.numpy()), "to the last bit"
        assert not np.array_equal(before[name].numpy(), array.numpy())
    again = [line["sent"] for line in log.read(tmp_path) if "sent" in line]
    assert len(again) == len(set(again)), "jobs that were out are sent again under their numbers"


def test_a_node_that_never_comes_back_after_a_kill_is_given_up(tmp_path: pathlib.Path) -> None:
    """Its job would hold the next round up for ever."""
    initial = ArrayRecord(stock.net().state_dict())

    def killer(version: int, arrays: ArrayRecord) -> None:
        if version == 2:
            raise KilledError

    strategy = AsyncStrategy(FedBuff(), scheduler=Rounds(concurrency=3), folder=tmp_path, min_nodes=2)
    with pytest.raises(KilledError):
        strategy.start(grid(3), initial, 4, train_config=LR, evaluate_fn=killer, timeout=2)
    strategy.start(grid(2), initial, 4, train_config=LR, timeout=2)
    assert "the node has not come back" in {line.get("reason") for line in log.read(tmp_path)}


def test_what_is_refused() -> None:
    with pytest.raises(ConfigError, match="talk to each other"):
        AsyncStrategy(AFGA())
    with pytest.raises(ConfigError, match="client rule 'dyn'"):
        AsyncStrategy(FedDyn())
    with pytest.raises(ConfigError, match=r"none of the schedulers of FedAsync .* takes concurrency and buffer"):
        AsyncStrategy(FedAsync(), concurrency=3, buffer=2)
    with pytest.raises(OffbeatError, match="1 of 3 nodes have come within 1 s"):
        AsyncStrategy(FedBuff(), min_nodes=3).start(grid(1), ArrayRecord(stock.net().state_dict()), timeout=1)
