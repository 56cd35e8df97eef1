"""The contract of local training, over tasks × optimizers × schedules × norms.

Under every combination, a run in stacks has the trajectory of a run that trains one client after the other, and an
interrupted run continues with the same bits. Models are in double precision, so that a wrong mask, weight or rate
cannot hide behind rounding, and smooth, so that rounding cannot push an activation to the other side of a kink.
"""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.support import interrupt_after
from torch import Tensor, nn

import offbeat as ob
from offbeat.client.rules import SGD, Adagrad, Adam, AdamW, ClientRule, Correction, Dyn, Prox, Scaffold
from offbeat.runs import checkpoint_pacing
from offbeat.schedules import ConstantRate, CosineDecay, InverseDecay, Schedule, StepDecay, WarmUp
from offbeat.tasks import TASKS

SIZES = (6, 12, 14, 18)  # examples per client: unequal steps and short last batches, of two examples at least
N, TEST, WIDTH, WORDS = sum(SIZES), 8, 8, 5
TASK_NAMES = [*TASKS, "own"]
NORMS = ["none", "group", "batch", "layer"]
COMMON: dict[str, Any] = {"lr": 0.05, "batch_size": 4, "epochs": 1}
RULES: dict[str, ClientRule] = {
    "sgd": SGD(**COMMON),
    "nesterov": SGD(**COMMON, momentum=0.9, nesterov=True, weight_decay=0.01),
    "clipped": SGD(**COMMON | {"batch_size": 2}, accumulate=2, clip_norm=0.1),
    "adam": Adam(**COMMON, clip_norm=1.0),
    "adamw": AdamW(**COMMON, weight_decay=0.1, drop_last=True),
    "adagrad": Adagrad(**COMMON),
    "prox": Prox(**COMMON, mu=0.5, optimizer=Adam()),
    "scaffold": Scaffold(**COMMON),
    "scaffold-adam": Scaffold(**COMMON, optimizer=Adam()),
    "dyn": Dyn(**COMMON, alpha=0.1, optimizer=SGD(momentum=0.5)),
}
SCHEDULES: dict[str, Schedule] = {
    "constant": ConstantRate(),
    "inverse": InverseDecay(offset=1),
    "step": StepDecay(every=2, gamma=0.5),
    "cosine": CosineDecay(steps=4, minimum=0.1),
    "warm-up": WarmUp(steps=2, then=InverseDecay(offset=2)),
    "own": ob.schedules.CustomSchedule(make=lambda t: 1.0 + 0.5 * (-1) ** t),
}


def own_loss(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs.squeeze(-1) - y).cosh().log()


TASK: dict[str, Any] = {name: name for name in TASKS} | {"own": own_loss}


class Net(nn.Module):
    """Two layers for vectors, tokens or images, with a norm in between."""

    def __init__(self, task: str, norm: str) -> None:
        super().__init__()
        images, tokens = task == "segmentation", task == "language-modeling"
        outputs = {"regression": 1, "own": 1, "language-modeling": WORDS}.get(task, 3)
        bias = norm != "batch"  # BatchNorm removes it: its gradient is only rounding, which Adam would amplify
        self.first: nn.Module = nn.Linear(5, WIDTH, bias=bias)
        self.last: nn.Module = nn.Linear(WIDTH, outputs)
        if images:
            self.first, self.last = nn.Conv2d(1, WIDTH, 3, padding=1, bias=bias), nn.Conv2d(WIDTH, outputs, 1)
        if tokens:
            self.first = nn.Embedding(WORDS, WIDTH)
        batch = nn.BatchNorm2d if images else nn.BatchNorm1d
        layer = nn.LayerNorm([WIDTH, 3, 3] if images else WIDTH)
        self.norm = {"none": nn.Identity(), "group": nn.GroupNorm(2, WIDTH), "batch": batch(WIDTH), "layer": layer}[
            norm
        ]
        self.channels_last = tokens and norm != "layer"

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x.double() if x.is_floating_point() else x)
        hidden = self.norm(hidden.transpose(1, 2)).transpose(1, 2) if self.channels_last else self.norm(hidden)
        outputs: Tensor = self.last(torch.tanh(hidden))
        return outputs


def arrays(task: str) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N + TEST, 5))
    if task == "multilabel":
        return x, x[:, :3] > 0
    if task == "language-modeling":
        tokens = (np.arange(4) + rng.integers(WORDS, size=(N + TEST, 1))) % WORDS
        labels = (tokens + 1) % WORDS
        labels[::3, -1] = -100
        return tokens, labels
    if task == "segmentation":
        images = rng.normal(size=(N + TEST, 1, 3, 3))
        return images, (images[:, 0] > 0).astype(int) + (images[:, 0] > 1)
    return x, x[:, 0] + x[:, 1] ** 2 if task in ("regression", "own") else (x[:, 0] > 0).astype(int) + (x[:, 1] > 0)


DATA = {task: ob.from_arrays(x[:N], y[:N], x[N:], y[N:], vocabulary=WORDS if task == "language-modeling" else None)
        for task in TASK_NAMES for x, y in [arrays(task)]}  # fmt: skip
PARTS = np.split(np.arange(N), np.cumsum(SIZES)[:-1])


def run(task: str, rule: str, schedule: str, norm: str, executor: str, **change: Any) -> ob.Result:
    return ob.run(
        data=DATA[task], partition=PARTS, model=lambda: Net(task, norm).double(), task=TASK[task],
        algorithm=ob.FedBuff(), scheduler=ob.Buffered(concurrency=3, buffer=2), rounds=4, evaluation=2,
        client=replace(RULES[rule], schedule=SCHEDULES[schedule]), executor=executor, **change,
    )  # fmt: skip


def rounding(rule: str) -> float:
    """Return the bound on the difference of two entries of x, all of which are below 10.

    A sum in another order differs by 1e-15 relative to its terms, and a norm over few values of a small variance
    amplifies that in every step. Adam and Adagrad divide by the root of squared gradients plus 1e-8: an entry whose
    gradient is zero up to rounding moves by up to 1e-15/1e-8 of a step, once per step.
    """
    client = RULES[rule]
    optimizer = client.optimizer if isinstance(client, Correction) else client
    return 1e-10 if isinstance(optimizer, SGD) else 1e-7


def same_trajectory(one: ob.Result, other: ob.Result, rule: str) -> None:
    assert (one.summary["executor"], other.summary["executor"]) == ("sequential", "vectorized")
    assert (one.x - other.x).abs().max() < rounding(rule)
    for first, second in zip(one.evaluations, other.evaluations, strict=True):
        assert first["loss"] == pytest.approx(second["loss"], rel=1e-5), "the loss is computed in single precision"
        assert first["updates"] == second["updates"]
        assert first["virtual_seconds"] == second["virtual_seconds"]


Combination = tuple[str, str, str, str]


def pairwise(a: Sequence[str], b: Sequence[str], c: Sequence[str], d: Sequence[str]) -> list[Combination]:
    """Return combinations in which every pair of values of two factors occurs, greedily."""
    numbered = list(itertools.combinations(range(4), 2))
    product = [(each, {(i, j, each[i], each[j]) for i, j in numbered}) for each in itertools.product(a, b, c, d)]
    missing: set[tuple[int, int, str, str]] = set().union(*(pairs for _, pairs in product))
    chosen = []
    while missing:
        best, pairs = max(product, key=lambda each: len(each[1] & missing))
        chosen.append(best)
        missing -= pairs
    return chosen


FACTORS = (TASK_NAMES, list(RULES), list(SCHEDULES), NORMS)
PAIRS = pairwise(*FACTORS)


def test_every_pair_occurs() -> None:
    for i, j in itertools.combinations(range(4), 2):
        assert {(each[i], each[j]) for each in PAIRS} == set(itertools.product(FACTORS[i], FACTORS[j]))


@pytest.mark.parametrize(
    ("combination", "executor"),
    [pytest.param(each, ("vectorized", "sequential")[n % 2], id="-".join(each)) for n, each in enumerate(PAIRS)],
)
def test_stacks_and_resumed_runs_have_the_same_trajectory(
    combination: Combination, executor: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_pacing, "MIN_SECONDS", 1e9)  # only where it is interrupted
    runs = {name: run(*combination, name) for name in ("sequential", "vectorized")}
    same_trajectory(runs["sequential"], runs["vectorized"], combination[1])
    with pytest.raises(KeyboardInterrupt):
        run(*combination, executor, out=tmp_path / "run", watch=interrupt_after(2))
    resumed, whole = run(*combination, executor, out=tmp_path / "run", resume=True), runs[executor]
    assert torch.equal(resumed.x, whole.x)
    assert [line["loss"] for line in resumed.evaluations] == [line["loss"] for line in whole.evaluations]


@pytest.mark.slow
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("task", TASK_NAMES)
def test_stacks_have_the_same_trajectory_under_every_optimizer(task: str, norm: str) -> None:
    """Every task with every norm and every optimizer; schedules, which only scale the rates of jobs, take turns."""
    for rule, schedule in zip(RULES, itertools.cycle(SCHEDULES), strict=False):
        one, stacked = (run(task, rule, schedule, norm, executor) for executor in ("sequential", "vectorized"))
        same_trajectory(one, stacked, rule)
