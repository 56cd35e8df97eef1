"""Loops of a client rule's own: their batches, their model, and what becomes of their results."""

from __future__ import annotations

import copy
import math
import random
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.executors import NORMED
from tests.support.local_loops import Distill, PlainLoop, Returns
from tests.support.pooled import Small, federated, jobs, same, work
from torch import Tensor, nn

import offbeat as ob
from offbeat.client.context import TrainingContext
from offbeat.client.local_loop import Batches, LocalJob
from offbeat.client.rules import SGD, ClientRule
from offbeat.client.runtime import ClientRuntime
from offbeat.data import CropFlip, PartitionedDataset
from offbeat.executors import Sequential
from offbeat.messages import Job, Update

SETTINGS: list[dict[str, Any]] = [
    {"lr": 0.1, "epochs": 2, "batch_size": 8},
    {"lr": 0.1, "steps": 5, "batch_size": 4, "accumulate": 3, "drop_last": True},
]


def trained(rule: ClientRule, module: nn.Module | None = None, **more: Any) -> list[Update]:
    runtime = work(rule, copy.deepcopy(module), **more)
    js, context = jobs(runtime), runtime.context
    if context.buffers.names:
        js = [replace(job, extra={"buffers": context.buffers.read(context.module) + 1}) for job in js]
    return Sequential(runtime).train(js)


MLP = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 4))


@pytest.mark.parametrize("values", SETTINGS, ids=str)
def test_a_loop_of_plain_steps_is_sgd_bit_for_bit(values: dict[str, Any]) -> None:
    """With short batches, a schedule and a random layer; so is its training loss."""
    for one, other in zip(trained(SGD(**values), MLP), trained(PlainLoop(**values), MLP), strict=True):
        assert same(one, other)
        assert one.loss == other.loss
        assert one.delta.norm() > 0


@pytest.mark.parametrize("values", SETTINGS, ids=str)
@pytest.mark.parametrize("module", [Small(), NORMED], ids=["frozen, buffer", "batch norm"])
def test_a_loop_trains_frozen_layers_buffers_and_running_statistics_like_sgd(
    values: dict[str, Any], module: nn.Module
) -> None:
    """Up to rounding: convolutions on a CPU add in an order that depends on the alignment of the weights in memory."""
    data = two_each()
    pair = (trained(rule, module, data=data) for rule in (SGD(**values), PlainLoop(**values)))
    for one, other in zip(*pair, strict=True):
        torch.testing.assert_close(one.delta, other.delta, rtol=1e-5, atol=1e-6)
        assert one.extra.keys() == other.extra.keys()
        for name, value in one.extra.items():
            torch.testing.assert_close(value, other.extra[name], rtol=1e-5, atol=1e-6)
        assert one.loss == pytest.approx(other.loss, rel=1e-5)


def two_each() -> PartitionedDataset:
    """Return clients with even numbers of examples, since BatchNorm cannot train on one."""
    whole = federated()
    return PartitionedDataset.of(whole.dataset, [range(6), range(6, 30), range(30, 60)])


def test_augmented_and_lazily_read_batches_are_those_of_sgd() -> None:
    augment = CropFlip(pad=1)

    class Noisy(torch.utils.data.Dataset[tuple[Tensor, int]]):
        def __len__(self) -> int:
            return 40

        def __getitem__(self, i: int) -> tuple[Tensor, int]:
            return torch.randn(1, 8, 8) + i % 4, i % 4

    lazy = ob.from_datasets(Noisy(), lazy=True)
    both: dict[str, Any] = {"lr": 0.1, "steps": 4, "batch_size": 3, "accumulate": 2}
    for data, how in ((federated(), augment), (PartitionedDataset.of(lazy, [range(25), range(25, 40)]), None)):
        found = []
        for rule in (SGD(**both), PlainLoop(**both)):
            torch.manual_seed(0)
            runtime = ClientRuntime(TrainingContext(copy.deepcopy(MLP), data, rule, torch.device("cpu"), augment=how))
            found.append(Sequential(runtime).train(jobs(runtime)))
        assert all(same(one, other) for one, other in zip(*found, strict=True))


@dataclass(kw_only=True, frozen=True)
class Looks(PlainLoop):
    """Compares the pulled model with the trained one."""

    def train(self, model: nn.Module, batches: Batches, job: LocalJob) -> None:
        before = copy.deepcopy(model.state_dict())
        super().train(model, batches, job)
        pulled = job.pulled_model
        assert not pulled.training
        assert not any(p.requires_grad for p in pulled.parameters())
        assert all(torch.equal(value, before[name]) for name, value in pulled.state_dict().items())
        assert not all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        torch.testing.assert_close(nn.utils.parameters_to_vector(pulled.parameters())[: len(job.x)], job.x)


@pytest.mark.parametrize("module", [nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), NORMED], ids=["plain", "norm"])
def test_the_pulled_model_is_what_the_server_sent_also_after_training(module: nn.Module) -> None:
    assert trained(Looks(lr=0.1, batch_size=8), module, data=two_each())


@dataclass(kw_only=True, frozen=True)
class Careless(PlainLoop):
    """Leaves everything behind that a loop can leave behind."""

    def train(self, model: Any, batches: Batches, job: LocalJob) -> None:
        np.random.seed(0)  # noqa: NPY002 — a user's loop may use it
        super().train(model, batches, job)
        model.eval().requires_grad_(False)
        model.scale.fill_(7.0)
        model.extra_layer = nn.Linear(2, 2)
        model.register_forward_hook(lambda *_: torch.zeros(()))


def test_nothing_that_a_loop_does_to_its_model_reaches_the_next_job() -> None:
    runtime = work(PlainLoop(lr=0.1, batch_size=8))
    before: Any = np.random.get_state()  # noqa: NPY002
    careless, plain = (trained(kind(lr=0.1, batch_size=8)) for kind in (Careless, PlainLoop))
    assert all(same(one, other) for one, other in zip(careless, plain, strict=True))
    after: Any = np.random.get_state()  # noqa: NPY002
    assert np.array_equal(before[1], after[1]), "the generators of the program"
    assert runtime.context.module.scale == 2.0


@dataclass(kw_only=True, frozen=True)
class Draws(PlainLoop):
    """Returns what the three generators draw."""

    client_state = ("drawn",)

    def train(self, model: nn.Module, batches: Batches, job: LocalJob) -> Any:
        numbers = [random.random(), np.random.rand(), float(torch.rand(()))]  # noqa: NPY002
        return {"drawn": torch.tensor(numbers)}


def test_generators_are_seeded_by_the_job() -> None:
    drawn = []
    for noise in range(2):
        np.random.seed(noise)  # noqa: NPY002
        torch.manual_seed(noise)
        runtime = work(Draws())
        Sequential(runtime).train(jobs(runtime))
        drawn.append(torch.stack([runtime.state.rows["drawn"][i] for i in range(4)]))
    assert torch.equal(*drawn)
    assert len(set(drawn[0].flatten().tolist())) == drawn[0].numel()


@dataclass(kw_only=True, frozen=True)
class Records(PlainLoop):
    """Records a loss of its own, or none."""

    value: float | None = None

    def train(self, model: nn.Module, batches: Batches, job: LocalJob) -> None:
        for _ in range(2):
            for batch in batches:
                with torch.no_grad():
                    batch.loss(batch.outputs(model))  # of no parameters: not a training loss
                if self.value is not None:
                    batch.record(torch.tensor(self.value))


def test_the_training_loss_of_a_loop_without_the_tasks_loss() -> None:
    assert [update.loss for update in trained(Records(value=3.5, batch_size=8))] == pytest.approx([3.5] * 5)
    assert all(math.isnan(update.loss) for update in trained(Records(batch_size=8)))


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (3, "Returns.train returned 3; expected None or a dict of tensors"),
        ({"kept": 3.0}, "expected None or a dict of tensors"),
        ({"other": torch.ones(1)}, "returned 'other', which is not in `sends` or `client_state`"),
    ],
)
def test_what_a_loop_must_not_return(what: Any, message: str) -> None:
    with pytest.raises(ob.ConfigError, match=message):
        trained(Returns(what=what, batch_size=8))


def test_what_a_loop_must_send() -> None:
    @dataclass(kw_only=True, frozen=True)
    class Sends(Returns):
        sends = ("kept",)

    with pytest.raises(ob.ConfigError, match="did not return 'kept', which is in `sends`"):
        trained(Sends(batch_size=8))
    with pytest.raises(ob.ConfigError, match=r"'kept' of shape \[2\]; what is sent is a vector like x, \[\d+\]"):
        trained(Sends(batch_size=8, what={"kept": torch.ones(2)}))


def test_a_loop_must_keep_the_models_parameters() -> None:
    @dataclass(kw_only=True, frozen=True)
    class Replaces(PlainLoop):
        def train(self, model: Any, batches: Batches, job: LocalJob) -> None:
            model.head = nn.Linear(108, 5)

    with pytest.raises(ob.ConfigError, match=r"train has replaced the parameter 'head\.weight'"):
        trained(Replaces(batch_size=8))


def test_a_rule_overrides_step_or_train() -> None:
    with pytest.raises(ob.ConfigError, match="ClientRule cannot train: override `step`, or `train`"):
        ClientRule()


@pytest.mark.parametrize("rejected", [True, False])
def test_a_rejected_update_rolls_back_the_state_of_a_loop(rejected: bool) -> None:
    """Even though the loop changes its state in place."""
    one, other = work(Distill(lr=0.01, batch_size=8)), work(Distill(lr=0.01, batch_size=8))
    x = one.context.layout.read(one.context.module)
    first, second, third = (
        Job(n, 2, 0, x, 3, n, last_accepted_job=last) for n, last in ((1, 0), (2, 1), (3, 1 if rejected else 2))
    )
    *_, again = Sequential(one).train([first, second, third])
    *_, expected = Sequential(other).train([first, third] if rejected else [first, replace(second), third])
    assert same(again, expected)
    assert int(one.state.rows["jobs"][2]) == (2 if rejected else 3)
    assert one.state.rows["totals"][2].tolist() == [[7.0 if rejected else 10.0] * 3] * 2


def test_a_run_with_a_loop_learns_and_says_why_it_is_not_stacked(caplog: pytest.LogCaptureFixture) -> None:
    settings: dict[str, Any] = {
        "data": ob.datasets.Digits(), "clients": 8, "model": ob.models.LR(), "algorithm": ob.FedBuff(),
        "client": Distill(lr=0.01, batch_size=16), "scheduler": ob.Buffered(concurrency=4, buffer=2), "rounds": 12,
    }  # fmt: skip
    with caplog.at_level("INFO", logger="offbeat"):
        result = ob.run(**settings)
    assert result.accuracy > 0.8
    assert "clients are not stacked: the client rule Distill trains in a loop of its own" in caplog.text
    with pytest.raises(ob.ConfigError, match="'vectorized' cannot run this model: the client rule Distill trains in a"):
        ob.run(**settings, executor="vectorized")
