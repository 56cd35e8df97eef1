"""Server optimizers: a plain step, momentum, or an adaptive rate per coordinate.

Every algorithm can use any of them: `algorithm = { name = "ca2fl", optimizer = "amsgrad" }`.

    v     pseudo-gradient, which points downhill
    m, s  first and second moment
    ŝ     the largest s so far (AMSGrad)
    η     server learning rate

Reddi et al., *Adaptive Federated Optimization*, ICLR 2021 (FedAdam, FedYogi), put ε outside the root. Wang, Lin and
Chen, *Communication-Efficient Adaptive Federated Learning*, ICML 2022 (FedAMSGrad), and the AFGA paper put it inside.
With ε = 1e-8 the denominator is at least 1e-4 inside and 1e-8 outside. Bias correction divides m and s, or ŝ, by
1 − βᵗ, where t counts the steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from offbeat.options import Interval, Options, Positive
from offbeat.stateful import Stateful
from offbeat.vectors import add_scaled

Decay = Annotated[float, Interval(ge=0, lt=1)]


@dataclass(kw_only=True)
class ServerOptimizer(Options, Stateful, ABC):
    """Interface for server optimizers, which turn the pseudo-gradient v into the next model."""

    plain: ClassVar[bool] = False
    """Whether the next model is exactly x + η·v."""

    def start(self, x: Tensor) -> None:
        """Discard all state and start at the model x."""

    @abstractmethod
    def step(self, x: Tensor, v: Tensor, eta: float) -> Tensor:
        """Return the next model as a new tensor.

        Args:
            x: The current model.
            v: The pseudo-gradient.
            eta: The server learning rate.
        """


@dataclass(kw_only=True)
class Plain(ServerOptimizer):
    """x ← x + η·v."""

    plain: ClassVar[bool] = True

    def step(self, x: Tensor, v: Tensor, eta: float) -> Tensor:
        """Return x + η·v."""
        return add_scaled(x, v, eta)


@dataclass(kw_only=True)
class Momentum(ServerOptimizer):
    """m ← β·m + v and x ← x + η·m (Hsu, Qi and Brown 2019, FedAvgM)."""

    beta: Decay = 0.9
    """Momentum β."""

    state_names: ClassVar[tuple[str, ...]] = ("m",)

    def start(self, x: Tensor) -> None:
        """Start with m = 0."""
        self.m = torch.zeros_like(x)

    def step(self, x: Tensor, v: Tensor, eta: float) -> Tensor:
        """Update m and return x + η·m."""
        self.m = v.add(self.m, alpha=self.beta)
        return add_scaled(x, self.m, eta)


@dataclass(kw_only=True)
class _Adaptive(ServerOptimizer):
    """m ← β₁·m + (1 − β₁)·v and x ← x + η·m/√(s + ε), with s from the subclass."""

    beta1: Decay = 0.9
    """Decay β₁ of the first moment."""
    beta2: Decay = 0.99
    """Decay β₂ of the second moment."""
    epsilon: Positive = 1e-8
    """ε, added to the denominator."""
    epsilon_place: Literal["inside", "outside"] = "inside"
    """Position of ε: √(s + ε) or √s + ε."""
    bias_correction: bool = False
    """Whether m and s are divided by 1 − βᵗ, as in Kingma and Ba. The federated papers do not do this."""

    state_names: ClassVar[tuple[str, ...]] = ("m", "s", "t")

    def start(self, x: Tensor) -> None:
        """Start with m = s = 0."""
        self.m, self.s, self.t = torch.zeros_like(x), torch.zeros_like(x), 0

    @abstractmethod
    def second(self, v: Tensor) -> Tensor:
        """Update s and return the second moment to use in this step."""

    def step(self, x: Tensor, v: Tensor, eta: float) -> Tensor:
        """Update both moments and return x + η·m/√(s + ε)."""
        self.t += 1
        self.m = self.m * self.beta1 + v * (1 - self.beta1)
        m, s = self.m, self.second(v)
        if self.bias_correction:
            m, s = m / (1 - self.beta1**self.t), s / (1 - self.beta2**self.t)
        root = (s + self.epsilon).sqrt() if self.epsilon_place == "inside" else s.sqrt() + self.epsilon
        return x.addcdiv(m, root, value=eta)


@dataclass(kw_only=True)
class ServerAdam(_Adaptive):
    """Adam: s ← β₂·s + (1 − β₂)·v²."""

    def second(self, v: Tensor) -> Tensor:
        """Update and return s."""
        self.s = self.s * self.beta2 + v.square() * (1 - self.beta2)
        return self.s


@dataclass(kw_only=True)
class Yogi(_Adaptive):
    """Yogi: s ← s − (1 − β₂)·v²·sign(s − v²)."""

    def second(self, v: Tensor) -> Tensor:
        """Update and return s."""
        square = v.square()
        self.s = self.s - (1 - self.beta2) * square * (self.s - square).sign()
        return self.s


@dataclass(kw_only=True)
class AMSGrad(_Adaptive):
    """AMSGrad: s as in Adam, replaced in the step by ŝ ← max(ŝ, s)."""

    state_names: ClassVar[tuple[str, ...]] = ("m", "s", "s_max", "t")

    def start(self, x: Tensor) -> None:
        """Start with m = s = ŝ = 0."""
        super().start(x)
        self.s_max = torch.zeros_like(x)

    def second(self, v: Tensor) -> Tensor:
        """Update s and return ŝ."""
        self.s = self.s * self.beta2 + v.square() * (1 - self.beta2)
        self.s_max = torch.maximum(self.s_max, self.s)
        return self.s_max


OPTIMIZERS: dict[str, type[ServerOptimizer]] = {
    "plain": Plain,
    "momentum": Momentum,
    "adam": ServerAdam,
    "yogi": Yogi,
    "amsgrad": AMSGrad,
}
