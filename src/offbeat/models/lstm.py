"""The character model of the Shakespeare experiments, written so that many clients' copies can be run as one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from offbeat.errors import ConfigError
from offbeat.models.base import Model
from offbeat.options import Interval, PositiveInt


@dataclass(kw_only=True, frozen=True)
class LSTM(Model):
    """An embedding, stacked LSTM layers, and a linear layer on the last state.

    The defaults are LEAF's (Caldas et al., 2018): 819,920 parameters for 80 characters.  Anarchic FL has hidden = 100;
    AFGA has embedding = 80 and dropout = 0.05.
    """

    embedding: PositiveInt = 8
    """Numbers that stand for a token."""
    hidden: PositiveInt = 256
    """Size of the state."""
    layers: PositiveInt = 2
    """LSTM layers."""
    dropout: Annotated[float, Interval(ge=0, lt=1)] = 0.0
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

    nn.LSTM itself has no stacked form; two linear layers and `recurrence` have one.
    What the inputs contribute is calculated for all times at once; only h → h has to wait.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.input = nn.Linear(width, 4 * hidden)
        self.hidden = nn.Linear(hidden, 4 * hidden)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(hidden**-0.5), hidden**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, width) → the states (batch, time, hidden)."""
        weight, bias = self.hidden.weight, self.hidden.bias  # (4h, h), or (n, 4h, h) where n models are stacked
        from_input = self.input(x)
        gates = from_input.view(*weight.shape[:-2], -1, *from_input.shape[1:]) + bias[..., None, None, :]
        states: Tensor = recurrence(gates.movedim(-2, 0).contiguous(), weight.to(gates.dtype))[0]
        return states.movedim(0, -2).reshape(*x.shape[:2], -1)


# By hand, since the gradient by the weight is one product over all times instead of one at each, and a time costs two
# kernels on a GPU; and as operations of their own, since a compiler would take minutes for all the times.


@torch.library.custom_op("offbeat::recurrence", mutates_args=())
def recurrence(from_input: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """From what the inputs say (time, …, 4h) and the weight of h_t−1 (…, 4h, h): the states h, the gates after their
    activations and the cells c, all (time, …)."""
    h = c = torch.zeros_like(from_input[0, ..., : weight.shape[-1]])
    back = weight.mT
    states: list[Tensor] = []
    gates: list[Tensor] = []
    cells: list[Tensor] = []
    with torch.autocast(from_input.device.type, enabled=False):  # all in the type of what comes in
        for z in from_input:
            h, c, active = _cell(z, h @ back, c)
            for kept, value in ((states, h), (gates, active), (cells, c)):
                kept.append(value)
    return torch.stack(states), torch.stack(gates), torch.stack(cells)


@torch.library.custom_op("offbeat::recurrence_back", mutates_args=())
def recurrence_back(
    by_states: Tensor, weight: Tensor, states: Tensor, gates: Tensor, cells: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients by what the inputs say and by the weight."""
    before = torch.cat([torch.zeros_like(states[:1]), states[:-1]])
    by_h = by_c = torch.zeros_like(states[0])
    grad_output: list[Tensor] = []
    for t in reversed(range(len(gates))):
        previous = cells[t - 1] if t else torch.zeros_like(cells[0])
        slope, by_c = _cell_back(by_states[t] + by_h, by_c, previous, cells[t], gates[t])
        by_h = slope @ weight
        grad_output.append(slope)
    by_input = torch.stack(grad_output[::-1])
    times = (by_input.movedim(0, -3).flatten(-3, -2), before.movedim(0, -3).flatten(-3, -2))
    return by_input, times[0].mT @ times[1]


@recurrence.register_fake
def _(from_input: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    state = from_input.new_empty((*from_input.shape[:-1], weight.shape[-1]))
    return state, torch.empty_like(from_input), torch.empty_like(state)


@recurrence_back.register_fake
def _(by_states: Tensor, weight: Tensor, states: Tensor, gates: Tensor, cells: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(gates), weight.new_empty(weight.shape)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(inputs[1], *output)
    ctx.mark_non_differentiable(*output[1:])


def _gradients(ctx: Any, by_states: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
    by_input, by_weight = recurrence_back(by_states, *ctx.saved_tensors)
    return by_input, by_weight


recurrence.register_autograd(_gradients, setup_context=_save)


def _cell(z: Tensor, from_h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """h, c and the gates after their activations."""
    if z.is_cuda:
        made = torch.ops.aten._thnn_fused_lstm_cell(*(v.flatten(0, -2) for v in (z, from_h, c)))
        h, c, active = (flat.view(*z.shape[:-1], -1) for flat in made)
        return h, c, active
    i, f, g, o = (z + from_h).chunk(4, dim=-1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    c = f * c + i * g
    return o * c.tanh(), c, torch.cat([i, f, g, o], dim=-1)


def _cell_back(by_h: Tensor, by_c: Tensor, before: Tensor, c: Tensor, gates: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients by what goes into the gates, and by the cell before."""
    if c.is_cuda:
        flat = (v.flatten(0, -2) for v in (by_h, by_c, before, c, gates))
        slope, by_c, _ = torch.ops.aten._thnn_fused_lstm_cell_backward_impl(*flat, False)
        return slope.view_as(gates), by_c.view_as(c)
    i, f, g, o = gates.chunk(4, dim=-1)
    bent = c.tanh()
    by_c = by_c + by_h * o * (1 - bent * bent)
    into = by_c * g * i * (1 - i), by_c * before * f * (1 - f), by_c * i * (1 - g * g), by_h * bent * o * (1 - o)
    return torch.cat(into, dim=-1), by_c * f


class Last(nn.Module):
    """The state at the last time."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, -1]
