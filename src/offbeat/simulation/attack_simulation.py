"""Simulation of attackers: what they know, and what they send."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Collection
from typing import Any

from torch import Tensor

from offbeat.client.runtime import ClientRuntime
from offbeat.environment import Attack, Forgery, Known
from offbeat.messages import Job, Update


class AttackSimulator:
    """Replaces the updates of attackers by forged ones when they arrive.

    At that moment everything that arrived before is known, so neither the order of training nor the grouping of jobs
    matters. A forged Δ passes through the client's encoder like any other; until then an attacker's Δ stays
    unencoded.

    Args:
        attack: The attack.
        runtime: The clients' runtime, whose encoder is put off for attackers.
        attackers: The clients that attack.
    """

    def __init__(self, attack: Forgery, runtime: ClientRuntime, attackers: Collection[int]) -> None:
        self.attack, self.attackers = attack, attackers
        self.first: dict[int, Tensor] = {}
        self.honest: deque[Tensor] = deque(maxlen=attack.observed_count())
        self._encode = runtime.encoder.to_tensor
        runtime.encode = self._encode_honest

    @classmethod
    def of(cls, attack: Attack | None, runtime: ClientRuntime, attackers: Collection[int]) -> AttackSimulator | None:
        """Return a simulator, or None where nobody forges anything."""
        return cls(attack, runtime, attackers) if isinstance(attack, Forgery) and attackers else None

    def _encode_honest(self, job: Job, delta: Tensor) -> Tensor:
        return delta if job.client in self.attackers else self._encode(job, delta)

    def apply(self, job: Job, update: Update) -> Update:
        """Return what arrives at the server for a job's result."""
        if job.client not in self.attackers:
            self.honest.append(update.delta)
            return update
        if self.attack.replays:
            self.first.setdefault(job.client, update.delta)
        known = Known(job.seed, self.first.get(job.client, update.delta), self.honest)
        return dataclasses.replace(update, delta=self._encode(job, self.attack.forge(update.delta, known)))

    def state_dict(self) -> dict[str, Any]:
        """Return what the attackers remember."""
        return {"first": self.first, "honest": list(self.honest)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.first = state["first"]
        self.honest.extend(state["honest"])
