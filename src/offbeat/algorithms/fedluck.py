"""FedLuck: local steps and compression chosen together, periodic aggregation.  *Periodic asynchronous federated
learning with joint adaptation*, appendix (Algorithm 1, eq. 3–7), and FedPer, the same with fixed k and δ.

    k, δ    local steps and compression rate of a device
    α_i     seconds a local step takes device i;  β_i  seconds it takes to upload the whole model
    T̃       the server's period (dispatch `periodic`)
    φ       [ ((k·α_i + δ·β_i)/T̃)² (2 − δ) + 1 ] / (k·δ^e): what the convergence bound leaves of k and δ
    v       mean of the decompressed updates that arrived in the period, or another combination

Each device takes the (k, δ) of the grid that minimises its φ.  The appendix prints e = 1, for which φ prefers δ = 1
on all but the slowest lines; the authors' code uses e = ½, the default here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from offbeat.algorithms.base import Algorithm
from offbeat.algorithms.combine import Combine, Mean
from offbeat.errors import ConfigError
from offbeat.messages import Job, Update
from offbeat.options import Bound, Count, Positive

Rate = Annotated[float, Bound(low=0, high=1, open="low")]
Grid = NDArray[np.float64]


def phi(k: Grid | float, delta: Grid | float, alpha: float, beta: float, period: float, exponent: float = 0.5) -> Grid:
    """φ(k, δ) for one device; arrays are broadcast, so that it can be plotted."""
    k_, d = np.asarray(k, dtype=float), np.asarray(delta, dtype=float)
    return np.asarray((((k_ * alpha + d * beta) / period) ** 2 * (2 - d) + 1) / (k_ * d**exponent))


def best(
    alpha: float, beta: float, period: float, steps: tuple[int, int] = (2, 60), exponent: float = 0.5, rates: int = 100
) -> tuple[int, float]:
    """The (k, δ) that minimises φ over k = low … high and δ = 1/rates, 2/rates, …, 1."""
    k = np.arange(steps[0], steps[1] + 1, dtype=float)[:, None]
    delta = np.arange(1, rates + 1)[None, :] / rates
    row, column = np.unravel_index(np.argmin(phi(k, delta, alpha, beta, period, exponent)), (k.size, delta.size))
    return int(k[row, 0]), float(delta[0, column])


@dataclass(kw_only=True)
class FedLuck(Algorithm):
    weighted: bool = False
    """Weigh every client by its number of examples."""
    min_steps: Count = 2
    """Smallest k of the grid."""
    max_steps: Count = 60
    """Largest k of the grid."""
    exponent: Positive = 0.5
    """e in φ."""
    alpha: tuple[Positive, ...] = ()
    """α_i, one a client; empty: what the delay law `devices` says."""
    beta: tuple[Positive, ...] = ()
    """β_i, likewise."""
    combine: Combine = field(default_factory=Mean)
    """How the updates of a step become v."""

    plans: ClassVar[bool] = True
    dispatches: ClassVar[tuple[str, ...]] = ("periodic",)
    state_names: ClassVar[tuple[str, ...]] = ("combine",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_steps > self.max_steps:
            raise ConfigError(f"{self.min_steps} is above max_steps = {self.max_steps}", key="min_steps")
        if self.weighted and not self.combine.weighs:
            raise ConfigError("only a mean has weights: give weighted = false", key="weighted")

    def reset(self) -> None:
        self.combine.start(self.x, self.seed, self.updates)

    def absorb(self, job: Job, update: Update) -> None:
        n = float(update.examples) if self.weighted else 1.0
        self.combine.add(update.client, update.delta, scale=n, weight=n)

    def direction(self) -> Tensor:
        return self.combine.take()

    def choose(self, alpha: float, beta: float, period: float) -> tuple[int, float]:
        """A device's (k, δ)."""
        return best(alpha, beta, period, (self.min_steps, self.max_steps), self.exponent)


@dataclass(kw_only=True)
class FedPer(Algorithm):
    """The fixed pair: k is `client.steps`, δ the rate of `compression.upload`."""

    combine: Combine = field(default_factory=Mean)
    """How the updates of a step become v."""

    dispatches: ClassVar[tuple[str, ...]] = ("periodic",)
    state_names: ClassVar[tuple[str, ...]] = ("combine",)

    def reset(self) -> None:
        self.combine.start(self.x, self.seed, self.updates)

    def absorb(self, job: Job, update: Update) -> None:
        self.combine.add(update.client, update.delta)

    def direction(self) -> Tensor:
        return self.combine.take()
