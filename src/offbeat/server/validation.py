"""What an update must be like before an algorithm sees it, whoever has sent it.

An update that is refused changes nothing: neither x, nor a memory, nor what a client rule keeps at the server.  Its
client comes free as if the trip had been lost.  In simulation and deployment the same gate stands in the loop; what
cannot even be decoded (a deployment's `WireError`) is counted beside it as unreadable.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from offbeat.messages import Job, Update
from offbeat.options import NonNegativeInt, Options, Positive
from offbeat.server.reasons import REASONS, Reason

__all__ = ["REASONS", "Reason", "UpdateValidator"]

MOST_STEPS, MOST_EXAMPLES = 10**9, 10**12  # nobody does more between two messages, or has more


@dataclass(kw_only=True, frozen=True)
class UpdateValidator(Options):
    """Always refused: an answer to no job that is out, or to another than it says; Δ or what goes beside it in another
    type, size or under other names; numbers that are not finite; more local steps than were asked for, or none."""

    max_norm: Positive | None = None
    """Largest ‖Δ‖."""
    beyond_norm: Literal["refuse", "clip"] = "refuse"
    """What becomes of a longer Δ: `clip` makes it as long as is allowed."""
    max_staleness: NonNegativeInt | None = None
    """Most versions that an update may be behind."""
    beyond_staleness: Literal["refuse", "shrink"] = "refuse"
    """What becomes of a staler update: `shrink` multiplies Δ by (1 + max_staleness)/(1 + τ)."""

    @property
    def can_reject(self) -> bool:
        """Whether an update that makes sense may be refused."""
        bounds = ((self.max_norm, self.beyond_norm), (self.max_staleness, self.beyond_staleness))
        return any(bound is not None and beyond == "refuse" for bound, beyond in bounds)

    def examine(
        self, job: Job, update: Update, tau: int, like: Tensor, auxiliary_sizes: Mapping[str, int], untrusted: bool
    ) -> Update | Reason:
        """The update as it may be used, or why it may not be.

        Δ has to be `like` x: the server's own, which is at hand, where the job's has long left the processor's cache.
        `auxiliary_sizes` has the sizes of what has to come beside Δ; `doubtful` numbers are looked at one by one.
        """
        if update.job != job.id or update.client != job.client or update.version != job.version:
            return "wrong-job"
        if not _alike(update.delta, like):
            return "wrong-type"
        if update.delta.shape != like.shape:
            return "wrong-size"
        if (update.extra or auxiliary_sizes) and not _complete(update.extra, auxiliary_sizes, like):
            return "wrong-extra"
        if not 0 < update.steps <= (job.steps or MOST_STEPS) or not 0 < update.examples <= MOST_EXAMPLES:
            return "invalid-counts"
        if untrusted and not all(bool(torch.isfinite(v).all()) for v in (update.delta, *update.extra.values())):
            return "not-finite"
        if self.max_staleness is None and self.max_norm is None:
            return update
        return self._within(update, tau)

    def _within(self, update: Update, tau: int) -> Update | Reason:
        """The bounds that are options."""
        if self.max_staleness is not None and tau > self.max_staleness:
            if self.beyond_staleness == "refuse":
                return "too-stale"
            update = dataclasses.replace(update, delta=update.delta * ((1 + self.max_staleness) / (1 + tau)))
        if self.max_norm is not None and (norm := float(update.delta.norm())) > self.max_norm:
            if self.beyond_norm == "refuse":
                return "norm-exceeded"
            update = dataclasses.replace(update, delta=update.delta * (self.max_norm / norm))
        return update


def _alike(vector: object, x: Tensor) -> bool:
    return isinstance(vector, Tensor) and vector.dtype == x.dtype and vector.device == x.device


def _complete(extra: Mapping[str, Tensor], auxiliary_sizes: Mapping[str, int], x: Tensor) -> bool:
    """Whether all that has to come beside Δ is there, and nothing else."""
    return extra.keys() == auxiliary_sizes.keys() and all(
        _alike(vector, x) and vector.shape == (auxiliary_sizes[name],) for name, vector in extra.items()
    )
