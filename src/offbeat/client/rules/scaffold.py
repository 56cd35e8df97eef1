"""SCAFFOLD's client.

Karimireddy et al., *SCAFFOLD: Stochastic Controlled Averaging for Federated Learning*, ICML 2020, Algorithm 1 with
option II.

    c     the server's control variate, sent with x
    c_i   the client's control variate, stored between its jobs, initially zero
    y     ← y − η_l (g − c_i + c)
    c_i⁺  = c_i − c + (x − y_K)/(K η_l);  the client sends c_i⁺ − c_i, the server adds 1/N of it to c

With SGD, c_i⁺ is the mean of the K local gradients. With another optimizer y_K does not tell that mean, so the
gradients are summed instead: c_i⁺ = (1/K) Σ g, the same quantity.

The algorithm decides how x is updated, so SCAFFOLD works under synchronous and asynchronous servers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from offbeat.client.rules.base import Number, State
from offbeat.client.rules.correction import Correction
from offbeat.messages import Update
from offbeat.server.extensions import ServerExtension


@dataclass(kw_only=True, frozen=True)
class Scaffold(Correction):
    """Descent corrected by control variates against client drift."""

    name: ClassVar[str] = "scaffold"
    client_state: ClassVar[tuple[str, ...]] = ("c_i",)
    sends: ClassVar[tuple[str, ...]] = ("change",)

    def begin(self, x: Tensor, extra: Mapping[str, Tensor], client_state: State) -> State:
        """Return c, c_i and the optimizer's moments; where y does not tell the mean gradient, also its sum so far."""
        total = {} if self.optimizer.plain else {"sum": torch.zeros_like(x)}
        return self.optimizer.moments(x) | total | {"c": extra["c"].expand_as(x), "c_i": client_state["c_i"]}

    def corrected(self, g: Tensor, y: Tensor, x: Tensor, state: State) -> Tensor:
        """Return g − c_i + c."""
        return g - state["c_i"] + state["c"]

    def step(self, y: Tensor, g: Tensor, x: Tensor, lr: Number, state: State) -> tuple[Tensor, State]:
        """Return the next y and the new state."""
        if "sum" in state:
            decayed = g.add(y, alpha=0.0 if self.optimizer.decoupled else self.weight_decay)
            state = state | {"sum": state["sum"] + decayed}
        return super().step(y, g, x, lr, state)

    def finish(self, y: Tensor, x: Tensor, lr: Number, steps: Number, state: State) -> tuple[State, State]:
        """Return the change of c_i, which is sent, and the new c_i."""
        change = state["sum"] / steps - state["c_i"] if "sum" in state else _change(y, x, steps * lr, state["c"])
        return {"change": change}, {"c_i": state["c_i"] + change}

    def server(self) -> ServerExtension:
        """Return the server's control variate."""
        return ControlVariate()


def _change(y: Tensor, x: Tensor, scale: Number, c: Tensor) -> Tensor:
    """Return (x − y)/scale − c, or 0 where the scale K η_l is zero, at the end of a schedule."""
    if isinstance(scale, Tensor):
        return torch.where(scale > 0, (x - y) / scale - c, torch.zeros_like(x))
    return (x - y) / scale - c if scale else torch.zeros_like(x)


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
