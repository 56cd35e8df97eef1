"""Local steps in place and parameter by parameter, so that no gradient is assembled into one vector."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from offbeat.client.rules import Adam, AdamW, ClientRule, State
from offbeat.executors.gpu import triton_support
from offbeat.vectors import Layout

# Parameters (n, …), their gradients, learning rates (n, 1), rows that still have steps to do (n, 1), the steps of each
# row (n, 1), the rule's state
Step = Callable[[Sequence[Tensor], Sequence[Tensor | None], Tensor, Tensor, Tensor, State], None]


FRESH = ("m", "v")
"""State that an in-place step of Adam does not read before it has written it, so that it need not be set to zero.

After a row's last step it has no meaning.
"""


def in_place(rule: ClientRule, layout: Layout, x: Tensor, most: int) -> Step | None:
    """Return the step of a rule for which there is a kernel, or None.

    Args:
        rule: The client rule.
        layout: Layout of the parameters.
        x: Models (n, d).
        most: Largest number of steps.
    """
    if not triton_support.has_kernels(x):
        return None
    if rule.plain:
        return _descent(rule)
    return _adam(rule, layout, x.device, most) if isinstance(rule, Adam) and type(rule) in (Adam, AdamW) else None


def _descent(rule: ClientRule) -> Step:
    def step(
        leaves: Sequence[Tensor],
        gradients: Sequence[Tensor | None],
        lr: Tensor,
        on: Tensor,
        steps: Tensor,
        state: State,
    ) -> None:
        from offbeat.executors.gpu import kernels

        for leaf, gradient in zip(leaves, gradients, strict=True):
            if gradient is None and rule.weight_decay:
                gradient = torch.zeros_like(leaf)
            if gradient is not None:
                kernels.descend(leaf.detach(), gradient, lr, on, rule.weight_decay)

    return step


def _adam(rule: Adam, layout: Layout, device: torch.device, most: int) -> Step:
    t = torch.arange(1, most + 1, dtype=torch.float64, device=device)
    corrections = torch.stack(rule.corrections(t), dim=1)

    def step(
        leaves: Sequence[Tensor],
        gradients: Sequence[Tensor | None],
        lr: Tensor,
        on: Tensor,
        steps: Tensor,
        state: State,
    ) -> None:
        from offbeat.executors.gpu import kernels

        moments = (layout.unflatten(state[name]).values() for name in ("m", "v"))
        for leaf, gradient, m, v in zip(leaves, gradients, *moments, strict=True):
            g = torch.zeros_like(leaf) if gradient is None else gradient
            kernels.adam(
                leaf.detach(), g, m, v, lr, corrections, on, state["t"], steps, decay=rule.weight_decay,
                decoupled=rule.decoupled, betas=(rule.beta1, rule.beta2), epsilon=rule.epsilon,
            )  # fmt: skip
        state["t"].add_(on)

    return step
