"""Staleness functions s(τ): the weight of an update that is τ versions old. Xie et al. 2019, section 5.2."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from offbeat.options import NonNegative, Options


class Staleness(Options, ABC):
    """Interface for staleness functions."""

    @abstractmethod
    def __call__(self, tau: int) -> float:
        """Return s(τ)."""


@dataclass(kw_only=True, frozen=True)
class Constant(Staleness):
    """Constant weight: s(τ) = 1."""

    def __call__(self, tau: int) -> float:
        """Return 1."""
        return 1.0


@dataclass(kw_only=True, frozen=True)
class Polynomial(Staleness):
    """Polynomial decay: s(τ) = (τ + 1)^−a."""

    a: NonNegative = 0.5
    """Exponent a. With 0 all weights are 1."""

    def __call__(self, tau: int) -> float:
        """Return (τ + 1)^−a."""
        return float((tau + 1) ** -self.a)


@dataclass(kw_only=True, frozen=True)
class Hinge(Staleness):
    """Hinge: s(τ) = 1 if τ ≤ b, else 1 / (a(τ − b) + 1)."""

    a: NonNegative = 10.0
    """Slope a of the decay beyond b."""
    b: NonNegative = 4.0
    """Largest staleness with full weight."""

    def __call__(self, tau: int) -> float:
        """Return 1 up to b, and a decaying weight beyond."""
        return 1.0 if tau <= self.b else 1.0 / (self.a * (tau - self.b) + 1.0)


STALENESS: dict[str, type[Staleness]] = {"constant": Constant, "polynomial": Polynomial, "hinge": Hinge}
