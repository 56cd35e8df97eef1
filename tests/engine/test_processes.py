"""Training in worker processes: the same bits as `sequential`, and processes that end when they should."""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import pathlib
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.support import gone, running
from torch import Tensor, nn

import offbeat as ob
from offbeat.clients import SGD, ClientRule, Dyn, Prox, Scaffold, State
from offbeat.compression import Compression, TopK
from offbeat.data import Federated, from_arrays
from offbeat.engine import EXECUTORS, Work
from offbeat.engine.executors import Processes
from offbeat.engine.executors.base import Outcome, Task
from offbeat.engine.executors.shared import Cells, Shelf
from offbeat.errors import ConfigError, DivergenceError, OffbeatError
from offbeat.messages import Job, Update
from offbeat.models import CNN
from offbeat.seeds import key

CPU = torch.device("cpu")
RULES = [
    SGD(lr=0.1, epochs=2, batch_size=8),
    SGD(lr=0.05, steps=3, batch_size=16, momentum=0.9, weight_decay=1e-2),
    Prox(lr=0.1, epochs=1, batch_size=5, mu=0.5),
    Scaffold(lr=0.1, epochs=2, batch_size=8, weight_decay=1e-2),
    Dyn(lr=0.1, epochs=2, batch_size=8, alpha=0.2),
]


def federated(seed: int = 0) -> Federated:
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((60, 1, 8, 8), dtype=np.float32), rng.integers(4, size=60)
    return Federated.of(from_arrays(x, y, x[:4], y[:4], classes=4), np.split(rng.permutation(60), [1, 4, 20, 30]))


class Small(nn.Module):
    """A little of everything: a convolution, dropout, a buffer, a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.drop, self.head = nn.Conv2d(1, 3, 3), nn.Dropout(0.3), nn.Linear(108, 4)
        self.frozen = nn.Linear(4, 4, bias=False).requires_grad_(False)
        nn.init.eye_(self.frozen.weight)
        self.scale = nn.Buffer(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.frozen(self.head(self.drop(self.convolution(x).relu().flatten(1))))
        return out * self.scale


def work(rule: ClientRule, module: nn.Module | None = None, data: Federated | None = None, **more: Any) -> Work:
    torch.manual_seed(0)
    return Work(module or Small(), data or federated(), rule, CPU, **more)


def jobs(w: Work, seed: int = 9) -> list[Job]:
    """One for each client, from two versions."""
    x = 0.1 * torch.randn(w.layout.dim, generator=torch.Generator().manual_seed(0))
    versions, extra = [x, x + 0.01], {"c": 0.01 * torch.ones_like(x)} if isinstance(w.rule, Scaffold) else {}
    return [
        Job(i, i, i % 2, versions[i % 2], w.steps(i), key(seed, i), rate=1 / (1 + i % 3), extra=extra)
        for i in range(w.data.clients)
    ]


def same(one: Update, other: Update) -> bool:
    assert (one.job, one.client, one.wire_bytes, one.examples) == (
        other.job,
        other.client,
        other.wire_bytes,
        other.examples,
    )
    assert one.extra.keys() == other.extra.keys()
    return torch.equal(one.delta, other.delta) and all(torch.equal(one.extra[n], other.extra[n]) for n in one.extra)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """The same bits are promised for `sequential` with one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def processes() -> Iterator[Callable[..., Processes]]:
    with contextlib.ExitStack() as stack:

        def make(w: Work, most: int = 2) -> Processes:
            executor = Processes(w)
            executor.most = most
            stack.callback(executor.close)
            return executor

        yield make


def pids(executor: Processes) -> list[int]:
    return [worker.pid for worker in executor._workers]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("most", [1, 3])
def test_the_same_bits_as_sequential(rule: ClientRule, most: int, processes: Callable[..., Processes]) -> None:
    topk = Compression(upload=TopK(rate=0.1), error_feedback=True)
    w, twin = work(rule, compression=topk), work(rule, compression=topk)
    plain, spread = EXECUTORS["sequential"](w), processes(twin, most)
    for round_ in range(2):  # the second time with what the clients have kept of the first
        pairs = zip(plain.train(jobs(w, round_)), spread.train(jobs(twin, round_)), strict=True)
        assert all(same(one, other) for one, other in pairs)
    assert twin.kept.keys() == w.kept.keys()
    for name, rows in w.kept.items():
        assert rows.keys() == twin.kept[name].keys()
        assert all(torch.equal(row, twin.kept[name][client]) for client, row in rows.items())


def test_the_same_bits_for_the_cnn_and_with_too_little_shared_memory(processes: Callable[..., Processes]) -> None:
    """A tensor that finds no cell, or none that is large enough, goes through the pipe."""
    w = work(Scaffold(lr=0.1, steps=2, batch_size=4), CNN().build((1, 8, 8), 4))
    plain = EXECUTORS["sequential"](w).train(jobs(w))
    for cells in (None, Cells(3, 4 * w.layout.dim), Cells(9, 100)):
        twin = work(w.rule, copy.deepcopy(w.module))
        spread = processes(twin)
        spread._shelf = None if cells is None else Shelf(cells)
        spread._rules = [w.rule]
        assert all(same(one, other) for one, other in zip(plain, spread.train(jobs(w)), strict=True))


def test_two_runs_in_one_call(processes: Callable[..., Processes]) -> None:
    """Each with its own partition, rate, kept state and code; one that comes later brings a rule that is new."""
    data = federated()
    works = [
        work(SGD(lr=0.1, epochs=1, batch_size=8), data=data),
        work(Scaffold(lr=0.2, epochs=1, batch_size=4), data=replace(data, order=data.order[::-1].copy())),
    ]
    twins = [copy.copy(w) for w in works]
    for twin in twins:
        twin.kept = {name: {} for name in twin.kept}
    spread = processes(twins[0])
    first = spread.train(jobs(works[0]))
    before = pids(spread)
    both = [task for pair in zip(*([(t, j) for j in jobs(t)] for t in twins), strict=True) for task in pair]
    mixed = spread.train_all(both)
    assert not set(before) & set(pids(spread)), "started anew with the second rule"
    for w, part in zip(works, (mixed[::2], mixed[1::2]), strict=True):
        plain = EXECUTORS["sequential"](w).train(jobs(w))
        assert all(isinstance(u, Update) and same(u, v) for u, v in zip(part, plain, strict=True))
    assert all(same(u, v) for u, v in zip(first, EXECUTORS["sequential"](works[0]).train(jobs(works[0])), strict=True))


def test_after_threads_were_used_in_the_parent(processes: Callable[..., Processes]) -> None:
    """OpenMP's threads are not there in a fork: a worker that entered a parallel region would never come back."""
    w = work(RULES[0], CNN().build((1, 8, 8), 4))
    for _ in range(3):
        torch.set_num_threads(2)
        torch.randn(200, 200) @ torch.randn(200, 200)
        executor = processes(w)
        executor.train(jobs(w)[:2])
        executor.close()
        assert torch.get_num_threads() == 2


def test_a_diverged_client_is_an_outcome_among_others(processes: Callable[..., Processes]) -> None:
    w = work(RULES[0])
    tasks = [(w, replace(job, rate=1e38 if job.client == 3 else 1.0)) for job in jobs(w)]
    outcomes = processes(w).train_all(tasks)
    assert [isinstance(o, DivergenceError) for o in outcomes] == [i == 3 for i in range(len(tasks))]


class Fatal(Small):
    """Kills the processes that train it, `times` times in all."""

    def __init__(self, folder: pathlib.Path, times: int) -> None:
        super().__init__()
        self.parent = os.getpid()
        self.marks = [folder / str(n) for n in range(times)]

    def forward(self, x: Tensor) -> Tensor:
        for mark in self.marks if os.getpid() != self.parent else ():
            with contextlib.suppress(FileExistsError):
                mark.touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)


def test_a_killed_worker_is_replaced_and_its_job_done_again(
    tmp_path: pathlib.Path, processes: Callable[..., Processes]
) -> None:
    w = work(RULES[3])
    executor = processes(w)
    plain = executor.train(jobs(w))
    idle = pids(executor)
    for pid in idle:
        os.kill(pid, signal.SIGKILL)
    assert all(gone(pid) for pid in idle)
    executor.work = w = work(RULES[3], Fatal(tmp_path, times=1))  # and one is killed at work
    again = executor.train(jobs(w))
    assert (tmp_path / "0").exists()
    assert all(same(one, other) for one, other in zip(again, plain, strict=True))


def test_a_job_that_kills_twice_is_an_error(tmp_path: pathlib.Path, processes: Callable[..., Processes]) -> None:
    w = work(RULES[0], Fatal(tmp_path, times=9))
    executor = processes(w)
    with pytest.raises(OffbeatError, match=r"status -9 while it trained client \d+ from version \d.*memory"):
        executor.train(jobs(w))
    assert not pids(executor)


class OddError(Exception):
    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")


@dataclass(kw_only=True, frozen=True)
class Failing(SGD):
    error: str = "value"

    def begin(self, x: Tensor, extra: Any, kept: State) -> State:
        raise {
            "value": ValueError("no good"),
            "odd": OddError("this", "that"),
            "config": ConfigError("bad", key="a.b"),
        }[self.error]


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("value", ValueError, "no good"),
        ("odd", RuntimeError, "OddError: this and that"),
        ("config", ConfigError, "a.b: bad"),
    ],
)
def test_an_error_in_a_worker(
    name: str, kind: type[Exception], message: str, processes: Callable[..., Processes]
) -> None:
    """Its type where it can travel, its message, and the traceback of the worker as a note."""
    w = work(Failing(error=name))
    executor = processes(w)
    with pytest.raises(kind) as caught:
        executor.train(jobs(w))
    assert str(caught.value) == message
    (note,) = caught.value.__notes__
    assert "In a worker process" in note
    assert "test_processes.py" in note
    assert "in begin" in note
    assert not pids(executor), "what the others were at is nobody's any more"
    w.rule = RULES[0]
    assert len(executor.train(jobs(w))) == w.data.clients, "and the executor is as good as new"


def test_the_workers_end_with_close_and_with_the_executor(processes: Callable[..., Processes]) -> None:
    w = work(RULES[0])
    executor = processes(w)
    assert not pids(executor), "started when there is work"
    executor.train(jobs(w))
    members = pids(executor)
    assert len(members) == 2
    executor.close()
    executor.close()
    assert not any(map(running, members))
    other = Processes(w)  # held by nobody else
    other.train(jobs(w))
    members = pids(other)
    del other
    gc.collect()
    assert members
    assert not any(map(running, members))


def test_a_run_ends_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    train_all = Processes.train_all

    def noted(self: Processes, tasks: Sequence[Task]) -> list[Outcome]:
        outcomes = train_all(self, tasks)
        seen.extend(pids(self))
        return outcomes

    monkeypatch.setattr(Processes, "train_all", noted)
    settings: dict[str, Any] = {
        "algorithm": ob.FedBuff(),
        "dispatch": ob.Buffered(concurrency=4, buffer=2),
        "rounds": 3,
    }
    data = federated()
    results = [
        ob.run(data=data.dataset, partition=[data.indices(i) for i in range(5)], model=Small, executor=name, **settings)
        for name in ("sequential", "processes")
    ]
    assert torch.equal(results[0].x, results[1].x)
    assert results[1].summary["executor"] == "processes"
    assert seen
    assert all(gone(pid) for pid in seen)


def test_a_gpu_is_refused() -> None:
    w = work(RULES[0])
    w.device = torch.device("cuda")
    with pytest.raises(ConfigError, match="executor: 'processes' spreads jobs over the cores of a CPU"):
        Processes(w)
