"""Clients that attack: what they train on is poisoned, or what they send is forged.

An attacker does everything else as an honest client does: it takes as long, sends as many bytes, keeps what its rule
keeps.  A `Forgery` replaces Δ before it is coded, so that what it sends is always a valid message, and sends what goes
beside Δ (control variates, running statistics) as it is.  Attacks are of a simulation: a deployment has its own.
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
    share: Probability = 0.2
    """Part of the clients that attack, rounded to whole ones.  Who they are follows from the seed; a larger share has
    those of a smaller one, too."""
    clients: tuple[NonNegativeInt, ...] = ()
    """The clients that attack, instead of a share."""

    def attackers(self, seed: int, clients: int) -> frozenset[int]:
        """Those of so many clients that attack."""
        if self.clients:
            return frozenset(self.clients)
        luck = uniforms(key(seed, "attack"), clients)
        return frozenset(np.argsort(luck, kind="stable")[: round(self.share * clients)].tolist())

    def check(self, clients: int) -> None:
        """Refuse a list of clients that are not there."""
        wrong = [client for client in self.clients if client >= clients]
        if wrong:
            raise ConfigError(f"{wrong[0]}, but the clients are 0 to {clients - 1}", key="environment.attack.clients")


class Poisoning(Attack):
    """Attackers train honestly, on labels that are wrong."""

    @abstractmethod
    def labels(self, y: Tensor, classes: int) -> Tensor:
        """What an attacker's labels become."""


@record
class Known:
    """What an attacker knows when its update arrives."""

    seed: int  # of the trip
    first: Tensor  # the first Δ that it computed itself
    honest: Sequence[Tensor]  # the latest Δ that have come from honest clients, as they came; the oldest first


class Forgery(Attack):
    """Attackers train honestly, and send something else."""

    replays: ClassVar[bool] = False
    """Whether `Known.first` is used; else it is not kept."""

    def observed_count(self) -> int:
        """How many of the latest honest Δ the attackers know, most."""
        return 0

    @abstractmethod
    def forge(self, delta: Tensor, known: Known) -> Tensor:
        """What is sent instead of Δ, which is never changed itself."""


@dataclass(kw_only=True, frozen=True)
class SignFlip(Forgery):
    """−Δ."""

    def forge(self, delta: Tensor, known: Known) -> Tensor:
        return -delta


@dataclass(kw_only=True, frozen=True)
class Scaled(Forgery):
    """factor·Δ: a client that makes itself count for many, or pulls back with more weight than it has."""

    factor: Finite = 10.0
    """What Δ is multiplied by; it may be negative."""

    def forge(self, delta: Tensor, known: Known) -> Tensor:
        return self.factor * delta


@dataclass(kw_only=True, frozen=True)
class Gaussian(Forgery):
    """Noise from N(0, std²·I) instead of Δ, as in Blanchard et al., *Machine Learning with Adversaries*, NeurIPS 2017.

    The standard deviation is absolute, and 200 by itself, as there: far longer than any Δ.
    """

    std: Positive = 200.0
    """Standard deviation of each number."""

    def forge(self, delta: Tensor, known: Known) -> Tensor:
        generator = torch_stream(known.seed, "attack", device=delta.device)
        return self.std * torch.randn(delta.shape, generator=generator, device=delta.device, dtype=delta.dtype)


@dataclass(kw_only=True, frozen=True)
class StaleReplay(Forgery):
    """Always the first Δ that the client computed, as if it were the answer to the job at hand."""

    replays: ClassVar[bool] = True

    def forge(self, delta: Tensor, known: Known) -> Tensor:
        return known.first


@dataclass(kw_only=True, frozen=True)
class Omniscient(Forgery):
    """Attackers that see what arrives from honest clients.

    The papers speak of rounds, in which attackers know the updates of all others.  Without rounds these are the latest
    that have arrived.  Before the first of them an attacker knows its own Δ alone.
    """

    latest: PositiveInt = 10
    """How many honest updates are known: the latest that have arrived, whatever version they started from, and whether
    or not the server let them in.  As many as its buffer holds come closest to a round."""

    def observed_count(self) -> int:
        return self.latest

    def forge(self, delta: Tensor, known: Known) -> Tensor:
        return self.against(torch.stack(list(known.honest) or [delta]))

    @abstractmethod
    def against(self, honest: Tensor) -> Tensor:
        """What is sent against these (n, d)."""


@dataclass(kw_only=True, frozen=True)
class InnerProduct(Omniscient):
    """−ε·(mean of the honest Δ), to make the inner product of the server's step with the honest mean negative.

    Xie et al., *Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product Manipulation*, UAI 2019.  A small ε
    hides among honest updates; a share p of attackers turns the plain mean round from ε = (1 − p)/p on.
    """

    epsilon: Positive = 0.5
    """ε."""

    def against(self, honest: Tensor) -> Tensor:
        return -self.epsilon * honest.mean(dim=0)


@dataclass(kw_only=True, frozen=True)
class ALittle(Omniscient):
    """mean − z·(standard deviation) of the honest Δ, number by number.

    Baruch et al., *A Little Is Enough: Circumventing Defenses for Distributed Learning*, NeurIPS 2019: far enough
    to do harm, near enough to stay among the honest.  Their attackers know one another's honest updates alone, and
    derive z from the numbers of workers and attackers; here z is given, since a buffer has now more, now fewer of them.
    """

    z: Positive = 1.5
    """Standard deviations from the mean."""

    def against(self, honest: Tensor) -> Tensor:
        return honest.mean(dim=0) - self.z * honest.std(dim=0, correction=0)


@dataclass(kw_only=True, frozen=True)
class LabelFlip(Poisoning):
    """Label y becomes classes − 1 − y, or one label becomes another."""

    pair: tuple[NonNegativeInt, NonNegativeInt] | None = None
    """The label that becomes another, and the other; unset: all labels change."""

    def labels(self, y: Tensor, classes: int) -> Tensor:
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
