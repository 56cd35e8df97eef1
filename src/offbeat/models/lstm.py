"""The character model of the Shakespeare experiments, in a form in which many clients' copies run as one."""

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
    """An embedding, stacked LSTM layers, and a linear layer on the last hidden state.

    The defaults are those of LEAF (Caldas et al., 2018): 819,920 parameters for 80 characters. Anarchic FL uses
    hidden = 100; AFGA uses embedding = 80 and dropout = 0.05.
    """

    embedding: PositiveInt = 8
    """Dimension of the token embedding."""
    hidden: PositiveInt = 256
    """Size of the hidden state."""
    layers: PositiveInt = 2
    """Number of LSTM layers."""
    dropout: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    """Dropout rate of the last hidden state."""

    def build(self, shape: tuple[int, ...], classes: int, vocabulary: int | None = None) -> nn.Module:
        """Return the LSTM network."""
        if vocabulary is None or len(shape) != 1:
            kind = "numbers" if vocabulary is None else "tokens"
            raise ConfigError(
                f"lstm needs sequences of tokens, not {kind} of shape {list(shape)}; "
                "pass vocabulary to from_arrays to use integers as tokens",
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
    """One layer of `torch.nn.LSTM`, with the same equations, order of gates (i, f, g, o) and initialization.

    Unlike `nn.LSTM`, two linear layers and `recurrence` also run for stacked models. The contribution of the inputs is
    computed for all time steps at once; only h → h is sequential.

    Args:
        width: Size of an input.
        hidden: Size of the hidden state.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.input = nn.Linear(width, 4 * hidden)
        self.hidden = nn.Linear(hidden, 4 * hidden)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(hidden**-0.5), hidden**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Return the hidden states (batch, time, hidden) for inputs (batch, time, width)."""
        weight, bias = self.hidden.weight, self.hidden.bias  # (4h, h), or (n, 4h, h) for n stacked models
        from_input = self.input(x)
        gates = from_input.view(*weight.shape[:-2], -1, *from_input.shape[1:]) + bias[..., None, None, :]
        states: Tensor = recurrence(gates.movedim(-2, 0).contiguous(), weight.to(gates.dtype))[0]
        return states.movedim(0, -2).reshape(*x.shape[:2], -1)


# The gradient is hand-written: the gradient of the weight is then one matrix product over all time steps instead of one
# per step, and a step costs two kernels on a GPU. The recurrence is a custom operator, because compiling the unrolled
# loop would take minutes.


@torch.library.custom_op("offbeat::recurrence", mutates_args=())
def recurrence(from_input: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Run the LSTM over all time steps.

    Args:
        from_input: Contribution of the inputs to the gates (time, …, 4h).
        weight: Weight of h_t−1 (…, 4h, h).

    Returns:
        The hidden states h, the gates after their activations and the cell states c, all (time, …).
    """
    h = c = torch.zeros_like(from_input[0, ..., : weight.shape[-1]])
    back = weight.mT
    states: list[Tensor] = []
    gates: list[Tensor] = []
    cells: list[Tensor] = []
    with torch.autocast(from_input.device.type, enabled=False):  # compute in the dtype of the inputs
        for z in from_input:
            h, c, active = _cell(z, h @ back, c)
            states.append(h)
            gates.append(active)
            cells.append(c)
    return torch.stack(states), torch.stack(gates), torch.stack(cells)


@torch.library.custom_op("offbeat::recurrence_back", mutates_args=())
def recurrence_back(
    by_states: Tensor, weight: Tensor, states: Tensor, gates: Tensor, cells: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients with respect to the input contributions and the weight."""
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
    """Return h, c and the gates after their activations."""
    if z.is_cuda:
        fused = torch.ops.aten._thnn_fused_lstm_cell(*(v.flatten(0, -2) for v in (z, from_h, c)))
        h, c, active = (flat.view(*z.shape[:-1], -1) for flat in fused)
        return h, c, active
    i, f, g, o = (z + from_h).chunk(4, dim=-1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    c = f * c + i * g
    return o * c.tanh(), c, torch.cat([i, f, g, o], dim=-1)


def _cell_back(by_h: Tensor, by_c: Tensor, before: Tensor, c: Tensor, gates: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients with respect to the gate inputs and the previous cell state."""
    if c.is_cuda:
        flat = (v.flatten(0, -2) for v in (by_h, by_c, before, c, gates))
        slope, by_c, _ = torch.ops.aten._thnn_fused_lstm_cell_backward_impl(*flat, False)
        return slope.view_as(gates), by_c.view_as(c)
    i, f, g, o = gates.chunk(4, dim=-1)
    tanh_c = c.tanh()
    by_c = by_c + by_h * o * (1 - tanh_c * tanh_c)
    into = by_c * g * i * (1 - i), by_c * before * f * (1 - f), by_c * i * (1 - g * g), by_h * tanh_c * o * (1 - o)
    return torch.cat(into, dim=-1), by_c * f


class Last(nn.Module):
    """Select the hidden state of the last time step."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x[:, -1]."""
        return x[:, -1]
