"""FedAvg with importance sampling. Gu et al., NeurIPS 2021 (MIFA), Algorithm 2, line 8.

    A(t)  the devices that were available in round t
    p_i   the known probability that device i is available
    v     (1/N) Σ_{i∈A(t)} Δ_i/p_i

Deviations: the algorithm box prints 1/|A(t)| in place of 1/N, but only with 1/N is v an unbiased estimate of the mean
over all devices.

The p_i come from the availability model of the environment. A model without probabilities is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from offbeat.algorithms.base import Algorithm
from offbeat.errors import ConfigError
from offbeat.messages import Job, Update


@dataclass(kw_only=True)
class FedAvgIS(Algorithm):
    """FedAvg-IS (Gu et al., NeurIPS 2021): FedAvg with updates weighted by the inverse availability of their client."""

    schedulers: ClassVar[tuple[str, ...]] = ("available",)
    state_names: ClassVar[tuple[str, ...]] = ("total",)

    def validate_participation(self, clients: int, participation: Callable[[int], float | None]) -> None:
        """Check that every client's probability of being available is known and positive."""
        if not all(map(participation, range(clients))):
            raise ConfigError(
                "importance sampling needs every client's probability of being available: use a model that has one, "
                "such as bernoulli",
                key="environment.availability",
            )

    def reset(self) -> None:
        """Start with an empty sum."""
        self.total = self.x.new_zeros(self.x.shape)

    def accumulate(self, job: Job, update: Update) -> None:
        """Add Δ_i/p_i to the sum."""
        p = self.participation(update.client)
        assert p, "checked by validate_participation"
        self.total.add_(update.delta, alpha=1 / p)

    def pseudo_gradient(self) -> Tensor:
        """Return the sum divided by N."""
        v = self.total / self.clients
        self.reset()
        return v
