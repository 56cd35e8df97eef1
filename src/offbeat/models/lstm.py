"""The character model of the Shakespeare experiments, written so that many clients' copies can be run as one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from offbeat.errors import ConfigError
from offbeat.models.base import Model
from offbeat.options import Bound, Count


@dataclass(kw_only=True, frozen=True)
class LSTM(Model):
    """An embedding, stacked LSTM layers, and a linear layer on the last state.

    The defaults are LEAF's (Caldas et al., 2018): 819,920 parameters for 80 characters.  Anarchic FL has hidden = 100;
    AFGA has embedding = 80 and dropout = 0.05.
    """

    embedding: Count = 8
    """Numbers that stand for a token."""
    hidden: Count = 256
    """Size of the state."""
    layers: Count = 2
    """LSTM layers."""
    dropout: Annotated[float, Bound(low=0, high=1, open="high")] = 0.0
    """Part of the last state that is left out in training."""

    def build(self, shape: tuple[int, ...], classes: int, vocabulary: int | None = None) -> nn.Module:
        if vocabulary is None or len(shape) != 1:
            kind = "numbers" if vocabulary is None else "tokens"
            raise ConfigError(
                f"lstm needs sequences of tokens, not {kind} of shape {list(shape)}; "
                "from_arrays(…, vocabulary=…) makes integers tokens",
                key="name",
            )
        widths = (self.embedding, *[self.hidden] * (self.layers - 1))
        return nn.Sequential(
            nn.Embedding(vocabulary, self.embedding),
            *(Layer(width, self.hidden) for width in widths),
            Last(),
            *([nn.Dropout(self.dropout)] if self.dropout else []),
            nn.Linear(self.hidden, classes),
        )


class Layer(nn.Module):
    """One layer of `torch.nn.LSTM`, with its mathematics, its order of gates (i, f, g, o) and its initial weights.

    nn.LSTM itself has neither a rule for `torch.vmap` nor a stacked form; two linear layers and elementwise operations
    have both.  What the inputs contribute is calculated for all times at once; only h → h has to wait.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.size = hidden
        self.input = nn.Linear(width, 4 * hidden)
        self.hidden = nn.Linear(hidden, 4 * hidden)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(hidden**-0.5), hidden**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, width) → the states (batch, time, hidden)."""
        from_input = self.input(x)
        h = c = torch.zeros_like(from_input[:, 0, : self.size])
        states = []
        for now in from_input.unbind(dim=1):
            i, f, g, o = (now + self.hidden(h)).chunk(4, dim=-1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            states.append(h)
        return torch.stack(states, dim=1)


class Last(nn.Module):
    """The state at the last time."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, -1]
