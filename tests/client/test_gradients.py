"""Training loss, ‖∇f(x)‖² and heterogeneity at evaluations, against gradients computed client by client."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.support.experiments import experiment
from torch import nn

import offbeat as ob
from offbeat.client.gradients import COLUMNS, ClientGradients
from offbeat.data import Synthetic
from offbeat.runs import api
from offbeat.runs.data import Data
from offbeat.runs.experiment import Experiment

SKEWED = Data(
    source=Synthetic(examples=300, test_examples=60, features=12, classes=3), clients=6,
    partition=ob.partitions.Dirichlet(alpha=0.2),
)  # fmt: skip


def described(**more: Any) -> Experiment:
    return experiment(data=SKEWED, **more)


def by_definition(of: Experiment, x: torch.Tensor) -> tuple[float, float, float]:
    context = of.assemble().context
    module = context.module.double()
    context.layout.write(module, x.double())
    losses, gradients = [], []
    for client in range(context.data.clients):
        index = torch.from_numpy(np.array(context.data.indices(client)))
        loss = nn.functional.cross_entropy(module(context.x[index].double()), context.y[index])
        losses.append(loss.item())
        gradients.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(module.parameters()))]))
    stack = torch.stack(gradients)
    mean = stack.mean(dim=0)
    return float(np.mean(losses)), float(mean @ mean), float((stack - mean).square().sum(dim=1).mean())


def test_figures_at_an_evaluation_are_those_of_the_definitions() -> None:
    of = described(rounds=10, evaluation=ob.Evaluation(every=5, gradient_clients=6, batch_size=7))
    result = api.execute(of)
    line = result.evaluations[-1]
    assert [line[name] for name in COLUMNS] == pytest.approx(by_definition(of, result.x), rel=1e-4)
    summary, lines = result.summary, result.evaluations
    assert summary["train_loss"] == line["train_loss"] < lines[0]["train_loss"]
    assert summary["gradient_square_mean"] == pytest.approx(np.mean([each["gradient_square"] for each in lines]))
    assert summary["heterogeneity_max"] == max(each["heterogeneity"] for each in lines)


def test_they_change_nothing_else_and_are_absent_unless_asked_for() -> None:
    with_them = api.execute(described(evaluation=ob.Evaluation(every=5, gradient_clients=2)))
    without = api.execute(described(evaluation=ob.Evaluation(every=5)))
    assert torch.equal(with_them.x, without.x)
    assert not set(COLUMNS) & without.evaluations[0].keys()
    assert "heterogeneity_max" not in without.summary


def test_a_sample_estimates_the_heterogeneity_without_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean over all pairs of clients is the value of all clients."""
    of = described()
    context = of.assemble().context
    x = context.layout.read(context.module)
    whole = ClientGradients(context, 6, 100)(x)["heterogeneity"]
    pair, found = ClientGradients(context, 2, 100), []
    for first in range(6):
        for second in range(first):
            pair.clients = [second, first]
            found.append(pair(x)["heterogeneity"])
    assert np.mean(found) == pytest.approx(whole, rel=1e-6)
    assert np.std(found) > 0.1 * whole


def test_equal_data_has_no_heterogeneity() -> None:
    result = ob.run(
        data=SKEWED.source, partition=[np.arange(50)] * 3, model=ob.models.LR(), algorithm=ob.FedBuff(), rounds=1,
        scheduler=ob.Buffered(concurrency=2, buffer=1), evaluation=ob.Evaluation(gradient_clients=3),
    )  # fmt: skip
    assert result.summary["heterogeneity_max"] == 0
    assert result.summary["gradient_square_mean"] > 0


def test_part_of_a_model_has_no_gradient() -> None:
    of = described(
        model=ob.models.MLP(hidden=(8,)), personalization=ob.Personalization(parameters=("3.*",)),
        evaluation=ob.Evaluation(gradient_clients=2),
    )  # fmt: skip
    with pytest.raises(ob.ConfigError, match="part of the model stays on the clients"):
        of.assemble()
