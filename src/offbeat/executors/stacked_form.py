"""The stacked form of a module: which layers take stacked parameters, and how the other parameters are presented.

* A layer whose parameters are all frozen stays as it is: it computes the merged batch of all clients, with one copy of
  its weights.
* A layer with trainable parameters takes its stacked form (`stacked_layers.py`).
* A trainable parameter of any other module, such as a class token or a position embedding that belongs to the user's
  own module, is presented once per example, with the examples as its first dimension. Whether the module's arithmetic
  is the same on that shape is not known in advance. `Stack` compares the outputs with those of the module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from offbeat.client.local_step import GradientFactors
from offbeat.executors.batch_norm import BATCH_NORMS, ValidExamples
from offbeat.executors.stacked_layers import CONTAINERS, stacked_kind
from offbeat.trees import Tree, call, size
from offbeat.vectors import copied

# Entries of a parameter that is presented per example: a position embedding of a ViT has fewer, a matrix that is
# multiplied with has more and would be copied for every example.
LARGEST_LOOSE = 1 << 18
# Dimensions of the tensors with which such a parameter may be combined; 0 stands for those that it has itself.
DIMENSIONS = (0, 2, 3, 4)


class StackedForm:
    """A module that computes the merged batches (n·B, …) of n models.

    Attributes:
        module: The module with layers in stacked form.
        loose: Parameters that are presented per example, with the least number of dimensions of each.

    Args:
        module: The module with layers in stacked form.
        frozen: Frozen parameters of layers in stacked form.
        loose: Parameters that are presented per example, with the least number of dimensions of each.
    """

    def __init__(self, module: nn.Module, frozen: Mapping[str, Tensor], loose: Mapping[str, int]) -> None:
        self.module, self.loose = module, loose
        self._frozen = frozen

    def __call__(self, parameters: Mapping[str, Tensor], inputs: Tree) -> Any:
        """Return the outputs for merged batches.

        Args:
            parameters: Parameters and buffers of the models (n, …).
            inputs: The merged batches (n·B, …).
        """
        n = len(next(iter(parameters.values())))
        given = dict(parameters)
        for name, value in self._frozen.items():
            given[name] = value.expand(n, *value.shape)
        for name, dimensions in self.loose.items():
            given[name] = per_example(given[name], size(inputs) // n, dimensions)
        return call(self.module, inputs, given)


def stacked_forms(module: nn.Module, factors: GradientFactors | None, valid: ValidExamples) -> Iterator[StackedForm]:
    """Yield the forms in which a module may be computed for many models; each has to be checked.

    Args:
        module: The module of a single model.
        factors: Where linear layers leave the factors of their gradients; None to compute the gradients.
        valid: Tells BatchNorm layers which examples are padding.
    """
    result = copied(module)
    names = {id(p): name for name, p in result.named_parameters()}
    frozen, loose = _convert(result, factors, valid)
    if any(p.numel() > LARGEST_LOOSE for p in loose):
        return
    tried: list[list[int]] = []
    for least in DIMENSIONS if loose else (0,):
        dimensions = [max(least, p.ndim if p.shape[:1] == (1,) else p.ndim + 1) for p in loose]
        if dimensions not in tried:
            tried.append(dimensions)
            presented = zip((names[id(p)] for p in loose), dimensions, strict=True)
            yield StackedForm(result, {names[id(p)]: p for p in frozen}, dict(presented))


def _convert(
    module: nn.Module, factors: GradientFactors | None, valid: ValidExamples
) -> tuple[Sequence[nn.Parameter], Sequence[nn.Parameter]]:
    """Change the class of layers that have a stacked form.

    Returns:
        The frozen parameters of these layers, and the trainable parameters of all other modules.
    """
    frozen, loose, parts = [], [], set()
    for layer in list(module.modules()):
        kind = stacked_kind(layer)
        whole = kind is not None and isinstance(layer, nn.MultiheadAttention)  # with its output layer
        own = [] if layer in parts else list(layer.parameters(recurse=whole))
        trains = any(p.requires_grad for p in own)
        if kind is not None and (trains or isinstance(layer, (*CONTAINERS, *BATCH_NORMS))):
            layer.__class__ = kind
            layer.factors, layer.valid = factors, valid  # type: ignore[assignment]
            frozen += [p for p in own if not p.requires_grad]
            parts |= set(layer.children()) if whole else set()
        else:
            loose += [p for p in own if p.requires_grad]
    return frozen, loose


def per_example(value: Tensor, examples: int, dimensions: int) -> Tensor:
    """Return stacked parameters (n, …) as (n·B, …), one for each example.

    A first dimension of one is replaced, because it stands for the examples already; otherwise they come first.

    Args:
        value: The stacked parameters.
        examples: Examples per model, B.
        dimensions: Least number of dimensions of the result.
    """
    own = value.shape[2:] if value.shape[1:2] == (1,) else value.shape[1:]
    shape = (*(1,) * (dimensions - 1 - len(own)), *own)
    return value.view(len(value), 1, *shape).expand(-1, examples, *shape).flatten(0, 1)
