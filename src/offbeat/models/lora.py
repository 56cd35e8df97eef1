"""Low-rank adaptation (Hu et al., *LoRA: Low-Rank Adaptation of Large Language Models*, ICLR 2022)."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeGuard

from torch import Tensor, nn

from offbeat.errors import ConfigError, nearest
from offbeat.models.base import Model
from offbeat.options import Interval, Positive, PositiveInt


@dataclass(kw_only=True, frozen=True)
class LoRA(Model):
    """Another model with low-rank adapters next to its linear layers; everything else is frozen and not transmitted.

    A linear layer computes W x + (alpha/rank)·B A x with frozen W. A starts random and B at zero, so that the model
    starts as it was.
    """

    model: Model
    """The model to adapt."""
    rank: PositiveInt = 8
    """Rank of the adapters."""
    alpha: Positive = 16.0
    """Scale of the adapters, which is divided by the rank."""
    targets: tuple[str, ...] = ()
    """Names of the linear layers to adapt, or the last parts of their names, such as "qkv"; all if empty."""
    train: tuple[str, ...] = ()
    """Names of further layers that are trained as they are, such as a new output layer."""
    dropout: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    """Dropout rate of the adapters' inputs."""

    def build(self, shape: tuple[int, ...], classes: int, vocabulary: int | None = None) -> nn.Module:
        """Return the model with adapters."""
        try:
            module = self.model.build(shape, classes, vocabulary)
        except ConfigError as error:
            raise error.within("model") from None
        return self.adapt(module)

    def adapt(self, module: nn.Module) -> nn.Module:
        """Return a copy of a module with adapters, which shares the module's frozen tensors.

        Raises:
            ConfigError: A name is that of no layer, or there is no linear layer.
        """
        frozen = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in module.parameters()}
        result = copy.deepcopy(module, dict(frozen))
        layers = dict(result.named_modules())
        trained = {id(layer) for layer in _named(layers, self.train, "train")}
        linear = {name: layer for name, layer in layers.items() if _sizes(layer) and id(layer) not in trained}
        adapted = _named(linear, self.targets, "targets") if self.targets else list(linear.values())
        if not adapted:
            raise ConfigError("the model has no linear layer to adapt", key="model")
        for name in self.train:
            for layer in _named(layers, [name], "train"):
                for parameter in layer.parameters():
                    parameter.data = parameter.detach().clone()
                    parameter.requires_grad_()
        adapters = {id(layer): LowRankLinear(layer, self.rank, self.alpha, self.dropout) for layer in adapted}
        for parent in layers.values():
            _replace(parent, adapters)
        return adapters.get(id(result), result)


class LowRankLinear(nn.Module):
    """A frozen linear layer with a low-rank adapter: base(x) + scale·B A x.

    Args:
        base: The linear layer.
        rank: Rank of the adapter.
        alpha: Scale of the adapter, which is divided by the rank.
        dropout: Dropout rate of the adapter's input.
    """

    def __init__(self, base: nn.Module, rank: int, alpha: float, dropout: float) -> None:
        super().__init__()
        inputs, outputs = _sizes(base) or (0, 0)
        weight = next(base.parameters())
        options: dict[str, Any] = {"bias": False, "device": weight.device, "dtype": weight.dtype}
        self.base, self.scale = base, alpha / rank
        self.down, self.up = nn.Linear(inputs, rank, **options), nn.Linear(rank, outputs, **options)
        nn.init.zeros_(self.up.weight)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of the adapted layer."""
        outputs: Tensor = self.base(x) + self.up(self.down(self.dropout(x)) * self.scale)
        return outputs


def _sizes(layer: nn.Module) -> tuple[int, int] | None:
    """Return the numbers of inputs and outputs of a linear layer that can be adapted; None for other layers."""
    if type(layer) is nn.Linear:
        return layer.in_features, layer.out_features
    if is_transposed_linear(layer):
        inputs, outputs = layer.weight.shape
        return int(inputs), int(outputs)
    return None


def is_transposed_linear(layer: nn.Module) -> TypeGuard[Any]:
    """Return whether a layer is the linear layer of GPT-2 in transformers, `Conv1D`, whose weight is (in, out)."""
    return type(layer).__name__ == "Conv1D" and type(layer).__module__ == "transformers.pytorch_utils"


def _named(layers: Mapping[str, nn.Module], wanted: Sequence[str], key: str) -> list[nn.Module]:
    """Return the layers whose name, or the last part of whose name, is among the wanted ones."""
    found = []
    for end in wanted:
        matching = [layer for name, layer in layers.items() if f".{name}".endswith(f".{end}")]
        if not matching:
            known = sorted({name.rpartition(".")[2] for name in layers if name})
            raise ConfigError(f"no layer is called {end!r}; {nearest(end, known)}", key=key)
        found += matching
    return found


def _replace(parent: nn.Module, adapters: Mapping[int, nn.Module]) -> None:
    """Replace the children of a module that have adapters."""
    for name, child in list(parent.named_children()):
        if id(child) in adapters:
            setattr(parent, name, adapters[id(child)])
            # PyTorch's fused encoder layers would look for the weight of the layer, and miss the adapter.
            if isinstance(parent, nn.TransformerEncoderLayer):
                parent.activation_relu_or_gelu = 0
    if isinstance(parent, nn.TransformerEncoder):
        parent.use_nested_tensor = False
