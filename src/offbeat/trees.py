"""Trees of tensors: a tensor, or a dict, list or tuple of trees, such as the inputs of a Hugging Face model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

Tree = Any  # Tensor | Mapping[str, Tree] | list[Tree] | tuple[Tree, ...]


def map_tensors(function: Callable[[Tensor], Any], tree: Tree) -> Tree:
    """Return a tree of the same structure with the function applied to every tensor; other leaves stay as they are."""
    if isinstance(tree, Tensor):  # at once: this happens several times per local step
        return function(tree)
    return map_leaves(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, tree)


def map_leaves(function: Callable[[Any], Any], tree: Tree) -> Tree:
    """Return a tree of the same structure with the function applied to every leaf."""
    if isinstance(tree, Mapping):
        return {name: map_leaves(function, value) for name, value in tree.items()}
    if isinstance(tree, tuple | list):
        values = [map_leaves(function, value) for value in tree]
        return type(tree)(*values) if hasattr(tree, "_fields") else type(tree)(values)  # a named tuple, or not
    return function(tree)


def tensors(tree: Tree) -> Iterator[Tensor]:
    """Yield the tensors of a tree."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, Mapping):
        for value in tree.values():
            yield from tensors(value)
    elif isinstance(tree, tuple | list):
        for value in tree:
            yield from tensors(value)


def size(tree: Tree) -> int:
    """Return the length of the first dimension, or 0 for a tree without tensors."""
    return next((len(tensor) for tensor in tensors(tree)), 0)


def describe(tree: Tree) -> str:
    """Return the shapes of one example in words, such as "[3, 32, 32]" or "input_ids: [128]"."""
    if isinstance(tree, Tensor):
        return str(list(tree.shape[1:]))
    if isinstance(tree, Mapping):
        return ", ".join(f"{name}: {describe(value)}" for name, value in tree.items())
    if isinstance(tree, tuple | list):
        return ", ".join(map(describe, tree))
    return type(tree).__name__


def call(module: nn.Module, inputs: Tree, parameters: Mapping[str, Tensor] | None = None) -> Any:
    """Call a module: a dict of inputs is passed by keyword, a tuple or list by position.

    Args:
        module: The module.
        inputs: Its inputs.
        parameters: Parameters and buffers to use instead of the module's own.
    """
    args, kwargs = _arguments(inputs)
    if parameters is None:
        return module(*args, **kwargs)
    return functional_call(module, dict(parameters), args, kwargs)


def _arguments(inputs: Tree) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments by position and by keyword that the inputs stand for."""
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,), {}
