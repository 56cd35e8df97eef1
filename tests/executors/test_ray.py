"""Training on a Ray cluster: the same results as in one process, whichever workers train or die."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import pathlib
import signal
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from tests.support import gone, interrupt_after
from tests.support.pooled import LOOPS, RULES, Failing, Small, federated, jobs, same, work
from tests.support.ray_settings import SETTINGS
from torch import Tensor, nn

import offbeat as ob
from offbeat.client.context import TrainingContext
from offbeat.client.rules import SGD, Scaffold, State
from offbeat.client.runtime import ClientRuntime
from offbeat.compression import Compression, TopK
from offbeat.errors import ConfigError, DivergenceError, OffbeatError
from offbeat.executors import EXECUTORS, Ray, Vectorized, choice
from offbeat.executors.base import Task, TrainingOutcome
from offbeat.executors.vectorized import stacks
from offbeat.messages import Update
from offbeat.models import MLP

ray = pytest.importorskip("ray", reason="needs the extra 'ray'")

PERCEPTRON = MLP().build((1, 8, 8), 4)


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> Iterator[None]:
    """Start one cluster for all tests of this file, like a program that calls `ray.init` itself."""
    before, handler = torch.get_num_threads(), signal.getsignal(signal.SIGTERM)
    torch.set_num_threads(1)  # `sequential` gives the same bits with one thread
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)  # they stay set, since Ray remembers them as well
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        ray.init(
            "local", num_cpus=2, object_store_memory=100 << 20, include_dashboard=False, log_to_driver=False,
            logging_level=logging.ERROR, _temp_dir=folder,
        )  # fmt: skip
        yield
        ray.shutdown()
    signal.signal(signal.SIGTERM, handler)
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def executors() -> Iterator[dict[str, Ray]]:
    """Provide one executor that trains jobs singly, since its model has convolutions, and one that trains stacks."""
    both = {"small": Ray(work(RULES[0])), "mlp": Ray(work(RULES[0], PERCEPTRON))}
    assert [executor.stacked for executor in both.values()] == [False, True]
    yield both
    for executor in both.values():
        executor.close()


@pytest.fixture
def free_cores(executors: dict[str, Ray]) -> None:
    """Close all executors, so that both cores are free."""
    for executor in executors.values():
        executor.close()


@pytest.fixture
def small(executors: dict[str, Ray]) -> Ray:
    executors["mlp"].close()  # there are two cores
    return executors["small"]


@pytest.fixture
def mlp(executors: dict[str, Ray]) -> Ray:
    executors["small"].close()
    return executors["mlp"]


def tasks_of(works: list[ClientRuntime], seed: int) -> list[Task]:
    """Return the jobs of several runs, interleaved."""
    return [task for turn in zip(*([(w, j) for j in jobs(w, seed)] for w in works), strict=True) for task in turn]


def pids(executor: Ray) -> list[int]:
    return [worker.pid for worker in executor.backend.cluster.workers] if executor.backend.cluster else []


def all_same(ones: Sequence[TrainingOutcome], others: Sequence[TrainingOutcome]) -> bool:
    pairs = zip(ones, others, strict=True)
    return all(isinstance(one, Update) and isinstance(other, Update) and same(one, other) for one, other in pairs)


def equal_state(one: ClientRuntime, other: ClientRuntime) -> bool:
    assert {name: rows.keys() for name, rows in one.state.rows.items()} == {
        n: rows.keys() for n, rows in other.state.rows.items()
    }
    return all(
        torch.equal(row, other.state.rows[name][c]) for name, rows in one.state.rows.items() for c, row in rows.items()
    )


def test_the_same_bits_as_sequential(small: Ray) -> None:
    """A model with convolutions and dropout, every client rule, error feedback, five runs at once, client state."""
    topk, data = Compression(upload=TopK(rate=0.1), error_feedback=True), federated()
    works, twins = ([work(rule, data=data, compression=topk) for rule in [*RULES, *LOOPS]] for _ in range(2))
    plain = EXECUTORS["sequential"](works[0])
    for seed in range(2):  # the second time with the clients' state of the first
        assert all_same(plain.train_all(tasks_of(works, seed)), small.train_all(tasks_of(twins, seed)))
    assert all(equal_state(w, twin) for w, twin in zip(works, twins, strict=True))
    assert len(pids(small)) == 2


def test_divergence_and_errors(small: Ray) -> None:
    """A diverged client is an outcome like others; an exception in a worker is raised here."""
    w = work(RULES[0])
    tasks = [(w, replace(job, rate=1e38 if job.client == 3 else 1.0)) for job in jobs(w)]
    assert [isinstance(each, DivergenceError) for each in small.train_all(tasks)] == [i == 3 for i in range(len(tasks))]
    w.context.rule = Failing(error="config")
    with pytest.raises(ConfigError, match=r"a\.b: bad") as caught:
        small.train_all(tasks)
    assert "in begin" in caught.value.__notes__[0]
    assert not pids(small), "busy workers are ended, too"


def test_stacks_are_those_of_vectorized(mlp: Ray) -> None:
    """The same bits as `vectorized` for the same stacks, and its results up to rounding for all jobs in one stack."""
    data = federated()
    works, twins, others = ([work(rule, copy.deepcopy(PERCEPTRON), data) for rule in RULES] for _ in range(3))
    for seed in range(2):
        tasks, found = tasks_of(works, seed), mlp.train_all(tasks_of(twins, seed))
        assert mlp.parts == 2
        for places in stacks(tasks, mlp.rows, 2):
            here = Vectorized(works[0]).train_all([tasks[place] for place in places])
            assert all_same(here, [found[place] for place in places])
        for one, other in zip(Vectorized(others[0]).train_all(tasks_of(others, seed)), found, strict=True):
            assert isinstance(one, Update)
            assert isinstance(other, Update)
            torch.testing.assert_close(other.delta, one.delta)
    assert all(equal_state(w, twin) for w, twin in zip(works, twins, strict=True))


@dataclass(kw_only=True, frozen=True)
class Deadly(Scaffold):
    """Kills the first `deaths` workers that use it."""

    marks: str = ""
    deaths: int = 0

    def begin(self, x: Tensor, extra: Any, client_state: State) -> State:
        for number in range(self.deaths):
            with contextlib.suppress(FileExistsError):
                (pathlib.Path(self.marks) / str(number)).touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
        return super().begin(x, extra, client_state)


def test_killed_workers_change_no_bit(mlp: Ray, tmp_path: pathlib.Path) -> None:
    """One worker is killed while idle, and one while training."""
    rule, data = Deadly(lr=0.1, epochs=2, batch_size=8, marks=str(tmp_path)), federated()
    one, other = work(rule, PERCEPTRON, data), work(replace(rule, deaths=1), PERCEPTRON, data)
    whole = mlp.train_all([(one, job) for job in jobs(one)])
    os.kill(idle := pids(mlp)[0], signal.SIGKILL)
    assert gone(idle)
    assert all_same(mlp.train_all([(other, job) for job in jobs(other)]), whole)
    assert (tmp_path / "0").exists()
    assert idle not in pids(mlp)
    assert equal_state(one, other)


def test_jobs_that_kill_every_worker_are_an_error(
    mlp: Ray, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlp.backend, "attempts", 2)
    w = work(Deadly(steps=1, marks=str(tmp_path), deaths=99), PERCEPTRON)
    with pytest.raises(OffbeatError, match=r"2 workers .* were lost .* client \d from version \d.*process has died"):
        mlp.train_all([(w, job) for job in jobs(w)[:1]])
    assert not pids(mlp)


@pytest.mark.usefixtures("free_cores")
def test_running_statistics() -> None:
    """Buffers are sent with a job and returned."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.BatchNorm1d(5), nn.Linear(5, 4))
    w, twin = work(RULES[0], module), work(RULES[0], copy.deepcopy(module))
    job = replace(jobs(w)[2], extra={"buffers": w.context.buffers.read(w.context.module) + 0.5})
    with contextlib.closing(Ray(twin)) as executor:
        assert all_same(EXECUTORS["vectorized"](w).train([job]), executor.train([job]))
        workers = pids(executor)
    assert all(gone(pid) for pid in workers)
    assert len(workers) == 1, "not more workers than jobs"
    assert ray.is_initialized(), "the program has started it"


@pytest.mark.usefixtures("free_cores")
def test_personal_parts_stay_with_the_loop() -> None:
    """Workers train [x, p_i] and keep nothing; the second job starts from the stored part."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.BatchNorm1d(5), nn.Linear(5, 4))
    personal = ob.Personalization(parameters=("3",), norms=True, head_steps=2)
    runtimes = [
        ClientRuntime(
            TrainingContext(copy.deepcopy(module), federated(), SGD(lr=0.1, steps=2, batch_size=8), torch.device("cpu"),
                            personalization=personal)
        )
        for _ in range(2)
    ]  # fmt: skip
    context = runtimes[0].context
    job = replace(jobs(runtimes[0])[2], x=context.split.shared.read(context.module), steps=4)
    plain = EXECUTORS["vectorized"](runtimes[0])
    with contextlib.closing(Ray(runtimes[1])) as executor:
        for _ in range(2):
            assert all_same(plain.train([job]), executor.train([job]))
    for name, rows in runtimes[0].state.rows.items():
        assert all(torch.equal(value, runtimes[1].state.rows[name][client]) for client, value in rows.items())
    assert runtimes[0].state.get("personal", job.client) is not None


class Unwelcome(Small):
    """Cannot be unpickled in another process."""

    def __reduce__(self) -> Any:
        return _refuse, (os.getpid(),)


def _refuse(pid: int) -> nn.Module:
    if pid != os.getpid():
        raise ImportError("no such library here")
    return Unwelcome()


@pytest.mark.usefixtures("free_cores")
class Noisy:
    """Examples that are random on every access."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[Tensor, float]:
        return index / 40 + torch.rand(3), index / 40


@pytest.mark.usefixtures("free_cores")
def test_examples_that_are_read_when_they_are_needed() -> None:
    """A worker reads them itself, and what is random is the same in any process. One worker starts sooner than two."""
    results = [
        ob.run(
            data=ob.from_datasets(Noisy(), Noisy(), lazy=True), clients=5, model=lambda: nn.Linear(3, 1), rounds=3,
            task="regression", algorithm=ob.FedBuff(), scheduler=ob.Buffered(concurrency=1, buffer=1),
            client=ob.SGD(lr=0.1, batch_size=4), executor=executor,
        )
        for executor in ("sequential", "ray")
    ]  # fmt: skip
    assert torch.equal(results[0].x, results[1].x)


def test_workers_that_cannot_start_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offbeat.executors.cluster.MAX_FAILED_STARTS", 1)
    w = work(RULES[0], Unwelcome())
    with pytest.raises(OffbeatError, match=r"no worker of the Ray cluster can be started: .*no such library here"):
        Ray(w).train(jobs(w)[:1])


def test_no_room_in_the_cluster_is_an_error() -> None:
    from offbeat.executors.cluster import Cluster

    cluster = Cluster("GPU")
    cluster.request_workers(2, None)
    with pytest.raises(OffbeatError, match="no worker is left: the Ray cluster has no node with a GPU"):
        next(cluster.replies())


@pytest.mark.usefixtures("free_cores")
def test_a_resumed_run_equals_the_whole_one(tmp_path: pathlib.Path) -> None:
    """An interrupted and resumed run equals that of `sequential`. One job at a time: one worker starts sooner."""
    data = federated()
    settings: dict[str, Any] = {
        "data": data.dataset, "partition": [data.indices(i) for i in range(5)], "model": Small, "rounds": 6,
        "algorithm": ob.CA2FL(), "client": Scaffold(steps=2, batch_size=4), "evaluation": 1,
        "scheduler": ob.Buffered(concurrency=1, buffer=1),
    }  # fmt: skip
    whole = ob.run(executor="sequential", **settings)
    with pytest.raises(KeyboardInterrupt, match="interrupted at round 3"):
        ob.run(executor="ray", out=tmp_path / "run", watch=interrupt_after(3), **settings)
    rest = ob.run(executor="ray", out=tmp_path / "run", resume=True, **settings)
    assert rest.summary["executor"] == "ray"
    assert torch.equal(rest.x, whole.x)
    assert [line["loss"] for line in rest.evaluations] == [line["loss"] for line in whole.evaluations]


def test_stacks_stay_the_same_in_another_cluster() -> None:
    """A run that began with five workers is always split into five stacks."""
    began, later = (Ray(work(RULES[0], copy.deepcopy(PERCEPTRON))) for _ in range(2))
    assert began.parts is None, "no cluster is started before there is work"
    began.split(5)
    later.load_state_dict(began.state_dict())
    tasks = [(later.runtime, job) for job in jobs(later.runtime)]
    assert (later.parts, later.bulk) == (5, began.bulk)
    assert len(later.groups(tasks)) == 5


def test_auto_leaves_ray_alone_and_gossip_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "client_steps_per_second", lambda executor, tasks, enough: 1.0)
    monkeypatch.setattr(choice, "_CHOSEN", {})
    assert "ray" not in choice.choose("auto", work(RULES[0]), 4, 10_000)[1]
    with pytest.raises(
        ConfigError, match="executor: gossip stacks the models of all clients, which 'ray' does not support"
    ):
        ob.run(
            data=federated().dataset,
            clients=4,
            model=MLP(),
            algorithm=ob.algorithms.DSGD(),
            client=SGD(steps=1),
            executor="ray",
        )


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"executor: .*Ray is not installed: pip install 'offbeat\[ray\]'"):
        choice.choose("ray", work(RULES[0]), 4, 10)
    with pytest.raises(ConfigError, match=r"pip install 'offbeat\[ray\]'"):
        Ray(work(RULES[0]))
