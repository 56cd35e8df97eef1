"""Central differential privacy at the level of clients: updates are clipped, summed and noised at the server.

    u_i   an update, already scaled by its staleness
    ū_i   u_i·min(1, C/‖u_i‖)
    C, z  `clip` and `noise_multiplier`
    M     updates per step, fixed by the scheduler
    v     (Σ ū_i + N(0, z²C²·I)) / M

This is DP-FedAvg (McMahan, Ramage, Talwar and Zhang, ICLR 2018) with a fixed denominator and without amplification by
sampling: an asynchronous server does not sample its clients independently of each other and of the past.

A client with n_t updates in step t changes the sum of that step by at most n_t·C, for any data and any earlier outputs.
All its steps together are therefore bounded by one Gaussian mechanism with noise multiplier z/√(Σ_t n_t²) (Dong, Roth
and Su, *Gaussian Differential Privacy*, 2022, Corollary 3.3). `spent` is the largest Σ_t n_t² of any client and
determines ε.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from offbeat.aggregation.base import Aggregator
from offbeat.aggregation.robust import norm
from offbeat.errors import ConfigError
from offbeat.options import Interval, NonNegative, Positive
from offbeat.random import stream

Delta = Annotated[float, Interval(gt=0, lt=1)]


@dataclass(kw_only=True)
class Private(Aggregator):
    """Differentially private mean: clip every update, add noise to the sum, divide by the updates per step."""

    clip: Positive = 1.0
    """C: maximum norm of an update. Longer updates are scaled down to it."""
    noise_multiplier: NonNegative = 1.0
    """z: the noise on the sum has standard deviation z·C in every coordinate."""
    delta: Delta = 1e-5
    """δ at which ε is reported. It should be well below one over the number of clients."""

    by_sum = False
    """Whether the noise also depends on the sum. A deployed server that is killed between sending a version and saving
    it computes that version again from other updates. With equal noise, the difference of the two would reveal them."""
    state_names: ClassVar[tuple[str, ...]] = ("total", "steps", "present", "squares", "spent")

    def check(self, updates: int | None) -> None:
        """Raise a `ConfigError` unless the number of updates per step is fixed."""
        if updates is None:
            raise ConfigError(
                "differential privacy needs a fixed number of updates per step: use the scheduler rounds or one with a "
                "buffer, and an algorithm that supports it"
            )

    def start(self, like: Tensor, seed: int = 0, updates: int | None = None) -> None:
        """Start with an empty sum and no spent budget."""
        self.check(updates)
        self.updates, self.seed = updates or 0, seed
        self.total = torch.zeros_like(like)
        self.steps = 0  # completed steps
        self.present: dict[int, int] = {}  # n_t of the clients in the current step
        self.squares: dict[int, int] = {}  # Σ n_t² of every client over the completed steps
        self.spent = 0  # the largest of these sums

    def add(self, client: int, value: Tensor, scale: float = 1.0, weight: float = 1.0) -> None:
        """Add the clipped update to the sum."""
        u = value if scale == 1.0 else value * scale
        self.total.add_(u * (self.clip / norm(u)).clamp(max=1.0))
        self.present[client] = self.present.get(client, 0) + 1

    def aggregate(self) -> Tensor:
        """Return the noised sum divided by M, and record the spent budget."""
        for client, n in self.present.items():
            self.squares[client] = self.squares.get(client, 0) + n * n
            self.spent = max(self.spent, self.squares[client])
        v = self.noised().div_(self.updates)
        self.total.zero_()
        self.present = {}
        self.steps += 1
        return v

    def noised(self) -> Tensor:
        """Return the sum plus noise. NumPy draws the noise, so that it is the same on every device."""
        if not self.noise_multiplier:
            return self.total.clone()
        random = stream(self.seed, "noise", self.steps, self._digest() if self.by_sum else 0)
        noise = torch.from_numpy(random.standard_normal(self.total.shape)).to(self.total)
        return noise.mul_(self.noise_multiplier * self.clip).add_(self.total)

    def _digest(self) -> int:
        total = self.total.cpu().numpy().tobytes()
        return int.from_bytes(hashlib.blake2b(total, digest_size=8).digest(), "little")
