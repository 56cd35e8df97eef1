"""Central differential privacy for a client's updates: clipped, summed, noised at the server.

    u_i   an update, already scaled by its staleness;  ū_i = u_i·min(1, C/‖u_i‖)
    C, z  `clip` and `noise_multiplier`
    M     updates a step, fixed by the scheduler
    v     (Σ ū_i + N(0, z²C²·I)) / M

As DP-FedAvg (McMahan, Ramage, Talwar and Zhang, ICLR 2018) with a fixed divisor, and with no gain from sampling: an
asynchronous server does not draw its clients independently of each other and of the past.

A client with n_t updates in step t moves that step's sum by n_t·C at most, whatever its data says and whatever the
earlier steps have shown.  Its steps together are then no more than one Gaussian mechanism of noise multiplier
z/√(Σ_t n_t²) (Dong, Roth and Su, *Gaussian Differential Privacy*, 2022, Corollary 3.3).  `spent` is the largest
Σ_t n_t² of a client; ε follows from it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from offbeat.aggregation.base import Aggregator
from offbeat.aggregation.robust import length
from offbeat.errors import ConfigError
from offbeat.options import Interval, NonNegative, Positive
from offbeat.random import stream

Delta = Annotated[float, Interval(gt=0, lt=1)]


@dataclass(kw_only=True)
class Private(Aggregator):
    """Every update clipped, their sum noised and divided by the scheduler's number of updates a step."""

    clip: Positive = 1.0
    """C: largest ‖u_i‖; what is longer is made so long."""
    noise_multiplier: NonNegative = 1.0
    """z: the noise on the sum has the standard deviation z·C in every coordinate."""
    delta: Delta = 1e-5
    """δ, at which ε is told; well below one over the number of clients."""

    by_sum = False
    """Whether the noise follows from the sum, too.  A server of real clients that is killed after it has sent a version
    and before it has saved it makes that version again, of other updates: with the same noise, the difference of the
    two would tell all."""
    state_names: ClassVar[tuple[str, ...]] = ("total", "steps", "present", "squares", "spent")

    def check(self, updates: int | None) -> None:
        if updates is None:
            raise ConfigError(
                "a sum can only be hidden behind noise where every step is divided by the same number: use a scheduler "
                "with a buffer, or rounds, and a rule that takes one"
            )

    def start(self, like: Tensor, seed: int = 0, updates: int | None = None) -> None:
        self.check(updates)
        self.updates, self.seed = updates or 0, seed
        self.total = torch.zeros_like(like)
        self.steps = 0  # that were made
        self.present: dict[int, int] = {}  # n_t of those in this step
        self.squares: dict[int, int] = {}  # Σ n_t² of everybody who was in an earlier one
        self.spent = 0  # the largest of them

    def add(self, client: int, value: Tensor, scale: float = 1.0, weight: float = 1.0) -> None:
        u = value if scale == 1.0 else value * scale
        self.total.add_(u * (self.clip / length(u)).clamp(max=1.0))
        self.present[client] = self.present.get(client, 0) + 1

    def aggregate(self) -> Tensor:
        for client, n in self.present.items():
            self.squares[client] = self.squares.get(client, 0) + n * n
            self.spent = max(self.spent, self.squares[client])
        v = self.noised().div_(self.updates)
        self.total.zero_()
        self.present = {}
        self.steps += 1
        return v

    def noised(self) -> Tensor:
        """The sum behind its noise, which NumPy draws, so that it is the same on every device."""
        if not self.noise_multiplier:
            return self.total.clone()
        random = stream(self.seed, "noise", self.steps, self._mark() if self.by_sum else 0)
        noise = torch.from_numpy(random.standard_normal(self.total.shape)).to(self.total)
        return noise.mul_(self.noise_multiplier * self.clip).add_(self.total)

    def _mark(self) -> int:
        total = self.total.cpu().numpy().tobytes()
        return int.from_bytes(hashlib.blake2b(total, digest_size=8).digest(), "little")
