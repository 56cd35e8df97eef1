"""Training in worker processes: the same bits as `sequential`, and workers that end with the run."""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import pathlib
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.support import gone, running
from tests.support.pooled import LOOPS, RULES, Failing, Small, federated, jobs, same, work
from torch import Tensor

import offbeat as ob
from offbeat.client.rules import SGD, ClientRule, Scaffold
from offbeat.client.runtime import ClientRuntime
from offbeat.compression import Compression, TopK
from offbeat.errors import ConfigError, DivergenceError, OffbeatError
from offbeat.executors import EXECUTORS, Processes
from offbeat.executors.base import Task, TrainingOutcome
from offbeat.executors.shared import SharedSlab, SlabAllocator
from offbeat.messages import Update
from offbeat.models import CNN


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Use one thread, with which `sequential` gives the same bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def processes() -> Iterator[Callable[..., Processes]]:
    with contextlib.ExitStack() as stack:

        def make(w: ClientRuntime, most: int = 2) -> Processes:
            executor = Processes(w)
            executor.backend.size = most
            stack.callback(executor.close)
            return executor

        yield make


def pids(executor: Processes) -> list[int]:
    return [worker.pid for worker in executor.backend.workers]


@pytest.mark.parametrize("rule", [*RULES, *LOOPS], ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("most", [1, 3])
def test_the_same_bits_as_sequential(rule: ClientRule, most: int, processes: Callable[..., Processes]) -> None:
    topk = Compression(upload=TopK(rate=0.1), error_feedback=True)
    w, twin = work(rule, compression=topk), work(rule, compression=topk)
    plain, spread = EXECUTORS["sequential"](w), processes(twin, most)
    for round_ in range(2):  # the second time with the clients' state of the first
        pairs = zip(plain.train(jobs(w, round_)), spread.train(jobs(twin, round_)), strict=True)
        assert all(same(one, other) for one, other in pairs)
    assert twin.state.rows.keys() == w.state.rows.keys()
    for name, rows in w.state.rows.items():
        assert rows.keys() == twin.state.rows[name].keys()
        assert all(torch.equal(row, twin.state.rows[name][client]) for client, row in rows.items())


def test_the_same_bits_for_the_cnn_and_with_too_little_shared_memory(processes: Callable[..., Processes]) -> None:
    """A tensor without a slot that is large enough is sent through the pipe."""
    w = work(Scaffold(lr=0.1, steps=2, batch_size=4), CNN().build((1, 8, 8), 4))
    plain = EXECUTORS["sequential"](w).train(jobs(w))
    for slab in (None, SharedSlab(3, 4 * w.context.layout.dim), SharedSlab(9, 100)):
        twin = work(w.context.rule, copy.deepcopy(w.context.module))
        spread = processes(twin)
        spread.backend.allocator = None if slab is None else SlabAllocator(slab)
        spread.backend.rules = [w.context.rule]
        assert all(same(one, other) for one, other in zip(plain, spread.train(jobs(w)), strict=True))


def test_two_runs_in_one_call(processes: Callable[..., Processes]) -> None:
    """The runs differ in partition, learning rate, client state and rule; the second one brings a new rule."""
    data = federated()
    works = [
        work(SGD(lr=0.1, epochs=1, batch_size=8), data=data),
        work(Scaffold(lr=0.2, epochs=1, batch_size=4), data=replace(data, order=data.order[::-1].copy())),
    ]
    twins = [ClientRuntime(w.context) for w in works]
    spread = processes(twins[0])
    first = spread.train(jobs(works[0]))
    before = pids(spread)
    both = [task for pair in zip(*([(t, j) for j in jobs(t)] for t in twins), strict=True) for task in pair]
    mixed = spread.train_all(both)
    assert not set(before) & set(pids(spread)), "restarted for the second rule"
    for w, part in zip(works, (mixed[::2], mixed[1::2]), strict=True):
        plain = EXECUTORS["sequential"](w).train(jobs(w))
        assert all(isinstance(u, Update) and same(u, v) for u, v in zip(part, plain, strict=True))
    assert all(same(u, v) for u, v in zip(first, EXECUTORS["sequential"](works[0]).train(jobs(works[0])), strict=True))


def test_after_threads_were_used_in_the_parent(processes: Callable[..., Processes]) -> None:
    """OpenMP's threads do not exist in a fork: a worker that entered a parallel region would never return."""
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
    w = work(RULES[3], Fatal(tmp_path, times=1))  # and one is killed while training
    executor.runtime, executor.context, executor.backend.context = w, w.context, w.context
    again = executor.train(jobs(w))
    assert (tmp_path / "0").exists()
    assert all(same(one, other) for one, other in zip(again, plain, strict=True))


def test_a_job_that_kills_twice_is_an_error(tmp_path: pathlib.Path, processes: Callable[..., Processes]) -> None:
    w = work(RULES[0], Fatal(tmp_path, times=9))
    executor = processes(w)
    with pytest.raises(OffbeatError, match=r"2 worker processes .* client \d+ from version \d.*status -9.*memory"):
        executor.train(jobs(w))
    assert not pids(executor)


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
    """The error keeps its type if it can be pickled, and its message; the worker's traceback is a note."""
    w = work(Failing(error=name))
    executor = processes(w)
    with pytest.raises(kind) as caught:
        executor.train(jobs(w))
    assert str(caught.value) == message
    (note,) = caught.value.__notes__
    assert "In a worker process" in note
    assert "support/pooled.py" in note
    assert "in begin" in note
    assert not pids(executor), "busy workers are ended, too"
    w.context.rule = RULES[0]
    assert len(executor.train(jobs(w))) == w.context.data.clients, "the executor can be used again"


def test_the_workers_end_with_close_and_with_the_executor(processes: Callable[..., Processes]) -> None:
    w = work(RULES[0])
    executor = processes(w)
    assert not pids(executor), "workers start with the first job"
    executor.train(jobs(w))
    members = pids(executor)
    assert len(members) == 2
    executor.close()
    executor.close()
    assert not any(map(running, members))
    other = Processes(w)  # the only reference
    other.train(jobs(w))
    members = pids(other)
    del other
    gc.collect()
    assert members
    assert not any(map(running, members))


def test_a_run_ends_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    train_all = Processes.train_all

    def noted(self: Processes, tasks: Sequence[Task]) -> list[TrainingOutcome]:
        outcomes = train_all(self, tasks)
        seen.extend(pids(self))
        return outcomes

    monkeypatch.setattr(Processes, "train_all", noted)
    settings: dict[str, Any] = {
        "algorithm": ob.FedBuff(),
        "scheduler": ob.Buffered(concurrency=4, buffer=2),
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
    w.context.device = torch.device("cuda")
    with pytest.raises(ConfigError, match="executor: 'processes' spreads jobs over the cores of a CPU"):
        Processes(w)
