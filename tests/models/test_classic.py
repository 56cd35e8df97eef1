"""The small models: sizes by hand, shapes, and inputs that they reject."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from offbeat.errors import ConfigError
from offbeat.models import CNN, LR, MLP, MODELS, Model, VGG11s

CLASSIC = (LR, MLP, CNN)
CIFAR, MNIST, DIGITS = (3, 32, 32), (1, 28, 28), (1, 8, 8)


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def output(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = module(x)
    return result


def test_the_cnn_of_the_paper() -> None:
    module = CNN().build(CIFAR, 10)
    assert [tuple(p.shape) for p in module.parameters() if p.ndim > 1] == [
        (32, 3, 5, 5),
        (64, 32, 5, 5),
        (512, 64 * 8 * 8),
        (128, 512),
        (10, 128),
    ]
    assert parameters(module) == 2_218_314
    assert sum(isinstance(layer, nn.ReLU) for layer in module.modules()) == 4, "after every layer but the last"


@pytest.mark.parametrize(
    ("model", "shape", "classes", "size"),
    [
        (LR(), MNIST, 10, 784 * 10 + 10),
        (LR(), (32,), 3, 32 * 3 + 3),
        (MLP(), MNIST, 10, 785 * 64 + 65 * 10),
        (MLP(hidden=(20, 30)), DIGITS, 10, 65 * 20 + 21 * 30 + 31 * 10),
        (MLP(hidden=()), DIGITS, 10, 65 * 10),
        (CNN(), MNIST, 10, 26 * 32 + 801 * 64 + (64 * 49 + 1) * 512 + 513 * 128 + 129 * 10),
        (CNN(), DIGITS, 10, 26 * 32 + 801 * 64 + (64 * 4 + 1) * 512 + 513 * 128 + 129 * 10),
        (CNN(), (2, 5, 11), 4, 51 * 32 + 801 * 64 + (64 * 1 * 2 + 1) * 512 + 513 * 128 + 129 * 4),
        (CNN(padding=0, hidden=(512,)), CIFAR, 10, 76 * 32 + 801 * 64 + 1601 * 512 + 513 * 10),
        (CNN(padding=1, hidden=()), (1, 10, 16), 2, 26 * 32 + 801 * 64 + (64 * 1 * 2 + 1) * 2),
        (CNN(), (1, 4, 4), 2, 26 * 32 + 801 * 64 + 65 * 512 + 513 * 128 + 129 * 2),
        (CNN(channels=(32, 32), padding=(2, 0), hidden=(256,)), MNIST, 10, 26 * 32 + 801 * 32 + 801 * 256 + 257 * 10),
        (CNN(channels=(8, 4), padding=(0, 2), hidden=()), (1, 8, 9), 2, 26 * 8 + 201 * 4 + (4 * 1 * 1 + 1) * 2),
        (VGG11s(), CIFAR, 10, 865_482),
        (VGG11s(), (1, 32, 64), 10, 865_482 - 2 * 9 * 32 + 128 * 128),
    ],
    ids=str,
)
def test_sizes_and_shapes(model: Model, shape: tuple[int, ...], classes: int, size: int) -> None:
    module = model.build(shape, classes)
    assert parameters(module) == size
    x = torch.randn((6, *shape), generator=torch.Generator().manual_seed(0))
    scores = output(module, x)
    assert scores.shape == (6, classes)
    # No layer mixes the examples of a batch.
    torch.testing.assert_close(output(module, x[2:3]), scores[2:3], rtol=1e-4, atol=1e-5)


def test_vgg11s_starts_as_its_authors_do() -> None:
    torch.manual_seed(0)
    convolutions = [layer for layer in VGG11s().build(CIFAR, 10).modules() if isinstance(layer, nn.Conv2d)]
    assert [layer.out_channels for layer in convolutions] == [32, 64, 128, 128, 128, 128, 128, 128]
    for layer in convolutions:
        assert layer.bias is not None
        assert not layer.bias.any()
        assert layer.weight.std().item() == pytest.approx((2 / (9 * layer.out_channels)) ** 0.5, rel=0.1)


@pytest.mark.parametrize("model", [LR(), MLP(hidden=()), MLP(), CNN()], ids=str)
def test_linear_or_not(model: Model) -> None:
    """f(x) + f(−x) = 2 f(0) for an affine map and, in general, for no other."""
    module = model.build(DIGITS, 10)
    x = torch.randn((4, *DIGITS), generator=torch.Generator().manual_seed(0))
    bend = (output(module, x) + output(module, -x) - 2 * output(module, 0 * x)).abs().max()
    assert (bend < 1e-5) == (model in (LR(), MLP(hidden=())))


def test_scores_are_not_squashed() -> None:
    """The loss expects logits: they may be negative and do not sum to one."""
    x = torch.randn((16, *DIGITS), generator=torch.Generator().manual_seed(0)) * 100
    for kind in CLASSIC:
        scores = output(kind().build(DIGITS, 10), x)
        assert scores.min() < 0
        assert scores.abs().max() > 1


@pytest.mark.parametrize("shape", [(784,), (28, 28), (1, 3, 28), (1, 28, 3), (1, 1, 28, 28), ()])
def test_the_cnn_rejects_inputs_that_are_not_images(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        CNN().build(shape, 10)
    assert caught.value.key == "name"
    assert f"not {list(shape)}" in str(caught.value)


def test_names_and_bounds() -> None:
    assert (MODELS["lr"], MODELS["mlp"], MODELS["cnn"]) == (LR, MLP, CNN)
    with pytest.raises(ConfigError) as caught:
        MLP(hidden=(64, 0))
    assert caught.value.key == "hidden"


def test_building_follows_from_torch_s_seed() -> None:
    """Initial weights are torch's own, so that a caller who seeds gets the same model again."""
    for kind in CLASSIC:
        with torch.random.fork_rng():
            torch.manual_seed(1)
            first = kind().build(DIGITS, 10)
            torch.manual_seed(1)
            second = kind().build(DIGITS, 10)
        assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
