"""Validation of updates before the algorithm sees them, in simulation and deployment alike.

A rejected update changes nothing: neither x, nor an update cache, nor a server extension. Its client becomes idle as if
the update had been lost. A payload that cannot be decoded (a deployment's `WireError`) counts as `unreadable`.
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

MAX_STEPS, MAX_EXAMPLES = 10**9, 10**12  # no honest client reports more


@dataclass(kw_only=True, frozen=True)
class UpdateValidator(Options):
    """Bounds that an update must meet to be accepted.

    Some updates are always rejected: replies to no pending job or to another job; Δ or auxiliary vectors of the wrong
    type, size or name; values that are not finite; no local steps, or more than requested.
    """

    max_norm: Positive | None = None
    """Largest ‖Δ‖."""
    beyond_norm: Literal["refuse", "clip"] = "refuse"
    """How to treat a longer Δ; `clip` scales it to `max_norm`."""
    max_staleness: NonNegativeInt | None = None
    """Largest staleness in versions."""
    beyond_staleness: Literal["refuse", "shrink"] = "refuse"
    """How to treat a staler update; `shrink` multiplies Δ by (1 + max_staleness)/(1 + τ)."""

    @property
    def can_reject(self) -> bool:
        """Whether a well-formed update can be rejected."""
        bounds = ((self.max_norm, self.beyond_norm), (self.max_staleness, self.beyond_staleness))
        return any(bound is not None and beyond == "refuse" for bound, beyond in bounds)

    def examine(
        self, job: Job, update: Update, tau: int, like: Tensor, auxiliary_sizes: Mapping[str, int], untrusted: bool
    ) -> Update | Reason:
        """Return the update as the algorithm may use it, or the reason for rejecting it.

        Args:
            job: The job that the update answers.
            update: The update.
            tau: Its staleness.
            like: The server's x, whose shape, type and device Δ must have.
            auxiliary_sizes: Sizes of the auxiliary vectors that must come with Δ.
            untrusted: Whether to check that all values are finite.
        """
        if update.job != job.id or update.client != job.client or update.version != job.version:
            return "wrong-job"
        if not _alike(update.delta, like):
            return "wrong-type"
        if update.delta.shape != like.shape:
            return "wrong-size"
        if (update.extra or auxiliary_sizes) and not _complete(update.extra, auxiliary_sizes, like):
            return "wrong-extra"
        if not 0 < update.steps <= (job.steps or MAX_STEPS) or not 0 < update.examples <= MAX_EXAMPLES:
            return "invalid-counts"
        if untrusted and not all(bool(torch.isfinite(v).all()) for v in (update.delta, *update.extra.values())):
            return "not-finite"
        if self.max_staleness is None and self.max_norm is None:
            return update
        return self._within(update, tau)

    def _within(self, update: Update, tau: int) -> Update | Reason:
        """Apply the optional bounds."""
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
    """Return whether exactly the expected auxiliary vectors are present."""
    return extra.keys() == auxiliary_sizes.keys() and all(
        _alike(vector, x) and vector.shape == (auxiliary_sizes[name],) for name, vector in extra.items()
    )
