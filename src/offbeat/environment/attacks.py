"""Malicious clients, which train on poisoned labels or send forged updates.

In all other respects an attacker behaves like an honest client: it needs the same time, sends the same number of bytes
and keeps the same client state. A `Forgery` replaces Δ before it is encoded, so that the message is always valid. It
does not change auxiliary vectors such as control variates and running statistics. Attacks exist in simulations only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from offbeat.errors import ConfigError
from offbeat.messages import record
from offbeat.options import Finite, NonNegativeInt, Options, Positive, PositiveInt, Probability
from offbeat.random import key, torch_stream, uniforms


@dataclass(kw_only=True, frozen=True)
class Attack(Options, ABC):
    """Interface for attacks."""

    share: Probability = 0.2
    """Fraction of the clients that attack, rounded to a whole number. The seed determines which clients attack. The
    attackers of a smaller fraction are among those of a larger one."""
    clients: tuple[NonNegativeInt, ...] = ()
    """The clients that attack. If given, `share` is ignored."""

    poisons_labels: ClassVar[bool] = False
    """Whether attackers train on wrong labels."""
    forges_updates: ClassVar[bool] = False
    """Whether attackers send other updates than they computed."""

    def labels(self, y: Tensor, classes: int) -> Tensor:
        """Return the labels on which attackers train."""
        return y

    def attackers(self, seed: int, clients: int) -> frozenset[int]:
        """Return the clients that attack."""
        if self.clients:
            return frozenset(self.clients)
        order = np.argsort(uniforms(key(seed, "attack"), clients), kind="stable")
        return frozenset(order[: round(self.share * clients)].tolist())

    def check(self, clients: int) -> None:
        """Raise a `ConfigError` if an attacker is not one of the clients."""
        wrong = [client for client in self.clients if client >= clients]
        if wrong:
            raise ConfigError(f"{wrong[0]}, but the clients are 0 to {clients - 1}", key="environment.attack.clients")


class Poisoning(Attack):
    """Interface for attacks in which clients train honestly on wrong labels."""

    poisons_labels: ClassVar[bool] = True

    @abstractmethod
    def labels(self, y: Tensor, classes: int) -> Tensor:
        """Return the wrong labels.

        Args:
            y: The true labels.
            classes: The number of classes.
        """


@record
class Known:
    """The knowledge of an attacker when its update arrives."""

    seed: int  # seed of the job
    first: Tensor  # the first Δ that the attacker computed
    honest: Sequence[Tensor]  # the latest Δ of honest clients, oldest first


class Forgery(Attack):
    """Interface for attacks in which clients train honestly and send a forged update."""

    forges_updates: ClassVar[bool] = True
    replays: ClassVar[bool] = False
    """Whether the attack uses `Known.first`. Otherwise it is not stored."""

    def observed_count(self) -> int:
        """Return the maximum number of honest Δ that the attackers observe."""
        return 0

    @abstractmethod
    def forge(self, delta: Tensor, known: Known) -> Tensor:
        """Return the vector to send instead of Δ.

        Args:
            delta: The honest Δ, which must not be modified.
            known: The knowledge of the attacker.
        """


@dataclass(kw_only=True, frozen=True)
class SignFlip(Forgery):
    """Send −Δ."""

    def forge(self, delta: Tensor, known: Known) -> Tensor:
        """Return −Δ."""
        return -delta


@dataclass(kw_only=True, frozen=True)
class Scaled(Forgery):
    """Send factor·Δ, to gain the influence of many clients."""

    factor: Finite = 10.0
    """Factor on Δ. It may be negative."""

    def forge(self, delta: Tensor, known: Known) -> Tensor:
        """Return factor·Δ."""
        return self.factor * delta


@dataclass(kw_only=True, frozen=True)
class Gaussian(Forgery):
    """Send noise from N(0, std²·I), as in Blanchard et al., *Machine Learning with Adversaries*, NeurIPS 2017.

    The default standard deviation of 200 is that of the paper and gives vectors far longer than any Δ.
    """

    std: Positive = 200.0
    """Standard deviation of each coordinate."""

    def forge(self, delta: Tensor, known: Known) -> Tensor:
        """Return Gaussian noise."""
        generator = torch_stream(known.seed, "attack", device=delta.device)
        return self.std * torch.randn(delta.shape, generator=generator, device=delta.device, dtype=delta.dtype)


@dataclass(kw_only=True, frozen=True)
class StaleReplay(Forgery):
    """Send the first Δ that the client computed, for every job."""

    replays: ClassVar[bool] = True

    def forge(self, delta: Tensor, known: Known) -> Tensor:
        """Return the first Δ."""
        return known.first


@dataclass(kw_only=True, frozen=True)
class Omniscient(Forgery):
    """Interface for attackers that observe the updates of honest clients.

    In the papers, attackers know all other updates of a round. Without rounds they know the latest arrivals. Before the
    first arrival an attacker knows only its own Δ.
    """

    latest: PositiveInt = 10
    """Number of latest honest arrivals that are known, of any version and whether or not the server accepted them. The
    size of the server's buffer comes closest to a round."""

    def observed_count(self) -> int:
        """Return `latest`."""
        return self.latest

    def forge(self, delta: Tensor, known: Known) -> Tensor:
        """Return the forged update against the observed ones."""
        return self.against(torch.stack(list(known.honest) or [delta]))

    @abstractmethod
    def against(self, honest: Tensor) -> Tensor:
        """Return the forged update against honest updates (n, d)."""


@dataclass(kw_only=True, frozen=True)
class InnerProduct(Omniscient):
    """Send −ε·(mean of the honest Δ), so that the server's step has a negative inner product with the honest mean.

    Xie et al., *Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product Manipulation*, UAI 2019. A small ε is
    hard to distinguish from honest updates. A fraction p of attackers reverses the plain mean if ε > (1 − p)/p.
    """

    epsilon: Positive = 0.5
    """Factor ε."""

    def against(self, honest: Tensor) -> Tensor:
        """Return −ε times the mean."""
        return -self.epsilon * honest.mean(dim=0)


@dataclass(kw_only=True, frozen=True)
class ALittle(Omniscient):
    """Send mean − z·(standard deviation) of the honest Δ, coordinate by coordinate.

    Baruch et al., *A Little Is Enough: Circumventing Defenses for Distributed Learning*, NeurIPS 2019. The shift is
    large enough to do harm and small enough to pass for honest. In the paper, attackers know only each other's honest
    updates and derive z from the numbers of workers and attackers. Here z is an option, because the number of attackers
    in a buffer varies.
    """

    z: Positive = 1.5
    """Standard deviations from the mean."""

    def against(self, honest: Tensor) -> Tensor:
        """Return the shifted mean."""
        return honest.mean(dim=0) - self.z * honest.std(dim=0, correction=0)


@dataclass(kw_only=True, frozen=True)
class LabelFlip(Poisoning):
    """Train on label classes − 1 − y instead of y, or replace one label by another."""

    pair: tuple[NonNegativeInt, NonNegativeInt] | None = None
    """The label to replace and its replacement. By default all labels change."""

    def labels(self, y: Tensor, classes: int) -> Tensor:
        """Return the flipped labels."""
        if self.pair is None:
            return classes - 1 - y
        if max(self.pair) >= classes:
            raise ConfigError(f"{max(self.pair)}, but labels are 0 to {classes - 1}", key="environment.attack.pair")
        return torch.where(y == self.pair[0], self.pair[1], y)


ATTACKS: dict[str, type[Attack]] = {
    "sign-flip": SignFlip,
    "scaled": Scaled,
    "gaussian": Gaussian,
    "label-flip": LabelFlip,
    "inner-product": InnerProduct,
    "a-little": ALittle,
    "stale-replay": StaleReplay,
}
