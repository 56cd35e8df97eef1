"""SCAFFOLD's client.

Karimireddy et al., *SCAFFOLD: Stochastic Controlled Averaging for Federated Learning*, ICML 2020, Algorithm 1 with
option II.

    c     the server's control variate, sent with x
    c_i   the client's control variate, stored between its jobs, initially zero
    y     ← y − η_l (g − c_i + c)
    c_i⁺  = c_i − c + (x − y_K)/(K η_l);  the client sends c_i⁺ − c_i, the server adds 1/N of it to c

The algorithm decides how x is updated, so SCAFFOLD works under synchronous and asynchronous servers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from offbeat.client.rules.base import ClientRule, Number, State, descend
from offbeat.messages import Update
from offbeat.server.extensions import ServerExtension


@dataclass(kw_only=True, frozen=True)
class Scaffold(ClientRule):
    """SGD corrected by control variates against client drift."""

    name: ClassVar[str] = "scaffold"
    client_state: ClassVar[tuple[str, ...]] = ("c_i",)
    sends: ClassVar[tuple[str, ...]] = ("change",)
    elementwise: ClassVar[bool] = True

    def begin(self, x: Tensor, extra: Mapping[str, Tensor], client_state: State) -> State:
        """Return c and c_i."""
        return {"c": extra["c"].expand_as(x), "c_i": client_state["c_i"]}

    def step(self, y: Tensor, g: Tensor, x: Tensor, lr: Number, state: State) -> tuple[Tensor, State]:
        """Return y − lr·(g − c_i + c)."""
        if self.weight_decay:
            g = g.add(y, alpha=self.weight_decay)
        return descend(y, g - state["c_i"] + state["c"], lr), state

    def finish(self, y: Tensor, x: Tensor, lr: Number, steps: Number, state: State) -> tuple[State, State]:
        """Return the change of c_i, which is sent, and the new c_i."""
        change = (x - y) / (steps * lr) - state["c"]
        return {"change": change}, {"c_i": state["c_i"] + change}

    def server(self) -> ServerExtension:
        """Return the server's control variate."""
        return ControlVariate()


class ControlVariate(ServerExtension):
    """c ← c + (1/N) Σ (c_i⁺ − c_i)."""

    state_names: ClassVar[tuple[str, ...]] = ("c",)

    def start(self, x: Tensor, clients: int) -> None:
        """Set c to zero."""
        self.c, self.clients = torch.zeros_like(x), clients

    def extra(self) -> Mapping[str, Tensor]:
        """Return c."""
        return {"c": self.c}

    def receive(self, update: Update) -> None:
        """Add 1/N of a client's change."""
        self.c = self.c.add(update.extra["change"], alpha=1 / self.clients)
