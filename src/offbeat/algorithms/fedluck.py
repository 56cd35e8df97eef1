"""FedLuck: joint adaptation of local steps and compression, with periodic aggregation; and FedLuckFixed.

Song, Luo, Lu, Xie, Chen and Wang, *A Joint Approach to Local Updating and Gradient Compression for Efficient
Asynchronous Federated Learning*, Euro-Par 2024, arXiv 2407.05125; appendix ("Theory for FedLuck" in the authors' code),
Algorithm 1 and eq. 3–7 and 21.

    k, δ    local steps and compression rate of a device
    α_i     seconds per local step of device i
    β_i     seconds that device i needs to upload the whole model
    T̃       the period of the server (scheduler `periodic`)
    s(δ)    size of an update compressed at δ, as a share of the whole model's
    φ       [ ((k·α_i + s(δ)·β_i)/T̃)² (2 − δ) + 1 ] / (k·δ^e): the part of the convergence bound that depends on k and δ
    v       the mean (or another aggregate) of the decompressed updates that arrived in the period

Each device uses the (k, δ) of the grid that minimizes its φ. FedLuckFixed uses a fixed k and δ.

Deviations: eq. 21 has the seconds of a trip where its derivation has the staleness in periods, ⌈seconds/T̃⌉; here they
are divided by T̃. The appendix prints e = 1, for which φ prefers δ = 1 on all but the slowest links. The authors' code
uses e = ½, which is the default here. The paper takes s(δ) = δ. A top-k update also carries the positions of its
values, so that trips would take 22 to 47 % longer than planned; here s(δ) is the size that the codec really sends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

RATES = np.arange(1, 101) / 100  # the grid of δ


def best(
    alpha: float, beta: float, period: float, steps: tuple[int, int] = (2, 60), exponent: float = 0.5,
    rates: tuple[float, float] = (0.01, 1.0), share: Callable[[float], float] = lambda rate: rate,
) -> tuple[int, float]:  # fmt: skip
    """Return the (k, δ) that minimizes φ.

    Args:
        alpha: Seconds per local step.
        beta: Seconds to upload the whole model.
        period: Seconds between two steps of the server.
        steps: Smallest and largest k.
        exponent: Exponent e of δ.
        rates: Smallest and largest δ of the grid 0.01, 0.02, …, 1.
        share: Returns s(δ), the size of an update as a share of the whole model's.
    """
    k = np.arange(steps[0], steps[1] + 1, dtype=float)[:, None]
    delta = np.unique(np.clip(RATES, *rates))
    sizes = np.array([share(float(rate)) for rate in delta])
    values = phi(k, delta, alpha, beta, period, exponent, sizes)
    row, column = np.unravel_index(np.argmin(values), values.shape)
    return int(k[row, 0]), float(delta[column])


@dataclass(kw_only=True)
class FedLuckFixed(Algorithm):
    """FedLuck with fixed values: k is `client.steps` and δ is the rate of `compression.upload`."""

    aggregator: Aggregator = field(default_factory=Mean)
    """Aggregator of the updates of a step."""
    weighted: bool = False
    """Whether clients are weighted by their number of examples."""

    schedulers: ClassVar[tuple[str, ...]] = ("periodic",)
    state_names: ClassVar[tuple[str, ...]] = ("aggregator",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weighted and not self.aggregator.supports_weights:
            raise ConfigError("only the aggregator 'mean' supports weights: set weighted = false", key="weighted")

    def reset(self) -> None:
        """Start with an empty buffer."""
        self.aggregator.start(self.x, self.seed, self.updates)

    def accumulate(self, job: Job, update: Update) -> None:
        """Add Δ_i to the buffer, with weight n_i if `weighted`."""
        n = float(update.examples) if self.weighted else 1.0
        self.aggregator.add(update.client, update.delta, scale=n, weight=n)

    def pseudo_gradient(self) -> Tensor:
        """Return the mean of the updates of the period."""
        return self.aggregator.aggregate()


@dataclass(kw_only=True)
class FedLuck(FedLuckFixed):
    """FedLuck: each device minimizes φ over its local steps k and compression rate δ."""

    min_steps: PositiveInt = 2
    """Smallest k of the grid."""
    max_steps: PositiveInt = 60
    """Largest k of the grid."""
    min_rate: Rate = 0.01
    """Smallest δ of the grid."""
    max_rate: Rate = 1.0
    """Largest δ of the grid; equal to `min_rate` for a fixed δ."""
    exponent: Positive = 0.5
    """Exponent e in φ."""
    alpha: tuple[Positive, ...] = ()
    """α_i, one per client. If empty, they come from the delay model `devices`."""
    beta: tuple[Positive, ...] = ()
    """β_i, one per client. If empty, they come from the delay model `devices`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_steps > self.max_steps:
            raise ConfigError(f"{self.min_steps} is above max_steps = {self.max_steps}", key="min_steps")
        if self.min_rate > self.max_rate:
            raise ConfigError(f"{self.min_rate} is above max_rate = {self.max_rate}", key="min_rate")

    def validate(self, experiment: Settings) -> None:
        """Check that the upload codec has an adjustable rate."""
        super().validate(experiment)
        if not experiment.compression.upload.adjustable:
            raise ConfigError("FedLuck chooses the compression rate: use top-k or random-k", key="compression.upload")

    def workload(self, device: Device) -> Workload:
        """Return the (k, δ) of a device."""
        assert device.period is not None, "FedLuck supports the periodic scheduler only"
        alpha, beta = device.seconds_per_step(self.alpha), device.upload_seconds(self.beta)
        steps, rates = (self.min_steps, self.max_steps), (self.min_rate, self.max_rate)
        k, delta = best(alpha, beta, device.period, steps, self.exponent, rates, device.upload_share)
        return Workload(k, compression_rate=delta)

    def describe_plan(self, devices: Sequence[Device]) -> dict[str, Any]:
        """Return T̃, e, s(δ) on the grid, and the k, δ, α and β of each device."""
        plan = []
        for device in devices:
            chosen = self.workload(device)
            alpha, beta = device.seconds_per_step(self.alpha), device.upload_seconds(self.beta)
            plan.append([chosen.steps, chosen.compression_rate or 1.0, alpha, beta])
        shares = [round(devices[0].upload_share(float(rate)), 6) for rate in RATES]
        return {"period": devices[0].period, "exponent": self.exponent, "upload_shares": shares, "plan": plan}
