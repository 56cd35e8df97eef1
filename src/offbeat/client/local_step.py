"""Local steps, on a CPU parameter by parameter where the rule allows it.

Concatenating the gradients of all parameters into one vector, which is read only once, costs two passes over memory; a
step costs three. Where a layer's weight gradient is a product and the step is plain SGD without weight decay, the
product is added to the weight while it is computed, and no gradient is stored at all.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from offbeat.client.rules import ClientRule, Number, State
from offbeat.vectors import Layout, empty_hugepages_like


class GradientFactors:
    """Gradients of stacked weights as factors of a product that has not been computed yet."""

    def __init__(self) -> None:
        self.wanted: dict[int, int] = {}  # index of the weight at each address
        self.found: list[tuple[int, Tensor, Tensor]] = []  # weight, grad_output (n, B, out), rows (n, B, in)

    def want(self, leaves: Sequence[Tensor]) -> None:
        """Collect factors for the given weights from now on."""
        self.wanted, self.found = {leaf.data_ptr(): i for i, leaf in enumerate(leaves)}, []

    def take(self, weight: Tensor, grad_output: Tensor, rows: Tensor) -> bool:
        """Store the factors of a gradient grad_outputᵀ·rows; return False if it must be computed as usual."""
        place = self.wanted.get(weight.data_ptr())
        if place is not None:
            self.found.append((place, grad_output, rows))
        return place is not None

    def given(self) -> list[tuple[int, Tensor, Tensor]]:
        """Return the collected factors and stop collecting."""
        found, self.found, self.wanted = self.found, [], {}
        return found


class LocalStepper:
    """Performs the local steps of one job (d,) or of a stack of jobs (n, d).

    A step is `leaves`, then `backward` for each batch of the step, then `advance`.

    Args:
        rule: The local rule.
        layout: Layout of the model's vector.
        x: The model that the clients received.
        state: The state with which the jobs start.
        factors: Collects factored gradients of a stacked model, if it has any.
    """

    def __init__(
        self, rule: ClientRule, layout: Layout, x: Tensor, state: State, factors: GradientFactors | None = None
    ) -> None:
        self.rule, self.layout, self.x = rule, layout, x
        self.apart = rule.elementwise and x.device.type == "cpu"  # on a GPU many short operations are slower
        widths = layout.sizes if self.apart else [layout.dim]
        self.xs = torch.split(x, widths, dim=-1)
        self.ys = list(self.xs)
        self.whole = {name for name, value in state.items() if value.shape[-1] != layout.dim}  # such as counters
        cut = {name: torch.split(value, widths, dim=-1) for name, value in state.items() if name not in self.whole}
        shared = {name: state[name] for name in self.whole}
        self.states: list[State] = [
            shared | {name: parts[i] for name, parts in cut.items()} for i in range(len(widths))
        ]
        self.bare = rule.plain and not rule.weight_decay  # a missing gradient means no change
        self.factors = factors if self.apart and self.bare and rule.clip_norm is None else None
        self._leaves: list[Tensor] = []
        self._gradients: list[Tensor | None] = []
        self._products: list[tuple[int, Tensor, Tensor]] = []

    def leaves(self, rows: int | None = None) -> list[Tensor]:
        """Begin a step: return the tensors to differentiate with respect to, for the first rows."""
        self._leaves = [y[:rows].detach().requires_grad_() for y in self.ys]
        self._gradients, self._products = [], []
        return self._leaves

    def parameters(self) -> dict[str, Tensor]:
        """Return the leaves as named parameters of the model."""
        leaves = self._leaves
        if not self.apart:
            return self.layout.unflatten(leaves[0])
        if self.factors is not None:
            self.factors.want(leaves)
        named = zip(self.layout.names, self.layout.shapes, leaves, strict=True)
        return {name: leaf.view((*leaf.shape[:-1], *shape)) for name, shape, leaf in named}

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of a loss; the losses of a step add up to its mean loss."""
        gradients = torch.autograd.grad(loss, self._leaves, allow_unused=True)
        if self.factors is not None:
            self._products += self.factors.given()
        with torch.no_grad():
            if not self._gradients:
                self._gradients = _owned(gradients)
            else:
                self._gradients = [added(a, b) for a, b in zip(self._gradients, gradients, strict=True)]

    @torch.no_grad()
    def advance(self, lr: Number) -> None:
        """Perform the step for the rows that the leaves have."""
        for product in self._products:
            self._add_product(*product, lr)
        gradients = clipped(self._gradients, self.rule.clip_norm) if self.rule.clip_norm else self._gradients
        for i, g in enumerate(gradients):
            if g is None:
                if self.bare:
                    continue
                g = torch.zeros_like(self._leaves[i])
            rows = None if g.ndim == 1 else len(g)
            before: State = {name: value[:rows] for name, value in self.states[i].items()}
            y, after = self.rule.step(self.ys[i][:rows], g, self.xs[i][:rows], lr, before)
            self.ys[i] = _onto(self.ys[i], y)
            self.states[i] = {name: _onto(self.states[i][name], value) for name, value in after.items()}

    def _add_product(self, i: int, grad_output: Tensor, rows: Tensor, lr: Number) -> None:
        """Subtract lr·grad_outputᵀ·rows from y_i, in place unless y_i still shares its memory with x."""
        y = self.ys[i][: len(rows)].view(len(rows), grad_output.shape[2], rows.shape[2])
        down = grad_output.mul(-lr[..., None] if isinstance(lr, Tensor) else -lr).transpose(1, 2)
        if self.ys[i] is self.xs[i]:
            self.ys[i] = _onto(self.ys[i], torch.baddbmm(y, down, rows).flatten(1))
        else:
            y.baddbmm_(down, rows)

    def delta(self) -> Tensor:
        """Return y − x as one vector."""
        out = empty_hugepages_like(self.x)
        widths = [y.shape[-1] for y in self.ys]
        for y, x, part in zip(self.ys, self.xs, torch.split(out, widths, dim=-1), strict=True):
            torch.sub(y, x, out=part)
        return out

    def end(self) -> tuple[Tensor, State]:
        """Return y and the state as whole vectors."""
        state = {
            name: value if name in self.whole else torch.cat([part[name] for part in self.states], dim=-1)
            for name, value in self.states[0].items()
        }
        return torch.cat(self.ys, dim=-1), state


def clipped(gradients: Sequence[Tensor | None], norm: float) -> list[Tensor | None]:
    """Return gradients of one model, or of a stack of models (n, …), scaled down to a norm, as torch clips them."""
    known = [g for g in gradients if g is not None]
    if not known:
        return list(gradients)
    start = min(1, known[0].ndim - 1)
    squares = torch.stack([g.square().flatten(start).sum(dim=-1) for g in known]).sum(dim=0)
    factor = (norm / (squares.sqrt() + 1e-6)).clamp(max=1.0)
    return [g if g is None else g * factor.view(factor.shape + (1,) * (g.ndim - factor.ndim)) for g in gradients]


def added(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """Return a + b as a new tensor, or the one that is not None."""
    if a is None or b is None:
        return a if b is None else b
    return a + b


def _owned(gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return gradients that the rule may overwrite; parameters that are only added share one gradient."""
    seen: set[int] = set()
    own: list[Tensor | None] = []
    for g in gradients:
        place = g.untyped_storage().data_ptr() if g is not None else 0
        own.append(g.clone() if g is not None and (place in seen or not g.is_contiguous()) else g)
        seen.add(place)
    return own


def _onto(old: Tensor, new: Tensor) -> Tensor:
    """Return the old rows with the first ones replaced."""
    return new if len(new) == len(old) else torch.cat([new, old[len(new) :]])
