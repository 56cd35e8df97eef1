"""Vectors and layouts on which every codec is tested."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from offbeat.compression import Codec
from offbeat.vectors import Layout


def layout(*shapes: tuple[int, ...]) -> Layout:
    return Layout(tuple(f"p{n}" for n in range(len(shapes))), tuple(torch.Size(shape) for shape in shapes))


def flat(dim: int) -> Layout:
    return layout((dim,))


LAYOUTS = {
    "one": flat(1),
    "three": flat(3),
    "matrix and bias": layout((4, 5), (5,)),
    "single entries": layout((1,), (7, 2), (), (1, 1), (9,)),
    "only single entries": layout((1,), (), (1,)),
    "odd": flat(67),
    "larger": layout((40, 25), (25,), (3, 3, 5, 5)),
}


EVERYWHERE = pytest.mark.parametrize("where", LAYOUTS.values(), ids=LAYOUTS)


def normal(dim: int, seed: int = 0) -> Tensor:
    return torch.randn(dim, generator=torch.Generator().manual_seed(seed))


def vectors(dim: int) -> dict[str, Tensor]:
    x = normal(dim)
    return {
        "normal": x,
        "zero": torch.zeros(dim),
        "constant": torch.full((dim,), 0.3),
        "negative constant": torch.full((dim,), -7.7),
        "one entry": torch.zeros(dim).index_fill(0, torch.tensor([dim // 2]), -3.0),
        "huge": 1e15 * x,
        "small": 1e-15 * x,
        "from huge to small": x * 10 ** torch.linspace(-12, 12, dim),
        "far from zero": 1e6 + x,
        "ties": torch.arange(dim).remainder(3).float() - 1,
    }


def decoded(codec: Codec, x: Tensor, where: Layout, seed: int, rate: float | None = None) -> Tensor:
    return codec.decode(codec.encode(x, where, seed, rate), where)
