"""Optimizer classes of torch as client rules, compared with offbeat's own rules and with plain torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.support.pooled import jobs, same, work
from torch import Tensor, nn
from torch.nn import functional

import offbeat as ob
from offbeat.client.rules import Adagrad, Adam, AdamW, ClientRule, Prox
from offbeat.executors import EXECUTORS
from offbeat.messages import Update
from offbeat.runs import config

WORK: dict[str, Any] = {"epochs": 2, "batch_size": 8}
PARTS: dict[str, Any] = {"steps": 4, "batch_size": 4, "accumulate": 3, "drop_last": True}
KINDS = [
    getattr(torch.optim, name)
    for name in dir(torch.optim)
    if name not in ("Optimizer", "SparseAdam", "Muon") and isinstance(getattr(torch.optim, name), type)
]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.Tanh(), nn.Dropout(0.2), nn.Linear(6, 4))


def trained(rule: ClientRule, module: nn.Module | None = None) -> list[Update]:
    runtime = work(rule, module or mlp())
    return EXECUTORS["sequential"](runtime).train(jobs(runtime))


@pytest.mark.parametrize(
    ("own", "options"),
    [
        (ob.SGD(lr=0.1, **WORK), {}),
        (ob.SGD(lr=0.1, **PARTS), {}),
        (ob.SGD(lr=0.1, weight_decay=0.1, **WORK), {"foreach": True}),
    ],
    ids=str,
)
def test_sgd_of_torch_is_sgd_bit_for_bit(own: ob.SGD, options: dict[str, Any]) -> None:
    """Jobs have different rates, as a schedule gives them."""
    theirs = ob.TorchOptimizer(
        torch.optim.SGD, lr=own.lr, weight_decay=own.weight_decay, steps=own.steps, epochs=own.epochs,
        batch_size=own.batch_size, accumulate=own.accumulate, drop_last=own.drop_last, **options,
    )  # fmt: skip
    for one, other in zip(trained(own), trained(theirs), strict=True):
        assert same(one, other)
        assert one.loss == other.loss


@pytest.mark.parametrize(
    ("own", "theirs"),
    [
        (ob.SGD(lr=0.1, clip_norm=0.3, **WORK), ob.TorchOptimizer(torch.optim.SGD, lr=0.1, clip_norm=0.3, **WORK)),
        (Adam(clip_norm=0.3, **PARTS), ob.TorchOptimizer(torch.optim.Adam, clip_norm=0.3, **PARTS)),
        (ob.SGD(lr=0.05, momentum=0.9, nesterov=True, **WORK), ob.TorchOptimizer(
            torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True, **WORK)),
        (AdamW(**WORK), ob.TorchOptimizer(torch.optim.AdamW, **WORK)),
        (AdamW(lr=0.01, weight_decay=0.3, beta1=0.8, **WORK), ob.TorchOptimizer(
            torch.optim.AdamW, lr=0.01, weight_decay=0.3, betas=(0.8, 0.999), **WORK)),
        (Adagrad(**WORK), ob.TorchOptimizer(torch.optim.Adagrad, **WORK)),
    ],
    ids=lambda rule: f"{type(rule).__name__} {rule.lr}",
)  # fmt: skip
def test_the_rules_of_torch_are_offbeats_up_to_rounding(own: ClientRule, theirs: ClientRule) -> None:
    """Adam divides by the root of small numbers, so that the rounding of a moment is that of a step."""
    assert (own.lr, own.weight_decay) == (theirs.lr, theirs.weight_decay), "defaults are those of torch"
    for one, other in zip(trained(own), trained(theirs), strict=True):
        torch.testing.assert_close(one.delta, other.delta, rtol=1e-4, atol=1e-6)
        assert one.loss == pytest.approx(other.loss, rel=1e-5)


def test_a_job_is_a_loop_of_plain_torch() -> None:
    """A transcription with a fresh optimizer: parameters, batches, averaging and clipping by hand."""
    rule = ob.TorchOptimizer(torch.optim.RMSprop, lr=0.01, steps=5, batch_size=8, clip_norm=0.5, alpha=0.9)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    runtime = work(rule, module)
    job = jobs(runtime)[4]
    (update,) = EXECUTORS["sequential"](runtime).train([job])
    batches, counts = runtime.context.plan(job)
    y = job.x.clone()
    weight, bias = nn.Parameter(y[:256].view(4, 64)), nn.Parameter(y[256:])
    optimizer = torch.optim.RMSprop([weight, bias], lr=0.01 * job.rate, alpha=0.9)
    for batch, count in zip(batches, counts, strict=True):
        x, labels = runtime.context.x[batch[:count]], runtime.context.y[batch[:count]]
        optimizer.zero_grad()
        loss: Any = functional.cross_entropy(x.flatten(1) @ weight.T + bias, labels)
        loss.backward()
        nn.utils.clip_grad_norm_([weight, bias], 0.5)
        optimizer.step()
    expected = torch.cat([weight.detach().flatten(), bias.detach()]) - job.x
    torch.testing.assert_close(update.delta, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_class_of_torch_descends(kind: type[torch.optim.Optimizer]) -> None:
    """LBFGS, which evaluates the loss several times per step, included."""
    rule = ob.TorchOptimizer(kind, steps=8, batch_size=64)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    first, last, again = (trained(each, module) for each in (replace(rule, steps=1), rule, rule))
    assert all(one.loss < other.loss for one, other in zip(last, first, strict=True))
    assert all(same(one, other) for one, other in zip(last, again, strict=True))


def test_frozen_parameters_stay_and_named_ones_are_given() -> None:
    seen: list[list[str]] = []

    class Named(torch.optim.SGD):
        def __init__(self, params: Any, lr: float) -> None:
            params = list(params)
            seen.append([name for name, _ in params])
            super().__init__(params, lr=lr)

    runtime = work(ob.TorchOptimizer(Named, lr=0.1, steps=2))
    frozen: Any = runtime.context.module.frozen
    before = frozen.weight.clone()
    EXECUTORS["sequential"](runtime).train(jobs(runtime))
    assert seen[-1] == ["convolution.weight", "convolution.bias", "head.weight", "head.bias"]
    assert torch.equal(frozen.weight, before)


def wrong(thing: Any) -> Any:
    """Return a thing whose type a type checker would refuse."""
    return thing


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ob.TorchOptimizer(torch.optim.RMSprop, beta=0.9), "'beta'; options of RMSprop: lr, alpha, eps"),
        (lambda: ob.TorchOptimizer(torch.optim.Adam, betas=(2.0, 0.9)), "Invalid beta parameter at index 0: 2.0; opt"),
        (lambda: ob.TorchOptimizer(torch.optim.Rprop, weight_decay=0.1), "'weight_decay'; options of Rprop: lr, etas"),
        (lambda: ob.TorchOptimizer(torch.optim.Adam, lr=-1.0), "lr: -1.0 is not a number > 0"),
        (lambda: ob.TorchOptimizer(torch.optim.Adam, betas=torch.ones(2)), "is not a number, text or list of them"),
        (lambda: ob.TorchOptimizer(torch.optim.SparseAdam), "SparseAdam does not support dense gradients"),
        (lambda: ob.TorchOptimizer(wrong("adam")), "'adam' is not a class such as torch.optim.RMSprop"),
        (lambda: ob.TorchOptimizer(wrong(torch.optim.SGD(mlp().parameters()))), "every job starts with a new one"),
        (lambda: Prox(optimizer=wrong(torch.optim.RMSprop)), "has no pure step, which a correction needs"),
        (lambda: Prox(optimizer=wrong(ob.TorchOptimizer(torch.optim.Adam))), "use SGD, Adam, AdamW, Adagrad"),
        (lambda: config.parse({"client": {"name": "torch.optim:Adam", "bta": 3}}), r"client.optimizer: .*'bta'"),
        (lambda: config.parse({"client": {"name": "torch.optim:Adam", "steps": 0}}), "client.steps: 0 is not"),
        (lambda: config.parse({"client": {"name": "prox", "optimizer": "torch.optim:Adam"}}), "has no pure step"),
    ],
)  # fmt: skip
def test_wrong_options(make: Any, message: str) -> None:
    with pytest.raises(ob.ConfigError, match=message):
        make()


def test_toml() -> None:
    table = {"client": {"name": "torch.optim:Adam", "lr": 0.02, "steps": 3, "betas": [0.8, 0.9], "schedule": "inverse"}}
    rule = config.parse(table).client
    assert rule == ob.TorchOptimizer(
        torch.optim.Adam, lr=0.02, steps=3, betas=(0.8, 0.9), schedule=ob.schedules.InverseDecay()
    )
    described = config.describe(config.parse(table))["client"]
    assert described["betas"] == (0.8, 0.9)
    assert config.parse({"client": described}).client == rule


def settings(client: Any, **more: Any) -> dict[str, Any]:
    return {
        "data": ob.datasets.Synthetic(examples=200, test_examples=50, features=6, classes=3), "clients": 4,
        "model": ob.models.LR(), "algorithm": ob.FedBuff(), "client": client, "rounds": 4,
        "scheduler": ob.Buffered(concurrency=3, buffer=2), **more,
    }  # fmt: skip


def test_a_class_alone_is_a_client_rule() -> None:
    one, other = (ob.run(**settings(rule)) for rule in (torch.optim.Adam, ob.TorchOptimizer(torch.optim.Adam)))
    assert torch.equal(one.x, other.x)
    with pytest.raises(ob.ConfigError, match=r"client: a Adam of a module.*TorchOptimizer\(Adam, lr=…\)"):
        ob.run(**settings(torch.optim.Adam([torch.zeros(2, requires_grad=True)])))


def test_a_stack_is_refused_in_words() -> None:
    with pytest.raises(ob.ConfigError, match="'vectorized' cannot run this model: the client rule TorchOptimizer trai"):
        ob.run(**settings(torch.optim.Adam, executor="vectorized"))
    network = ob.algorithms.AFGA()
    with pytest.raises(ob.ConfigError, match="the client rule TorchOptimizer trains in a loop of its own"):
        ob.run(
            **settings(
                ob.TorchOptimizer(torch.optim.Adam, steps=2), algorithm=network, scheduler=ob.Rounds(concurrency=4)
            )
        )


def diverging(outputs: Tensor, y: Tensor) -> Tensor:
    """Return losses that are not finite in training."""
    return functional.cross_entropy(outputs, y, reduction="none") * (float("nan") if outputs.requires_grad else 1.0)


@pytest.mark.parametrize("client", [ob.SGD(lr=0.1), torch.optim.Adam])
def test_a_loss_that_is_not_finite(client: Any) -> None:
    with pytest.raises(ob.DivergenceError, match=r"client \d diverged while training from version 0: .*smaller"):
        ob.run(**settings(client, task=diverging))
