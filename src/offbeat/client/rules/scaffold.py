"""SCAFFOLD's client.  Karimireddy et al., *SCAFFOLD: Stochastic Controlled Averaging for Federated Learning*, ICML
2020, Algorithm 1 with option II.

    c     the server's control variate, sent beside x
    c_i   the client's own, kept between its jobs, zero before the first
    y     ← y − η_l (g − c_i + c)
    c_i⁺  = c_i − c + (x − y_K)/(K η_l);  the client sends c_i⁺ − c_i, the server adds 1/N of it to c

The server's x-update is whatever the algorithm says, so SCAFFOLD works under synchronous and asynchronous servers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from offbeat.client.rules.base import ClientRule, Number, State, descend
from offbeat.messages import Update
from offbeat.server.extensions import ServerExtension


@dataclass(kw_only=True, frozen=True)
class Scaffold(ClientRule):
    name: ClassVar[str] = "scaffold"
    keeps: ClassVar[tuple[str, ...]] = ("c_i",)
    sends: ClassVar[tuple[str, ...]] = ("change",)
    elementwise: ClassVar[bool] = True

    def begin(self, x: Tensor, extra: Mapping[str, Tensor], kept: State) -> State:
        return {"c": extra["c"].expand_as(x), "c_i": kept["c_i"]}

    def step(self, y: Tensor, g: Tensor, x: Tensor, lr: Number, state: State) -> tuple[Tensor, State]:
        if self.weight_decay:
            g = g.add(y, alpha=self.weight_decay)
        return descend(y, g - state["c_i"] + state["c"], lr), state

    def finish(self, y: Tensor, x: Tensor, lr: Number, steps: Number, state: State) -> tuple[State, State]:
        change = (x - y) / (steps * lr) - state["c"]
        return {"change": change}, {"c_i": state["c_i"] + change}

    def server(self) -> ServerExtension:
        return ControlVariate()


class ControlVariate(ServerExtension):
    """c ← c + (1/N) Σ (c_i⁺ − c_i)."""

    def start(self, x: Tensor, clients: int) -> None:
        self.c, self.clients = torch.zeros_like(x), clients

    def extra(self) -> Mapping[str, Tensor]:
        return {"c": self.c}

    def receive(self, update: Update) -> None:
        self.c = self.c.add(update.extra["change"], alpha=1 / self.clients)

    def state_dict(self) -> dict[str, Any]:
        return {"c": self.c}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.c = state["c"]
