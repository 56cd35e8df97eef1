"""Local steps, on a CPU parameter by parameter where the rule allows it.

A gradient that is put together from the parameters' own only to be read once costs two passes over memory, and a step
costs three.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from offbeat.clients import ClientRule, Number, State
from offbeat.vector import Layout


class Walk:
    """From x (…, d) along gradients: one of the whole vector, or one for each parameter of the layout."""

    def __init__(self, rule: ClientRule, layout: Layout, x: Tensor, state: State) -> None:
        self.rule, self.layout = rule, layout
        self.apart = rule.elementwise and x.device.type == "cpu"  # a GPU has more to do with many short steps
        widths = layout.sizes if self.apart else [layout.dim]
        self.xs = torch.split(x, widths, dim=-1)
        self.ys = list(self.xs)
        cut = {name: torch.split(value, widths, dim=-1) for name, value in state.items()}
        self.states: list[State] = [{name: parts[i] for name, parts in cut.items()} for i in range(len(widths))]

    def leaves(self, rows: int | None = None) -> list[Tensor]:
        """What to differentiate by, for the first rows."""
        return [y[:rows].detach().requires_grad_() for y in self.ys]

    def parameters(self, leaves: Sequence[Tensor]) -> dict[str, Tensor]:
        """The leaves as the model wants them."""
        if not self.apart:
            return self.layout.unflatten(leaves[0])
        named = zip(self.layout.names, self.layout.shapes, leaves, strict=True)
        return {name: leaf.view(*leaf.shape[:-1], *shape) for name, shape, leaf in named}

    def step(self, loss: Tensor, leaves: Sequence[Tensor], lr: Number) -> None:
        """One step of the rows that the leaves have."""
        gradients = torch.autograd.grad(loss, leaves, materialize_grads=True)
        for i, g in enumerate(_owned(gradients)):
            rows = None if g.ndim == 1 else len(g)
            before: State = {name: value[:rows] for name, value in self.states[i].items()}
            y, after = self.rule.step(self.ys[i][:rows], g, self.xs[i][:rows], lr, before)
            self.ys[i] = _onto(self.ys[i], y)
            self.states[i] = {name: _onto(self.states[i][name], value) for name, value in after.items()}

    def end(self) -> tuple[Tensor, State]:
        """y and the state, whole again."""
        state = {name: torch.cat([part[name] for part in self.states], dim=-1) for name in self.states[0]}
        return torch.cat(self.ys, dim=-1), state


def _owned(gradients: Sequence[Tensor]) -> list[Tensor]:
    """The rule may write into them: parameters that are only added up have one and the same."""
    seen: set[int] = set()
    own = []
    for g in gradients:
        place = g.untyped_storage().data_ptr()
        own.append(g.clone() if place in seen or not g.is_contiguous() else g)
        seen.add(place)
    return own


def _onto(old: Tensor, new: Tensor) -> Tensor:
    """The old rows with the new ones in place of the first."""
    return new if len(new) == len(old) else torch.cat([new, old[len(new) :]])
