"""Attackers at work: what they know, and what they send."""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import Any

from torch import Tensor

from offbeat.engine.work import Work
from offbeat.messages import Job, Update
from offbeat.world import Attack, Forgery, Known


class Forgers:
    """The clients that forge what they send.

    They do so at the moment of its arrival, when all that has come before is known: then neither the order of training
    nor the grouping of jobs matters.  The forged Δ goes through the client's code like any other.
    """

    def __init__(self, attack: Forgery, work: Work) -> None:
        self.attack, self.work = attack, work
        self.first: dict[int, Tensor] = {}
        self.honest: deque[Tensor] = deque(maxlen=attack.overhears())

    @classmethod
    def of(cls, attack: Attack | None, work: Work) -> Forgers | None:
        """None where nobody forges anything."""
        return cls(attack, work) if isinstance(attack, Forgery) and work.forgers else None

    def sent(self, job: Job, update: Update) -> Update:
        """What arrives, of a job's result.  That of an attacker is not coded yet."""
        if job.client not in self.work.forgers:
            self.honest.append(update.delta)
            return update
        if self.attack.replays:
            self.first.setdefault(job.client, update.delta)
        known = Known(job.seed, self.first.get(job.client, update.delta), self.honest)
        return dataclasses.replace(update, delta=self.work.coded(job, self.attack.forge(update.delta, known)))

    def state_dict(self) -> dict[str, Any]:
        return {"first": self.first, "honest": list(self.honest)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.first = state["first"]
        self.honest.extend(state["honest"])
