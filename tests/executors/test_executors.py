"""The executors against each other and against plain torch."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.executors import NORMED, RULES, built, deltas, federated, jobs, work
from torch import Tensor, nn

from offbeat.client.rules import SGD, ClientRule, Correction, Number, Scaffold, State
from offbeat.client.training import train_job
from offbeat.data import PartitionedDataset, from_arrays
from offbeat.errors import ConfigError, DivergenceError
from offbeat.executors import EXECUTORS, Executor, Graphs, choice, choose, vectorized
from offbeat.executors.base import Task
from offbeat.executors.batch_norm import masked_batch_norm
from offbeat.messages import Job, Update
from offbeat.models import CNN, LR, MLP, Model
from offbeat.random import key

HERE = [name for name in EXECUTORS if name not in ("graphs", "ray")]  # which need a GPU, and a cluster


def combined(models: list[Model]) -> list[Any]:
    """Return all pairs of a model and a rule; the CNN, which takes long, with fewer rules."""
    return [
        pytest.param(
            model, rule, id=f"{type(model).__name__}-{n}-{rule.name}",
            marks=[pytest.mark.slow] if isinstance(model, CNN) and n else [],
        )
        for model in models
        for n, rule in enumerate(RULES)
        if not isinstance(model, CNN) or n in (0, 3, 7)
    ]  # fmt: skip


def rounding(rule: ClientRule) -> float:
    """Return the absolute tolerance in double precision; Adam and Adagrad turn the rounding of zeros into steps."""
    optimizer = rule.optimizer if isinstance(rule, Correction) else rule
    return 1e-11 if isinstance(optimizer, SGD) else 1e-8


@pytest.mark.parametrize(("model", "rule"), combined([LR(), MLP(hidden=(12, 7)), CNN()]))
def test_both_executors_give_the_same_updates(model: Model, rule: ClientRule) -> None:
    """In double precision, where a wrong mask or weight could not hide behind rounding."""
    data = federated()
    exact = replace(data, dataset=replace(data.dataset, x=data.dataset.x.double()))
    w = work(built(model).double(), rule, exact)
    js, twin = jobs(w), work(copy.deepcopy(w.context.module), rule, exact)
    for _ in range(2):  # the second time with the clients' state of the first
        plain, stacked = deltas("sequential", w, js), deltas("vectorized", twin, js)
        assert (plain.norm(dim=1) > 1e-4).all(), "every client has moved"
        torch.testing.assert_close(stacked, plain, rtol=1e-9, atol=rounding(rule))
    for name in rule.client_state:
        for client in range(w.context.data.clients):
            torch.testing.assert_close(twin.state.rows[name][client], w.state.rows[name][client], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("model", [LR(), MLP(hidden=(12, 7)), CNN()], ids=lambda m: type(m).__name__)
def test_both_executors_agree_up_to_rounding_in_single_precision(model: Model) -> None:
    """By norm: an entry behind a ReLU or a pool that two roundings take on different sides may differ by more."""
    w = work(built(model), RULES[0])
    js = jobs(w)
    plain, stacked = deltas("sequential", w, js), deltas("vectorized", w, js)
    assert ((stacked - plain).norm(dim=1) < 1e-3 * plain.norm(dim=1)).all()


@dataclass(kw_only=True, frozen=True)
class SignSGD(SGD):
    def step(self, y: Tensor, g: Tensor, x: Tensor, lr: Number, state: State) -> tuple[Tensor, State]:
        return y - lr * g.sign(), state


def test_a_rule_made_of_another_has_its_own_steps() -> None:
    """SGD's have short cuts."""
    w = work(built(MLP(hidden=(9,))).double(), SignSGD(lr=0.01, epochs=2, batch_size=8))
    w.context.x = w.context.x.double()
    plain, stacked = deltas("sequential", w, jobs(w)), deltas("vectorized", w, jobs(w))
    torch.testing.assert_close(stacked, plain, rtol=1e-9, atol=1e-11)
    assert (plain[0] / (0.01 * w.context.steps(0))).abs().max() == pytest.approx(1.0), (
        "gradient steps would not get that far"
    )


@pytest.mark.parametrize(("model", "rule"), combined([MLP(hidden=(12, 7)), CNN()]))
def test_graphs_give_the_same_updates(model: Model, rule: ClientRule) -> None:
    """`graphs` on a CPU, where nothing is captured: programs, memory and the order of the steps are the same."""
    data = federated()
    exact = replace(data, dataset=replace(data.dataset, x=data.dataset.x.double()))
    w = work(built(model).double(), rule, exact)
    js, twin = jobs(w), work(copy.deepcopy(w.context.module), rule, exact)
    graphs = Graphs(twin, compiled=False)
    for _ in range(2):
        plain = deltas("sequential", w, js)
        moved = torch.stack([u.delta for u in graphs.train_all([(twin, j) for j in js]) if isinstance(u, Update)])
        torch.testing.assert_close(moved, plain, rtol=1e-9, atol=rounding(rule))


@pytest.mark.parametrize("name", ["sequential", "vectorized", "graphs", "processes"])
def test_running_statistics_go_down_and_come_back(name: str) -> None:
    """Against torch's own loop on a copy: the client starts from the b it is sent and sends its own back."""
    data = federated(sizes=(8, 20, 42))
    exact = replace(data, dataset=replace(data.dataset, x=data.dataset.x.double()))
    w = work(copy.deepcopy(NORMED).double(), SGD(lr=0.1, epochs=2, batch_size=8), exact)
    assert w.context.buffers.names == tuple(n for n, _ in w.context.module.named_buffers())
    x, b = (
        w.context.layout.read(w.context.module),
        w.context.buffers.read(w.context.module) + torch.arange(w.context.buffers.dim) % 3,
    )
    js = [Job(i, i, 0, x, w.context.steps(i), key(i), extra={"buffers": b}) for i in range(3)]
    executor = Graphs(w, compiled=False) if name == "graphs" else EXECUTORS[name](w)
    for job, update in zip(js, executor.train_all([(w, job) for job in js]), strict=True):
        module = copy.deepcopy(NORMED).double().train()
        w.context.layout.write(module, x)
        w.context.buffers.write(module, b)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for batch, count in zip(*w.context.plan(job), strict=True):
            index = torch.from_numpy(batch[:count])
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(w.context.inputs(index)), w.context.y[index]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        assert isinstance(update, Update)
        torch.testing.assert_close(update.delta, w.context.layout.read(module) - x, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(update.extra["buffers"], w.context.buffers.read(module), rtol=1e-9, atol=1e-10)
        assert update.wire_bytes == 4 * (w.context.layout.dim + w.context.buffers.dim)
    executor.close()


def normed(*, affine: bool = True, momentum: float | None = 0.1) -> nn.Module:
    """Return a model with BatchNorm over images, sequences and vectors."""
    torch.manual_seed(0)
    options: dict[str, Any] = {"affine": affine, "momentum": momentum}
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, **options), nn.ReLU(), nn.Flatten(2), nn.BatchNorm1d(4, **options),
        nn.Flatten(), nn.Linear(144, 6), nn.BatchNorm1d(6, **options), nn.ReLU(), nn.Linear(6, 4),
    ).double()  # fmt: skip


@pytest.mark.parametrize("module", [normed(), normed(affine=False), normed(momentum=None)], ids=["", "plain", "mean"])
@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.client_state or rule.accumulate > 1], ids=str)
@pytest.mark.parametrize("name", ["vectorized", "graphs"])
def test_batch_norm_is_the_same_in_a_stack(name: str, rule: ClientRule, module: nn.Module) -> None:
    """Short batches and clients of unequal size: padding must count neither in the statistics nor in a gradient."""
    data = federated(sizes=(6, 12, 20, 42, 10))
    exact = replace(data, dataset=replace(data.dataset, x=data.dataset.x.double()))
    w, twin = (work(copy.deepcopy(module), rule, exact) for _ in range(2))
    b = w.context.buffers.read(w.context.module)
    js = [replace(job, extra={**job.extra, "buffers": b + job.id}) for job in jobs(w)]
    executor: Executor = Graphs(twin, compiled=False) if name == "graphs" else EXECUTORS[name](twin)
    for _ in range(2):
        plain = EXECUTORS["sequential"](w).train(js)
        for one, stacked in zip(plain, executor.train(js), strict=True):
            torch.testing.assert_close(stacked.delta, one.delta, rtol=1e-8, atol=max(1e-10, rounding(rule)))
            for part, value in one.extra.items():
                torch.testing.assert_close(stacked.extra[part], value, rtol=1e-8, atol=max(1e-9, 10 * rounding(rule)))
            assert stacked.loss == pytest.approx(one.loss, rel=1e-9)


def test_batch_norm_without_a_host_is_the_same() -> None:
    """The formulas for GPUs, where the counts are not known on the host, against one client after the other."""
    rng = torch.Generator().manual_seed(0)
    for shape in ((6,), (6, 5), (6, 4, 3)):
        x = torch.randn((12, *shape), generator=rng, dtype=torch.float64)
        g = torch.randn((12, *shape), generator=rng, dtype=torch.float64)
        weight, bias = torch.randn((2, 3, 6), generator=rng, dtype=torch.float64)
        counts = [4, 2, 3]
        ours = [t.clone().requires_grad_() for t in (x, weight, bias)]
        y, mean, variance = masked_batch_norm(ours[0], ours[1], ours[2], torch.tensor(counts), 1e-5)
        y.backward(g)  # type: ignore[no-untyped-call]
        assert ours[0].grad is not None
        for i, count in enumerate(counts):
            rows = slice(4 * i, 4 * i + count)
            theirs = [t.clone().requires_grad_() for t in (x[rows], weight[i], bias[i])]
            expected = nn.functional.batch_norm(theirs[0], None, None, theirs[1], theirs[2], training=True)
            expected.backward(g[rows])  # type: ignore[no-untyped-call]
            torch.testing.assert_close(y[rows], expected)
            torch.testing.assert_close(ours[0].grad[rows], theirs[0].grad)
            torch.testing.assert_close(ours[0].grad[4 * i + count : 4 * i + 4], torch.zeros_like(x)[: 4 - count])
            for own, grad in ((ours[1], theirs[1].grad), (ours[2], theirs[2].grad)):
                assert own.grad is not None
                torch.testing.assert_close(own.grad[i], grad)
            dims = [0, *range(2, x.ndim)]
            torch.testing.assert_close(mean[i], x[rows].mean(dim=dims))
            torch.testing.assert_close(variance[i], x[rows].var(dim=dims, correction=0))


@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("rule", [RULES[0], RULES[5], RULES[7]], ids=str)
def test_the_training_loss_of_an_update(name: str, rule: ClientRule) -> None:
    """The mean over the local steps of the loss before each step, which shorter jobs reveal."""
    w = work(built(LR()).double(), rule)
    w.context.x = w.context.x.double()
    whole = jobs(w)
    w.context.module.train()
    updates = EXECUTORS[name](w).train(whole)
    for job, update in zip(whole, updates, strict=True):
        batches, counts = w.context.plan(job)
        losses = []
        for t in range(job.steps):
            before = replace(job, steps=t)
            delta = train_job(w.context, w.item(before), (batches[:t], counts[:t])).delta if t else 0
            module = copy.deepcopy(w.context.module)
            w.context.layout.write(module, job.x + delta)
            index = torch.from_numpy(batches[t][: counts[t]])
            loss = nn.functional.cross_entropy(module(w.context.inputs(index)), w.context.y[index])
            losses.append(loss.item())
        assert update.loss == pytest.approx(np.mean(losses), rel=1e-9)


def test_the_plain_executor_is_a_torch_training_loop() -> None:
    """Against torch.optim on a copy of the module, batch by batch."""
    rule = SGD(lr=0.05, epochs=2, batch_size=8, momentum=0.9, weight_decay=1e-2)
    w = work(built(MLP(hidden=(9,))), rule)
    js = jobs(w, models=1)
    for job, delta in zip(js, deltas("sequential", w, js), strict=True):
        module = copy.deepcopy(w.context.module)
        w.context.layout.write(module, job.x)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05 * job.rate, momentum=0.9, weight_decay=1e-2)
        batches, counts = w.context.plan(job)
        for batch, count in zip(batches, counts, strict=True):
            index = torch.from_numpy(batch[:count])
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(w.context.inputs(index)), w.context.y[index]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        torch.testing.assert_close(w.context.layout.read(module) - job.x, delta, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", HERE)
def test_the_same_jobs_give_the_same_bytes_and_leave_x_alone(name: str) -> None:
    w = work(built(MLP()), RULES[0])
    js = jobs(w)
    before = [j.x.clone() for j in js]
    assert torch.equal(deltas(name, w, js), deltas(name, w, js))
    assert all(torch.equal(j.x, x) for j, x in zip(js, before, strict=True))


@pytest.mark.parametrize("name", HERE)
def test_dropout_is_replayable_and_leaves_the_global_generator_alone(name: str) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Dropout(0.5), nn.Linear(16, 4))
    w = work(module, RULES[0])
    js = jobs(w)
    first = deltas(name, w, js)
    state = torch.get_rng_state()
    torch.rand(5)
    torch.set_rng_state(state)
    assert torch.equal(deltas(name, w, js), first)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", HERE)
def test_frozen_and_unused_parameters(name: str) -> None:
    """A frozen layer is no part of x; a parameter that the loss does not reach has gradient zero."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen = nn.Linear(64, 64)
            self.frozen.requires_grad_(False)
            self.head = nn.Linear(64, 4)
            self.unused = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.frozen(x.flatten(1)))
            return out

    w = work(Net(), SGD(lr=0.1, epochs=1, batch_size=8))
    assert w.context.layout.dim == 64 * 4 + 4 + 12
    moved = deltas(name, w, jobs(w))
    assert not moved[:, -12:].any()
    assert moved[:, :-12].any()


@pytest.mark.parametrize("name", HERE)
def test_divergence_names_the_client_and_the_rate(name: str) -> None:
    w = work(built(MLP()), SGD(lr=1e30, epochs=3, batch_size=4))
    with pytest.raises(DivergenceError, match=r"client \d+ diverged .* client\.lr \(now 1e\+30\)"):
        EXECUTORS[name](w).train(jobs(w))


def test_auto_takes_the_fastest_and_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    """With given timings: which executor wins, by how much, and that no trial is repeated."""
    watched: list[str] = []
    speed = {"Sequential": 100.0, "Vectorized": 95.0, "Processes": 104.0}

    def stopwatch(executor: Executor, tasks: Sequence[Task], enough: float) -> float:
        watched.append(type(executor).__name__)
        assert len(tasks) == 6
        if speed[watched[-1]] < 0:
            raise ConfigError("a child cannot differentiate", key="executor")
        return speed[watched[-1]]

    monkeypatch.setattr(choice, "client_steps_per_second", stopwatch)
    monkeypatch.setattr(choice, "_CHOSEN", {})
    w = work(built(MLP()), RULES[0])
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    found = {"vectorized": 95.0, "sequential": 100.0, "processes": 104.0}
    assert choose("auto", w, 6, 10_000) == ("vectorized", found), "too small a gain"
    assert choose("auto", work(built(MLP()), RULES[0]), 6, 10_000)[0] == "vectorized"
    assert watched == ["Vectorized", "Sequential", "Processes"]
    speed |= {"Sequential": 2000.0, "Processes": 9000.0}
    name, tried = choose("auto", work(built(MLP()), RULES[1]), 6, 10_000)
    assert name == "sequential", "another rule gets a new trial"
    assert "processes" not in tried, "messages cost too much for a small model"
    speed |= {"Sequential": 100.0, "Processes": 120.0}
    assert choose("auto", work(built(MLP()), RULES[2]), 6, 10_000)[0] == "processes"
    speed |= {"Processes": -1.0}
    assert choose("auto", work(built(MLP()), RULES[3]), 6, 10_000)[0] == "vectorized"
    assert choose("vectorized", w, 6, 10_000) == ("vectorized", {})
    speed |= {"Vectorized": 60.0}
    watched.clear()
    assert choose("auto", work(built(MLP()), RULES[0]), 6, 1)[0] == "vectorized"
    assert watched == ["Vectorized"], "the run is short: no other is tried"


def test_a_trial_leaves_no_trace() -> None:
    w = work(built(MLP()), Scaffold(lr=0.1, epochs=1, batch_size=8))
    before, state = w.context.layout.read(w.context.module), torch.get_rng_state()
    assert choose("auto", w, 4, 10_000)[0] in EXECUTORS
    assert torch.equal(w.context.layout.read(w.context.module), before)
    assert torch.equal(torch.get_rng_state(), state)
    assert w.state.rows == {"c_i": {}, "error": {}}


def test_a_model_that_cannot_be_stacked() -> None:
    """`auto` falls back, `vectorized` says why not."""

    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 4)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.layer(x.flatten(1))
            return out if out.sum().item() > 0 else -out

    w = work(Branching(), RULES[0])
    assert choose("auto", w, 4, 10_000)[0] in ("sequential", "processes")
    with pytest.raises(ConfigError, match=r"executor: 'vectorized' cannot run this model: .*item"):
        choose("vectorized", w, 4, 10_000)


class Shared(nn.Module):
    """Two parameters that are added up, so that autograd has one gradient for both, and one that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.unused = (nn.Parameter(torch.randn(4)) for _ in range(3))
        self.head = nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(x.flatten(1)) + (self.one + self.other)
        return outputs


@pytest.mark.parametrize("rule", RULES, ids=lambda r: type(r).__name__)
def test_parameters_with_one_gradient(rule: ClientRule) -> None:
    torch.manual_seed(0)
    module = Shared()
    found = []
    for name in ("sequential", "vectorized"):
        w = work(copy.deepcopy(module), rule)
        executor = EXECUTORS[name](w)
        found.append([u.delta for _ in range(2) for u in executor.train(jobs(w))])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


class Tied(nn.Module):
    """A layer that is used twice, and a weight that two layers share."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice, self.again = nn.Linear(64, 8), nn.Linear(8, 8), nn.Linear(8, 8, bias=False)
        self.again.weight = self.twice.weight
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.twice(self.twice(self.first(x.flatten(1))).relu()).relu()
        outputs: Tensor = self.head(self.again(y))
        return outputs


@pytest.mark.parametrize("rule", RULES, ids=lambda r: type(r).__name__)
def test_layers_that_are_used_several_times(rule: ClientRule) -> None:
    """Every use adds to the gradient, also where that is never put together."""
    torch.manual_seed(0)
    data = federated()
    exact = replace(data, dataset=replace(data.dataset, x=data.dataset.x.double()))
    w = work(Tied().double(), rule, exact)
    js, twin = jobs(w), work(copy.deepcopy(w.context.module), rule, exact)
    torch.testing.assert_close(deltas("vectorized", twin, js), deltas("sequential", w, js), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", HERE)
def test_updates_are_numbers_and_no_part_of_a_graph(name: str) -> None:
    """One that could be differentiated would keep its job's memory alive, and so would every x after it."""
    w = work(built(MLP(hidden=(12, 7))), RULES[0])
    assert not any(update.delta.requires_grad for update in EXECUTORS[name](w).train(jobs(w)))


class Viewing(nn.Module):
    """Takes a view of its images, which must lie row by row then."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(2, 3, 3), nn.Linear(2 * 64 + 3 * 36, 4)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(torch.cat([x.view(len(x), -1), self.conv(x).flatten(1)], dim=1))
        return outputs


def test_images_lie_as_the_model_takes_them() -> None:
    """Channels-last where that is faster, and as they are where the model fails on it."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((40, 2, 8, 8), dtype=np.float32), rng.integers(4, size=40)
    data = PartitionedDataset.of(from_arrays(x, y, x[:8], y[:8], classes=4), np.split(np.arange(40), 4))
    torch.manual_seed(0)
    convolving = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 4))
    for module, last in (
        (convolving, True),
        (Viewing(), False),
        (nn.Sequential(nn.Flatten(), nn.Linear(128, 4)), False),
    ):
        w = work(module, RULES[0], data)
        images = w.context.inputs(torch.arange(5))
        to_memory_format = w.context.to_memory_format(images)
        assert torch.equal(to_memory_format, images)
        assert to_memory_format.is_contiguous(memory_format=torch.channels_last) == last
        assert deltas("sequential", w, jobs(w)).any()


@pytest.mark.parametrize("name", HERE)
def test_nothing_to_do(name: str) -> None:
    assert EXECUTORS[name](work(built(MLP()), RULES[0])).train_all([]) == []


def test_stacks_are_even_and_of_one_rule() -> None:
    works = [work(built(MLP()), RULES[0])] * 25 + [work(built(MLP()), RULES[1])] * 5
    tasks = [(w, jobs(w)[0]) for w in works]
    heights = [[len(part) for part in vectorized.stacks(tasks, most, workers)] for most, workers in ((30, 1), (8, 2))]
    assert heights == [[25, 5], [7, 7, 7, 4, 3, 2]]
