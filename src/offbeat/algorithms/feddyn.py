"""FedDyn, server side. Acar et al., *Federated Learning Based on Dynamic Regularization*, ICLR 2021, Algorithm 1.

    Δ_i   update.delta = y_K − x_pulled, from the client rule `dyn` with the same α
    h     ← h − (α/N) Σ_{i∈S} Δ_i
    v     mean_S(y_K) − h/α − x, so that with η = 1: x ← mean of the received models − h/α

Under an asynchronous scheduler the received models y_K = job.x + Δ_i start from older versions; the rule is unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from offbeat.algorithms.base import ALL_ROUNDS_FIRST, Algorithm, Settings
from offbeat.errors import ConfigError
from offbeat.messages import Job, Update
from offbeat.options import Positive


@dataclass(kw_only=True)
class FedDyn(Algorithm):
    """FedDyn (Acar et al., ICLR 2021): dynamic regularization, with the client rule `dyn`."""

    alpha: Positive = 0.01
    """α, the same as for the client rule `dyn`."""

    client_rule: ClassVar[str | None] = "dyn"
    schedulers: ClassVar[tuple[str, ...]] = ALL_ROUNDS_FIRST
    state_names: ClassVar[tuple[str, ...]] = ("h", "models", "changes")

    def validate(self, experiment: Settings) -> None:
        """Check that server and clients use the same α."""
        super().validate(experiment)
        if self.alpha != experiment.client.alpha:
            raise ConfigError(
                f"{self.alpha:g}, but client.alpha is {experiment.client.alpha:g}: set both to the same value",
                key="algorithm.alpha",
            )

    def reset(self) -> None:
        """Start with h = 0 and empty sums."""
        self.h = self.x.new_zeros(self.x.shape)
        self._clear_sums()

    def _clear_sums(self) -> None:
        self.models = self.x.new_zeros(self.x.shape)
        self.changes = self.x.new_zeros(self.x.shape)

    def accumulate(self, job: Job, update: Update) -> None:
        """Add y_K and Δ_i to their sums."""
        self.models.add_(job.x).add_(update.delta)
        self.changes.add_(update.delta)

    def pseudo_gradient(self) -> Tensor:
        """Update h and return v."""
        self.h = self.h.sub(self.changes, alpha=self.alpha / self.clients)
        v = self.models / self.received - self.h / self.alpha - self.x
        self._clear_sums()
        return v
