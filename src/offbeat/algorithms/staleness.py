"""s(τ): how much an update counts that is τ versions old.  Xie et al. 2019, section 5.2."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from offbeat.options import NonNegative, Options


class Staleness(Options, ABC):
    @abstractmethod
    def __call__(self, tau: int) -> float: ...


@dataclass(kw_only=True, frozen=True)
class Constant(Staleness):
    """s(τ) = 1."""

    def __call__(self, tau: int) -> float:
        return 1.0


@dataclass(kw_only=True, frozen=True)
class Polynomial(Staleness):
    """s(τ) = (τ + 1)^−a."""

    a: NonNegative = 0.5
    """How fast the weight falls; 0: not at all."""

    def __call__(self, tau: int) -> float:
        return float((tau + 1) ** -self.a)


@dataclass(kw_only=True, frozen=True)
class Hinge(Staleness):
    """s(τ) = 1 if τ ≤ b, else 1 / (a(τ − b) + 1)."""

    a: NonNegative = 10.0
    """How fast the weight falls beyond b."""
    b: NonNegative = 4.0
    """Versions up to which an update counts in full."""

    def __call__(self, tau: int) -> float:
        return 1.0 if tau <= self.b else 1.0 / (self.a * (tau - self.b) + 1.0)


STALENESS: dict[str, type[Staleness]] = {"constant": Constant, "polynomial": Polynomial, "hinge": Hinge}
