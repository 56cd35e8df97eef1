"""The built-in transformers: sizes by hand, what a token sees, and inputs that they reject."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from offbeat.errors import ConfigError
from offbeat.models import GPT, Model, ViT


def block(width: int, ratio: int) -> int:
    """Return the parameters of two norms, of four matrices and of their biases."""
    return 4 * width + (4 + 2 * ratio) * width**2 + (3 + 1 + ratio + 1) * width


@pytest.mark.parametrize(
    ("model", "shape", "classes", "vocabulary", "size"),
    [
        (ViT(), (3, 32, 32), 10, None, 48 * 128 + 128 + 64 * 128 + 6 * block(128, 4) + 256 + 129 * 10),
        (ViT(patch=2, width=6, depth=1, heads=3, ratio=2), (1, 4, 8), 3, None, 30 + 48 + block(6, 2) + 12 + 21),
        (GPT(), (80,), 80, 80, 80 * 128 + 80 * 128 + 4 * block(128, 4) + 256),
        (GPT(width=6, depth=1, heads=2, context=9), (7,), 5, 5, 30 + 54 + block(6, 4) + 12),
        (GPT(width=6, depth=1, heads=2, tied=False), (7,), 5, 5, 30 + 42 + block(6, 4) + 12 + 30),
        (GPT(width=6, depth=1, heads=2, output="last"), (7,), 3, 5, 30 + 42 + block(6, 4) + 12 + 18),
    ],
    ids=str,
)
def test_sizes(model: Model, shape: tuple[int, ...], classes: int, vocabulary: int | None, size: int) -> None:
    assert sum(p.numel() for p in model.build(shape, classes, vocabulary).parameters()) == size


@pytest.mark.parametrize(("model", "size"), [(ViT(), "1,205,642"), (GPT(), "813,824")])
def test_sizes_in_the_docs(model: Model, size: str) -> None:
    module = model.build((3, 32, 32), 10) if isinstance(model, ViT) else model.build((80,), 80, 80)
    assert f"{sum(p.numel() for p in module.parameters()):,}" == size
    assert f"{size} parameters" in " ".join((type(model).__doc__ or "").split())


def test_a_token_sees_those_before_it_only() -> None:
    module = GPT(width=8, depth=2, heads=2).build((6,), 5, 5)
    first, other = torch.zeros((2, 1, 6), dtype=torch.int64)
    other[0, 3] = 4
    scores, changed = module(first), module(other)
    assert scores.shape == (1, 6, 5)
    torch.testing.assert_close(scores[:, :3], changed[:, :3])
    assert (scores[:, 3:] - changed[:, 3:]).abs().amax(dim=2).min() > 1e-4
    assert GPT(width=8, depth=2, heads=2, output="last").build((6,), 5, 5)(first).shape == (1, 5)


def test_shorter_sequences_have_the_first_positions() -> None:
    module = GPT(width=8, depth=1, heads=2, context=9).build((6,), 5, 5)
    tokens = torch.arange(4)[None]
    torch.testing.assert_close(module(tokens), module(torch.cat([tokens, tokens[:, :2]], dim=1))[:, :4])


def test_a_patch_sees_all_others() -> None:
    module = ViT(patch=4, width=8, depth=1, heads=2).build((1, 8, 8), 3)
    assert isinstance(module, nn.Sequential)
    with torch.no_grad():
        tokens = module[:2](torch.randn(1, 1, 8, 8, generator=torch.Generator().manual_seed(0)))
        changed = tokens.clone()
        changed[0, 3] = changed[0, 3].flip(0)
        assert ((module[2](tokens) - module[2](changed)).abs().amax(dim=2) > 1e-6).all()


def test_initial_weights_are_as_gpt_2_s() -> None:
    module = GPT(width=64, depth=2).build((16,), 50, 50)
    for name, p in module.named_parameters():
        if name.endswith("bias"):
            assert not p.any()
        elif "norm" not in name and p.ndim == 2:
            expected = 0.02 / math.sqrt(4) if "_out" in name else 0.02
            assert float(p.detach().std()) == pytest.approx(expected, rel=0.1)


def test_dropout_only_in_training() -> None:
    for model, x in ((ViT(width=8, depth=1, heads=2, dropout=0.5), torch.ones(2, 3, 8, 8)),
                     (GPT(width=8, depth=1, heads=2, dropout=0.5), torch.ones((2, 4), dtype=torch.int64))):  # fmt: skip
        module = model.build(tuple(x.shape[1:]), 4, 4 if isinstance(model, GPT) else None)
        assert not torch.equal(module(x), module(x))
        module.eval()
        assert torch.equal(module(x), module(x))


@pytest.mark.parametrize(
    ("model", "shape", "vocabulary", "message"),
    [
        (GPT(), (4,), None, "gpt needs sequences of tokens, not numbers of shape [4]"),
        (GPT(), (4, 4), 9, "gpt needs sequences of tokens, not tokens of shape [4, 4]"),
        (GPT(context=3), (4,), 9, "3 is less than the 4 tokens of a sequence"),
        (GPT(heads=3), (4,), 9, "3 heads do not divide a width of 128 evenly"),
        (ViT(patch=5), (3, 32, 32), None, "5 does not divide 32×32 inputs evenly"),
        (ViT(heads=5), (3, 32, 32), None, "5 heads do not divide a width of 128 evenly"),
        (ViT(), (3, 2, 32), None, "vit needs inputs of (channels, height ≥ 4, width ≥ 4), not [3, 2, 32]"),
    ],
)
def test_what_does_not_fit(model: Model, shape: tuple[int, ...], vocabulary: int | None, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        model.build(shape, 5, vocabulary)
    assert message in str(caught.value)
