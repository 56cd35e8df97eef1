"""FedLuck: local steps and compression chosen together, periodic aggregation.  *Periodic asynchronous federated
learning with joint adaptation*, appendix (Algorithm 1, eq. 3–7), and FedLuckFixed, the same with fixed k and δ.

    k, δ    local steps and compression rate of a device
    α_i     seconds a local step takes device i;  β_i  seconds it takes to upload the whole model
    T̃       the server's period (scheduler `periodic`)
    φ       [ ((k·α_i + δ·β_i)/T̃)² (2 − δ) + 1 ] / (k·δ^e): what the convergence bound leaves of k and δ
    v       mean of the decompressed updates that arrived in the period, or another combination

Each device takes the (k, δ) of the grid that minimises its φ.  The appendix prints e = 1, for which φ prefers δ = 1
on all but the slowest lines; the authors' code uses e = ½, the default here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np
from torch import Tensor

from offbeat.aggregation import Aggregator, Mean
from offbeat.algorithms.base import Algorithm, Settings
from offbeat.algorithms.workload import Device, Workload
from offbeat.errors import ConfigError
from offbeat.fedluck_objective import phi
from offbeat.messages import Job, Update
from offbeat.options import Interval, Positive, PositiveInt

Rate = Annotated[float, Interval(gt=0, le=1)]


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
    min_steps: PositiveInt = 2
    """Smallest k of the grid."""
    max_steps: PositiveInt = 60
    """Largest k of the grid."""
    exponent: Positive = 0.5
    """e in φ."""
    alpha: tuple[Positive, ...] = ()
    """α_i, one a client; empty: what the delay law `devices` says."""
    beta: tuple[Positive, ...] = ()
    """β_i, likewise."""
    aggregator: Aggregator = field(default_factory=Mean)
    """How the updates of a step become v."""

    schedulers: ClassVar[tuple[str, ...]] = ("periodic",)
    state_names: ClassVar[tuple[str, ...]] = ("aggregator",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_steps > self.max_steps:
            raise ConfigError(f"{self.min_steps} is above max_steps = {self.max_steps}", key="min_steps")
        if self.weighted and not self.aggregator.weighs:
            raise ConfigError("only a mean has weights: give weighted = false", key="weighted")

    def reset(self) -> None:
        self.aggregator.start(self.x, self.seed, self.updates)

    def accumulate(self, job: Job, update: Update) -> None:
        n = float(update.examples) if self.weighted else 1.0
        self.aggregator.add(update.client, update.delta, scale=n, weight=n)

    def pseudo_gradient(self) -> Tensor:
        return self.aggregator.aggregate()

    def validate(self, experiment: Settings) -> None:
        """Check that the upload codec has a rate to choose."""
        super().validate(experiment)
        if not experiment.compression.upload.adjustable:
            raise ConfigError("FedLuck chooses the compression rate: use top-k or random-k", key="compression.upload")

    def workload(self, device: Device) -> Workload:
        """Choose a device's (k, δ)."""
        assert device.period is not None, "FedLuck runs under the periodic scheduler only"
        alpha, beta = device.seconds_per_step(self.alpha), device.upload_seconds(self.beta)
        k, delta = best(alpha, beta, device.period, (self.min_steps, self.max_steps), self.exponent)
        return Workload(k, compression_rate=delta)

    def describe_plan(self, devices: Sequence[Device]) -> dict[str, Any]:
        """Return T̃, e and each device's k, δ, α and β."""
        plan = []
        for device in devices:
            chosen = self.workload(device)
            alpha, beta = device.seconds_per_step(self.alpha), device.upload_seconds(self.beta)
            plan.append([chosen.steps, chosen.compression_rate or 1.0, alpha, beta])
        return {"period": devices[0].period, "exponent": self.exponent, "plan": plan}


@dataclass(kw_only=True)
class FedLuckFixed(Algorithm):
    """The fixed pair: k is `client.steps`, δ the rate of `compression.upload`."""

    aggregator: Aggregator = field(default_factory=Mean)
    """How the updates of a step become v."""

    schedulers: ClassVar[tuple[str, ...]] = ("periodic",)
    state_names: ClassVar[tuple[str, ...]] = ("aggregator",)

    def reset(self) -> None:
        self.aggregator.start(self.x, self.seed, self.updates)

    def accumulate(self, job: Job, update: Update) -> None:
        self.aggregator.add(update.client, update.delta)

    def pseudo_gradient(self) -> Tensor:
        return self.aggregator.aggregate()
