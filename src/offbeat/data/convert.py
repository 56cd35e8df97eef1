"""Conversion of what users have (arrays, lists, data frames, examples) to the tensors of a data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offbeat.errors import DataError, first_line
from offbeat.trees import Tree, map_tensors


def as_tensor(values: Any, what: str) -> Tensor:
    """Return an array, a data frame, a list of numbers or of tensors as one tensor.

    Args:
        values: The values.
        what: Their name, for messages.

    Raises:
        DataError: They are not numbers, or have different lengths.
    """
    try:
        if isinstance(values, Tensor):
            return values
        if isinstance(values, Sequence) and len(values) and isinstance(values[0], Tensor):
            return torch.stack([torch.as_tensor(value) for value in values])
        array = np.asarray(values)
        return torch.as_tensor(array if array.flags.writeable else array.copy())
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{what}: no array of numbers ({first_line(error)}); sequences of different lengths need a collate "
            "function that pads them: from_datasets(…, collate=…)"
        ) from error


def as_tree(values: Any, what: str) -> Tree:
    """Return arrays, or a dict or tuple of arrays, as tensors of the standard types."""
    if isinstance(values, Mapping):
        return {str(name): as_tree(value, f"{what} {name!r}") for name, value in values.items()}
    if isinstance(values, tuple):
        return tuple(as_tree(value, what) for value in values)
    return standard(as_tensor(values, what))


def standard(tree: Tree) -> Tree:
    """Return tensors in the types that models expect: floats in single precision, integers as int64."""

    def convert(t: Tensor) -> Tensor:
        if t.is_floating_point():
            return t.to(torch.float32)
        return t if t.dtype == torch.bool else t.to(torch.int64)

    return map_tensors(convert, tree)


def as_inputs(values: Any, what: str, tokens: bool = False) -> Tree:
    """Return model inputs as they are stored: one array of bytes stays as it is, for images.

    Args:
        values: An array, or a dict or tuple of arrays.
        what: Their name, for messages.
        tokens: Whether integers are tokens, and not numbers.
    """
    if isinstance(values, Mapping | tuple):
        return as_tree(values, what)
    t = as_tensor(values, what)
    if t.dtype == torch.uint8:
        return t
    return t.to(torch.int64 if tokens and not t.is_floating_point() else torch.float32)


def scaled(inputs: Tree) -> Tree:
    """Return inputs as a model receives them: bytes as numbers from 0 to 1."""
    return inputs.float() / 255 if isinstance(inputs, Tensor) and inputs.dtype == torch.uint8 else inputs


def as_labels(values: Any, what: str) -> Tree:
    """Return labels as they are stored: one truth value per example is a class, and several bytes stay bytes."""
    if isinstance(values, Mapping | tuple):
        return as_tree(values, what)
    t = as_tensor(values, what)
    if t.dtype == torch.uint8 and t.ndim > 1:  # an eighth of the memory
        return t
    return t.to(torch.int64) if t.dtype == torch.bool and t.ndim == 1 else standard(t)


def stacked(examples: Sequence[Any]) -> Tree:
    """Return examples, which may be pairs, tuples or dicts, as one batch.

    Raises:
        DataError: They do not fit together.
    """
    first = examples[0]
    if isinstance(first, list) and len(first) == 2 and not isinstance(first[0], int | float):  # a pair, as a list
        return stacked([tuple(each) for each in examples])
    if isinstance(first, Mapping):
        return {name: stacked([each[name] for each in examples]) for name in first}
    if isinstance(first, tuple):
        return tuple(stacked(part) for part in zip(*examples, strict=True))
    return as_tensor(examples, "examples")
