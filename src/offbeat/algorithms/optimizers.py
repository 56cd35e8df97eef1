"""What the server does with a direction v: a plain step, momentum, or an adaptive rate for every coordinate.

Any direction rule takes any of these: `algorithm = { name = "ca2fl", optimizer = "amsgrad" }`.

    v     the direction, used as a pseudo-gradient that points downhill
    m, s  first and second moment;  ŝ the largest s so far (AMSGrad)
    η     the server rate

Reddi et al., *Adaptive Federated Optimization*, ICLR 2021 (FedAdam, FedYogi), put ε outside the root; Wang, Lin and
Chen, *Communication-Efficient Adaptive Federated Learning*, ICML 2022 (FedAMSGrad), and the AFGA paper put it inside.
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
    """Rule that turns the pseudo-gradient v into the next model."""

    def start(self, x: Tensor) -> None:
        """Forget everything."""

    @abstractmethod
    def step(self, x: Tensor, v: Tensor, eta: float) -> Tensor:
        """The next x, a new tensor."""


@dataclass(kw_only=True)
class Plain(ServerOptimizer):
    """x ← x + η·v."""

    def step(self, x: Tensor, v: Tensor, eta: float) -> Tensor:
        return add_scaled(x, v, eta)


@dataclass(kw_only=True)
class Momentum(ServerOptimizer):
    """m ← β·m + v;  x ← x + η·m.  Hsu, Qi and Brown 2019 (FedAvgM)."""

    beta: Decay = 0.9
    """β."""

    state_names: ClassVar[tuple[str, ...]] = ("m",)

    def start(self, x: Tensor) -> None:
        self.m = torch.zeros_like(x)

    def step(self, x: Tensor, v: Tensor, eta: float) -> Tensor:
        self.m = v.add(self.m, alpha=self.beta)
        return add_scaled(x, self.m, eta)


@dataclass(kw_only=True)
class _Adaptive(ServerOptimizer):
    """m ← β₁·m + (1 − β₁)·v;  s as the subclass says;  x ← x + η·m/√(s + ε)."""

    beta1: Decay = 0.9
    """β₁, of the first moment."""
    beta2: Decay = 0.99
    """β₂, of the second moment."""
    epsilon: Positive = 1e-8
    """ε."""
    epsilon_place: Literal["inside", "outside"] = "inside"
    """√(s + ε) or √s + ε."""
    bias_correction: bool = False
    """Divide m and s by 1 − βᵗ, as Kingma and Ba do; the federated papers do not."""

    state_names: ClassVar[tuple[str, ...]] = ("m", "s", "t")

    def start(self, x: Tensor) -> None:
        self.m, self.s, self.t = torch.zeros_like(x), torch.zeros_like(x), 0

    @abstractmethod
    def second(self, v: Tensor) -> Tensor:
        """Update s; returns what the rate is divided by, before the root."""

    def step(self, x: Tensor, v: Tensor, eta: float) -> Tensor:
        self.t += 1
        self.m = self.m * self.beta1 + v * (1 - self.beta1)
        m, s = self.m, self.second(v)
        if self.bias_correction:
            m, s = m / (1 - self.beta1**self.t), s / (1 - self.beta2**self.t)
        root = (s + self.epsilon).sqrt() if self.epsilon_place == "inside" else s.sqrt() + self.epsilon
        return x.addcdiv(m, root, value=eta)


@dataclass(kw_only=True)
class Adam(_Adaptive):
    """s ← β₂·s + (1 − β₂)·v²."""

    def second(self, v: Tensor) -> Tensor:
        self.s = self.s * self.beta2 + v.square() * (1 - self.beta2)
        return self.s


@dataclass(kw_only=True)
class Yogi(_Adaptive):
    """s ← s − (1 − β₂)·v²·sign(s − v²)."""

    def second(self, v: Tensor) -> Tensor:
        square = v.square()
        self.s = self.s - (1 - self.beta2) * square * (self.s - square).sign()
        return self.s


@dataclass(kw_only=True)
class AMSGrad(_Adaptive):
    """s as Adam;  ŝ ← max(ŝ, s) is used in its place."""

    state_names: ClassVar[tuple[str, ...]] = ("m", "s", "s_max", "t")

    def start(self, x: Tensor) -> None:
        super().start(x)
        self.s_max = torch.zeros_like(x)

    def second(self, v: Tensor) -> Tensor:
        self.s = self.s * self.beta2 + v.square() * (1 - self.beta2)
        self.s_max = torch.maximum(self.s_max, self.s)
        return self.s_max


OPTIMIZERS: dict[str, type[ServerOptimizer]] = {
    "plain": Plain,
    "momentum": Momentum,
    "adam": Adam,
    "yogi": Yogi,
    "amsgrad": AMSGrad,
}
