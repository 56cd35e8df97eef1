"""Executors, and the choice between them."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from offbeat.engine.executors.base import Executor, threads
from offbeat.engine.executors.gossip import Gossip
from offbeat.engine.executors.processes import Processes
from offbeat.engine.executors.sequential import Sequential
from offbeat.engine.executors.stacked import Stack
from offbeat.engine.executors.vectorised import Vectorised
from offbeat.engine.work import Work
from offbeat.errors import ConfigError

EXECUTORS: dict[str, type[Executor]] = {
    "sequential": Sequential,
    "vectorised": Vectorised,
    "processes": Processes,
}

Choice = Literal["auto", "sequential", "vectorised", "processes"]

__all__ = [
    "EXECUTORS",
    "Choice",
    "Executor",
    "Gossip",
    "Processes",
    "Sequential",
    "Vectorised",
    "choose",
    "threads",
    "why_not_stackable",
]


def choose(name: Choice, work: Work) -> Literal["sequential", "vectorised", "processes"]:
    """The executor to use: as asked for, or for `auto` the one that suits the model and the device.

    Stacking wins wherever launching operations costs more than doing them; convolutions on a CPU are the exception
    (measured: a small CNN is 1.8 times slower stacked).  A model that cannot be stacked runs one client at a time.
    """
    obstacle = why_not_stackable(work) if name in ("auto", "vectorised") else None
    if name == "vectorised" and obstacle:
        raise ConfigError(f"'vectorised' cannot run this model: {obstacle}  Use 'sequential'.", key="executor")
    if name != "auto":
        return name
    convolutions = any(isinstance(m, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) for m in work.module.modules())
    return "sequential" if obstacle or (convolutions and work.device.type == "cpu") else "vectorised"


def why_not_stackable(work: Work) -> str | None:
    """Why the vectorised executor cannot run a model; None when it can."""
    work.module.train()
    x = work.layout.read(work.module)
    batch = torch.zeros((2, 2), dtype=torch.int64, device=work.device)
    with torch.random.fork_rng(devices=[work.device] if work.device.type == "cuda" else []):
        if mixes_examples(work):
            return "it mixes the examples of a batch, so that padding would count."
        try:
            Stack(work).gradient(torch.stack([x, x]), batch, torch.full((2, 2), 0.5, device=work.device))
        except (RuntimeError, ValueError, TypeError) as error:
            return str(error).strip().splitlines()[0]
    return None


@torch.no_grad()
def mixes_examples(work: Work) -> bool:
    """Whether the output for one example depends on what else is in the batch (batch statistics do that)."""
    one = work.inputs(torch.zeros(3, dtype=torch.int64, device=work.device))
    other = torch.cat([one[:1], one[1:] + 1])
    outputs = []
    for inputs in (one, other):
        torch.manual_seed(0)  # the same dropout for both
        outputs.append(work.module(inputs)[0])
    return not torch.allclose(outputs[0], outputs[1], rtol=1e-3, atol=1e-4)
