"""Local steps, on a CPU parameter by parameter where the rule allows it.

A gradient that is put together from the parameters' own only to be read once costs two passes over memory, and a step
costs three.  Where a layer knows its weight's gradient as a product, and the step is plain, without weight decay, that
product is added to the weight as it is computed, and there is no gradient at all.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from offbeat.client.rules import ClientRule, Number, State
from offbeat.vectors import Layout, empty_hugepages_like


class GradientFactors:
    """Gradients of stacked weights as the factors of a product, for whoever will multiply them."""

    def __init__(self) -> None:
        self.wanted: dict[int, int] = {}  # which weight lies at an address
        self.found: list[tuple[int, Tensor, Tensor]] = []  # which weight, slopes (n, B, out), rows (n, B, in)

    def want(self, leaves: Sequence[Tensor]) -> None:
        """Those of these, from now on."""
        self.wanted, self.found = {leaf.data_ptr(): i for i, leaf in enumerate(leaves)}, []

    def take(self, weight: Tensor, grad_output: Tensor, rows: Tensor) -> bool:
        """False where this weight's gradient, slopesᵀ·rows, is to be computed as usual."""
        place = self.wanted.get(weight.data_ptr())
        if place is not None:
            self.found.append((place, grad_output, rows))
        return place is not None

    def given(self) -> list[tuple[int, Tensor, Tensor]]:
        """What was found; no more is wanted."""
        found, self.found, self.wanted = self.found, [], {}
        return found


class LocalStepper:
    """From x (…, d) along gradients: one of the whole vector, or one for each parameter of the layout."""

    def __init__(
        self, rule: ClientRule, layout: Layout, x: Tensor, state: State, factors: GradientFactors | None = None
    ) -> None:
        self.rule, self.layout, self.x = rule, layout, x
        self.apart = rule.elementwise and x.device.type == "cpu"  # a GPU has more to do with many short steps
        widths = layout.sizes if self.apart else [layout.dim]
        self.xs = torch.split(x, widths, dim=-1)
        self.ys = list(self.xs)
        cut = {name: torch.split(value, widths, dim=-1) for name, value in state.items()}
        self.states: list[State] = [{name: parts[i] for name, parts in cut.items()} for i in range(len(widths))]
        self.bare = rule.plain and not rule.weight_decay  # no gradient, no step
        self.factors = factors if self.apart and self.bare else None

    def leaves(self, rows: int | None = None) -> list[Tensor]:
        """What to differentiate by, for the first rows."""
        return [y[:rows].detach().requires_grad_() for y in self.ys]

    def parameters(self, leaves: Sequence[Tensor]) -> dict[str, Tensor]:
        """The leaves as the model wants them."""
        if not self.apart:
            return self.layout.unflatten(leaves[0])
        if self.factors is not None:
            self.factors.want(leaves)
        named = zip(self.layout.names, self.layout.shapes, leaves, strict=True)
        return {name: leaf.view((*leaf.shape[:-1], *shape)) for name, shape, leaf in named}

    @torch.no_grad()
    def step(self, loss: Tensor, leaves: Sequence[Tensor], lr: Number) -> None:
        """One step of the rows that the leaves have."""
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
        if self.factors is not None:
            for product in self.factors.given():
                self._add_product(*product, lr)
        for i, g in enumerate(_owned(gradients)):
            if g is None:
                if self.bare:
                    continue
                g = torch.zeros_like(leaves[i])
            rows = None if g.ndim == 1 else len(g)
            before: State = {name: value[:rows] for name, value in self.states[i].items()}
            y, after = self.rule.step(self.ys[i][:rows], g, self.xs[i][:rows], lr, before)
            self.ys[i] = _onto(self.ys[i], y)
            self.states[i] = {name: _onto(self.states[i][name], value) for name, value in after.items()}

    def _add_product(self, i: int, grad_output: Tensor, rows: Tensor, lr: Number) -> None:
        """y_i − lr·slopesᵀ·rows, in y's place if that is not x's."""
        y = self.ys[i][: len(rows)].view(len(rows), grad_output.shape[2], rows.shape[2])
        down = grad_output.mul(-lr[..., None] if isinstance(lr, Tensor) else -lr).transpose(1, 2)
        if self.ys[i] is self.xs[i]:
            self.ys[i] = _onto(self.ys[i], torch.baddbmm(y, down, rows).flatten(1))
        else:
            y.baddbmm_(down, rows)

    def delta(self) -> Tensor:
        """y − x in one vector."""
        out = empty_hugepages_like(self.x)
        widths = [y.shape[-1] for y in self.ys]
        for y, x, part in zip(self.ys, self.xs, torch.split(out, widths, dim=-1), strict=True):
            torch.sub(y, x, out=part)
        return out

    def end(self) -> tuple[Tensor, State]:
        """y and the state, whole again."""
        state = {name: torch.cat([part[name] for part in self.states], dim=-1) for name in self.states[0]}
        return torch.cat(self.ys, dim=-1), state


def _owned(gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The rule may write into them: parameters that are only added up have one and the same."""
    seen: set[int] = set()
    own: list[Tensor | None] = []
    for g in gradients:
        place = g.untyped_storage().data_ptr() if g is not None else 0
        own.append(g.clone() if g is not None and (place in seen or not g.is_contiguous()) else g)
        seen.add(place)
    return own


def _onto(old: Tensor, new: Tensor) -> Tensor:
    """The old rows with the new ones in place of the first."""
    return new if len(new) == len(old) else torch.cat([new, old[len(new) :]])
