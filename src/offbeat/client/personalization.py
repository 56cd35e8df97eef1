"""Personalization: parameters that stay on the client, and fine-tuning before a client is tested.

The model of client i is [x, p_i]. x travels; p_i belongs to the client, which starts from the model's initialization.
A job trains both, y = [x, p_i], and only Δ of x is sent:

    FedPer   p_i are the last layers: `parameters = ["head"]`.
             Arivazhagan et al., *Federated Learning with Personalization Layers*, 2019, Algorithms 1 and 2.
    FedBN    p_i are all normalization layers with their running statistics: `norms = true`.
             Li et al., *FedBN: Federated Learning on Non-IID Features via Local Batch Normalization*, ICLR 2021.
    FedRep   as FedPer, but a job first takes τ steps on p_i with x frozen, and then steps on x with p_i frozen:
             `head_steps` = τ. Collins et al., *Exploiting Shared Representations for Personalized Federated Learning*,
             ICML 2021, Algorithm 1.

Any server algorithm and any executor runs on top: a server sees a shorter vector, an executor a longer one.

What a client rule exchanges with the server or stores concerns x: SCAFFOLD's and FedDyn's vectors are zero on p_i, on
which the rule is then its own optimizer. The proximal terms α(y − x) and μ(y − x) of `dyn` and `prox` have no such
vector: they also hold p_i near its value at the start of the job.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from offbeat.errors import ConfigError
from offbeat.options import NonNegativeInt, Options
from offbeat.vectors import Layout

MOST_NAMES = 8  # in a message


@dataclass(kw_only=True, frozen=True)
class Personalization(Options):
    """Parameters that stay on the clients, and fine-tuning before a client is tested."""

    parameters: tuple[str, ...] = ()
    """Parameters that stay on the client (FedPer): names of layers, such as "head", or patterns, such as "*.bias"."""
    norms: bool = False
    """Whether normalization layers stay on the client, with their running statistics (FedBN)."""
    head_steps: NonNegativeInt = 0
    """Local steps on the personal part before those of the client rule, which then train the shared part (FedRep).
    With 0, every step trains both."""
    fine_tune_steps: NonNegativeInt = 0
    """Local steps on a client's training data before its model is tested; they change nothing else."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head_steps and not self.splits:
            raise ConfigError(
                f"{self.head_steps} steps on a personal part, but there is none: give parameters or norms",
                key="head_steps",
            )

    @property
    def splits(self) -> bool:
        """Whether a part of the model stays on the clients."""
        return bool(self.parameters) or self.norms

    @property
    def tests_clients(self) -> bool:
        """Whether every client is tested with a model of its own."""
        return self.splits or self.fine_tune_steps > 0

    def split(self, module: nn.Module, names: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the names of parameters or buffers that travel, and of those that stay on the client."""
        norms = _norms(module) if self.norms else ()
        own = {
            name
            for name in names
            if name.rpartition(".")[0] in norms or any(_matches(name, pattern) for pattern in self.parameters)
        }
        return [name for name in names if name not in own], [name for name in names if name in own]

    def check(self, module: nn.Module, names: Sequence[str]) -> None:
        """Check that the options suit a model.

        Args:
            module: The model.
            names: Its trainable parameters.

        Raises:
            ConfigError: A pattern matches nothing, there are no normalization layers, or nothing is left to share.
        """
        listed = ", ".join(names[:MOST_NAMES]) + (", …" if len(names) > MOST_NAMES else "")
        for pattern in self.parameters:
            if not any(_matches(name, pattern) for name in names):
                raise ConfigError(f"no trainable parameter matches {pattern!r}; there are {listed}", key="parameters")
        norms = _norms(module) if self.norms else ()
        if self.norms and not any(name.rpartition(".")[0] in norms for name in names):
            raise ConfigError(
                "true, but the model has no normalization layer with trainable parameters; name layers in parameters",
                key="norms",
            )
        if self.splits and not self.split(module, names)[0]:
            raise ConfigError(
                f"all parameters would stay on the clients, so that there is nothing to share: leave out some of "
                f"{listed}",
                key="parameters" if self.parameters else "norms",
            )


class Split:
    """A model's vector and its running statistics, divided into what travels and what stays on the client.

    Attributes:
        shared: Layout of x.
        own: Layout of p_i.
        trained: Layout of [x, p_i], the vector of local training.
        shared_buffers: Layout of the running statistics that travel.
        own_buffers: Layout of those that stay.
        buffers: Layout of both.
        first: The initial p_i and its running statistics.

    Args:
        module: The model.
        buffers: Names of its running statistics.
        settings: What stays on the client.
    """

    def __init__(self, module: nn.Module, buffers: Sequence[str], settings: Personalization) -> None:
        everything = Layout.of(module)
        settings.check(module, everything.names)
        shared, own = settings.split(module, everything.names)
        self.shared, self.own = everything.select(shared), everything.select(own)
        self.trained = everything.select(shared + own)
        shared_buffers, own_buffers = settings.split(module, buffers)
        self.shared_buffers = Layout.of_buffers(module, shared_buffers)
        self.own_buffers = Layout.of_buffers(module, own_buffers)
        self.buffers = Layout.of_buffers(module, shared_buffers + own_buffers)
        self.first = self.own.read(module), self.own_buffers.read(module)

    @property
    def any(self) -> bool:
        """Whether anything stays on the client."""
        return bool(self.own.names or self.own_buffers.names)

    def longer(self, value: Tensor) -> Tensor:
        """Return a vector of x's length with zeros for p_i; other tensors stay as they are."""
        if value.shape[-1:] != (self.shared.dim,):
            return value
        return torch.cat([value, value.new_zeros((*value.shape[:-1], self.own.dim))], dim=-1)

    def shorter(self, value: Tensor) -> Tensor:
        """Return the part of a vector that concerns x, in its own memory; other tensors stay as they are."""
        return value[..., : self.shared.dim].clone() if value.shape[-1:] == (self.trained.dim,) else value


def _matches(name: str, pattern: str) -> bool:
    """Return whether a parameter has a name, belongs to the layer of that name or matches a pattern."""
    return name.startswith(f"{pattern}.") or fnmatch.fnmatchcase(name, pattern)


def _norms(module: nn.Module) -> set[str]:
    """Return the names of the normalization layers, of torch or with a class called …Norm…."""
    return {
        name
        for name, layer in module.named_modules()
        if "norm" in type(layer).__name__.lower() and not any(True for _ in layer.children())
    }
