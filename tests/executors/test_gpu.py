"""Behavior that needs a GPU: compiled and captured steps, clients on parallel streams."""

from __future__ import annotations

import copy
import functools
import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.support.executors import NORMED, RULES, SHAPE, built, federated, jobs
from torch import Tensor, nn

from offbeat.algorithms import AFGA, AGGREGATORS
from offbeat.client.context import TrainingContext
from offbeat.client.personalization import Personalization
from offbeat.client.rules import SGD, ClientRule
from offbeat.client.runtime import ClientRuntime
from offbeat.data import PartitionedDataset, from_arrays
from offbeat.executors import Executor, Graphs, Sequential, Vectorized, arithmetic
from offbeat.executors.choice import why_not
from offbeat.executors.gossip import Gossip
from offbeat.messages import Update
from offbeat.models import CNN, LSTM, MLP, ConvMixer, Model, ResNet18

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def moved(executor: Executor, rounds: int = 2) -> Tensor:
    """The updates of the last of several rounds on the same memory."""
    work, updates = executor.runtime, []
    js = jobs(work)
    with arithmetic(work.context):
        for _ in range(rounds):
            updates = [u for u in executor.train_all([(work, job) for job in js]) if isinstance(u, Update)]
    return torch.stack([update.delta for update in updates])


def on_gpu(
    module: nn.Module, rule: ClientRule, data: PartitionedDataset | None = None, device: str = "cuda"
) -> ClientRuntime:
    """Return a runtime with standardized inputs, which are part of a captured step, too."""
    data = data or federated()
    data = replace(data, dataset=replace(data.dataset, mean=(0.1,) * SHAPE[0], std=(1.2,) * SHAPE[0]))
    return ClientRuntime(TrainingContext(copy.deepcopy(module), data, rule, torch.device(device), precision="float32"))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kind", [Vectorized, Graphs])
@pytest.mark.parametrize("rule", RULES, ids=lambda r: type(r).__name__)
@pytest.mark.parametrize(
    "model",
    [MLP(hidden=(12, 7)), CNN(), ConvMixer(dim=16, depth=2, kernel=3, patch=1, groups=4), ResNet18(width=8, groups=2)],
    ids=lambda m: type(m).__name__,
)
def test_programs_do_what_the_plain_executor_does(
    model: Model, rule: ClientRule, kind: type[Vectorized] | type[Graphs], compiled: bool
) -> None:
    if isinstance(model, ResNet18):  # on a longer way 10⁻⁷ more or less at its start may be 10⁻² at its end
        rule = replace(rule, epochs=None, steps=3)
    module = built(model)
    plain = moved(Sequential(on_gpu(module, rule)))
    fast = moved(kind(on_gpu(module, rule), compiled))
    assert ((fast - plain).norm(dim=1) < 1e-3 * plain.norm(dim=1)).all()
    assert torch.equal(fast, moved(kind(on_gpu(module, rule), compiled))), "the same bytes every time"


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kind", [Vectorized, Graphs])
@pytest.mark.parametrize("rule", RULES[:2] + RULES[5:6], ids=lambda r: type(r).__name__)
@pytest.mark.parametrize(
    "model",
    [ConvMixer(dim=16, depth=2, kernel=3, patch=2, norm="batch"), ResNet18(width=8, norm="batch")],
    ids=lambda m: type(m).__name__,
)
def test_programs_normalize_batches_as_the_plain_executor_does(
    model: Model, rule: ClientRule, kind: type[Vectorized] | type[Graphs], compiled: bool
) -> None:
    """Models and running statistics; few steps at a small rate, since tiny batches amplify rounding.

    In the last stage of the ResNet an image is one pixel, so that all its batches are full.
    """
    rule, module = replace(rule, epochs=None, steps=2, lr=0.01), built(model)
    data = federated(sizes=(16, 48, 32) if isinstance(model, ResNet18) else (8, 18, 40))
    found = []
    for executor in (Sequential, kind, kind):
        w = on_gpu(module, rule, data)
        trainer = executor(w) if executor is Sequential else executor(w, compiled)  # type: ignore[call-arg]
        with arithmetic(w.context):
            updates = [u for u in trainer.train_all([(w, job) for job in jobs(w)]) if isinstance(u, Update)]
        found.append([torch.stack([u.delta for u in updates]), torch.stack([u.extra["buffers"] for u in updates])])
    for plain, fast, again in zip(*found, strict=True):
        assert ((fast - plain).norm(dim=1) < 1e-3 * plain.norm(dim=1)).all()
        assert torch.equal(fast, again), "the same bytes every time"


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kind", [Vectorized, Graphs])
@pytest.mark.parametrize("rule", RULES, ids=lambda r: type(r).__name__)
def test_personal_parts_in_programs(rule: ClientRule, kind: type[Vectorized] | type[Graphs], compiled: bool) -> None:
    """Heads with steps of their own, twice: the second jobs start from what the clients have stored."""
    module = built(MLP(hidden=(12, 7)))
    personal = Personalization(parameters=("5",), head_steps=2)
    outcomes = []
    for make in (Sequential, functools.partial(kind, compiled=compiled)):
        work = ClientRuntime(
            TrainingContext(
                copy.deepcopy(module), federated(), rule, torch.device("cuda"), precision="float32",
                personalization=personal,
            )
        )  # fmt: skip
        x = work.context.split.shared.read(work.context.module)
        extra = {"c": 0.01 * torch.ones_like(x)} if "c_i" in rule.client_state else {}
        js = [replace(job, x=x, extra=extra, steps=job.steps + 2) for job in jobs(work)]
        executor = make(work)
        with arithmetic(work.context):
            rounds = [executor.train(js) for _ in range(2)]
        deltas = torch.stack([update.delta for update in rounds[-1]])
        outcomes.append((deltas, torch.stack([work.state.rows["personal"][job.client] for job in js])))
    for plain, fast in zip(*outcomes, strict=True):
        assert ((fast - plain).norm(dim=1) < 1e-3 * plain.norm(dim=1)).all()


@pytest.mark.parametrize("model", [MLP(hidden=(12, 7)), CNN()], ids=lambda m: type(m).__name__)
def test_networks_compiled_and_not_do_what_they_do_on_a_cpu(model: Model) -> None:
    module, found = built(model), []
    for device, compiled in (("cpu", False), ("cuda", False), ("cuda", True)):
        work = on_gpu(module, SGD(lr=0.1, steps=3, batch_size=8), device=device)
        network = AFGA().network()
        assert network is not None
        executor = Gossip(work, network, seed=5)
        executor.compiled = compiled
        with arithmetic(work.context):
            updates = executor.train_all([(work, job) for job in jobs(work, models=1)])
        found.append(torch.stack([update.delta.cpu() for update in updates if isinstance(update, Update)]))
    for fast in found[1:]:
        assert ((fast - found[0]).norm(dim=1) < 1e-3 * found[0].norm(dim=1)).all()


@pytest.mark.parametrize("name", AGGREGATORS)
def test_updates_are_combined_as_on_a_cpu(name: str) -> None:
    """Private noise is identical."""
    random = torch.Generator().manual_seed(0)
    rows = [torch.randn(100_003, generator=random) for _ in range(7)]
    found = []
    for device in ("cpu", "cuda"):
        aggregator = AGGREGATORS[name]()
        aggregator.start(rows[0].to(device), seed=1, updates=7)
        for client, row in enumerate(rows):
            aggregator.add(client, row.to(device), scale=0.5 + client / 10)
        found.append(aggregator.aggregate().cpu())
    assert (found[0] - found[1]).abs().max() < 1e-6


def test_streams_have_separate_running_statistics() -> None:
    """Against the plain executor, with short batches, from statistics that differ from job to job."""
    normed = nn.Sequential(*list(copy.deepcopy(NORMED))[:-1], nn.BatchNorm1d(4))
    outcomes = []
    for kind in (Sequential, Graphs):
        work = on_gpu(normed, SGD(lr=0.1, epochs=2, batch_size=8), federated(sizes=(8, 20, 42)))
        b = work.context.buffers.read(work.context.module)
        js = [replace(job, extra={"buffers": b + job.client}) for job in jobs(work)]
        with arithmetic(work.context):
            outcomes.append([u for u in kind(work).train_all([(work, j) for j in js]) if isinstance(u, Update)])
    for plain, fast in zip(*outcomes, strict=True):
        assert (fast.delta - plain.delta).norm() < 1e-3 * plain.delta.norm()
        torch.testing.assert_close(fast.extra["buffers"], plain.extra["buffers"], rtol=1e-3, atol=1e-4)


def test_what_cannot_be_captured_is_refused() -> None:
    """Statistics without a momentum: the step reads how many batches there were from the device."""
    assert why_not("graphs", on_gpu(NORMED, SGD(lr=0.1, batch_size=8), federated(sizes=(8, 20, 42))))


def test_texts_in_a_stack_and_on_streams() -> None:
    """A recurrent layer has special kernels on a GPU."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(9, size=(40, 11)), rng.integers(9, size=40)
    parts = np.split(np.arange(40), [8, 20])
    data = PartitionedDataset.of(from_arrays(x, y, x, y, classes=9, vocabulary=9), parts)
    module, rule = LSTM(embedding=4, hidden=16).build((11,), 9, vocabulary=9), SGD(lr=0.5, epochs=2, batch_size=8)

    def made() -> ClientRuntime:
        return ClientRuntime(
            TrainingContext(copy.deepcopy(module), data, rule, torch.device("cuda"), precision="float32")
        )

    plain = moved(Sequential(made()))
    for kind, compiled in itertools.product((Vectorized, Graphs), (False, True)):
        fast = moved(kind(made(), compiled))
        assert ((fast - plain).norm(dim=1) < 1e-3 * plain.norm(dim=1)).all()
