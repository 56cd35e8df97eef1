"""The contract of every model, on which executors that stack many copies rely."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

import offbeat as ob
from offbeat.errors import ConfigError
from offbeat.models import CNN, GPT, LR, LSTM, MLP, MODELS, ConvMixer, LoRA, Model, ResNet18, VGG11s, ViT

IMAGES, LARGE, SEQUENCES, CLASSES, VOCABULARY = (2, 8, 8), (2, 32, 32), (7,), 5, 6
SMALL: list[Model] = [
    LR(),
    MLP(hidden=(6,)),
    CNN(),
    VGG11s(),
    ResNet18(width=8, groups=4),
    ConvMixer(dim=8, depth=2, kernel=3, groups=2),
    LSTM(embedding=4, hidden=16),
    LSTM(embedding=4, hidden=8, layers=1),
    ViT(patch=4, width=16, depth=1, heads=2),
    GPT(width=16, depth=1, heads=2, output="last"),
    LoRA(model=MLP(hidden=(16,)), rank=4),
]
TOKENS = (LSTM, GPT)
RATES: dict[type[Model], float] = {LSTM: 1.0, GPT: 0.2, ViT: 0.2}
BATCH_NORMED: list[Model] = [ResNet18(width=8, norm="batch"), ConvMixer(dim=8, depth=2, kernel=3, norm="batch")]
LEAVES = (nn.Linear, nn.Conv2d, nn.GroupNorm, nn.BatchNorm2d, nn.LayerNorm, nn.Embedding)


def shape(model: Model) -> tuple[int, ...]:
    return LARGE if isinstance(model, VGG11s) else IMAGES


def built(model: Model, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if isinstance(model, TOKENS):
            return model.build(SEQUENCES, CLASSES, VOCABULARY)
        return model.build(shape(model), CLASSES)


def inputs(model: Model, *lead: int) -> Tensor:
    g = torch.Generator().manual_seed(len(lead))
    if isinstance(model, TOKENS):
        return torch.randint(VOCABULARY, (*lead, *SEQUENCES), generator=g)
    return torch.randn((*lead, *shape(model)), generator=g)


def test_every_model_is_here() -> None:
    assert {type(model) for model in SMALL} == set(MODELS.values())


@pytest.mark.parametrize("model", SMALL, ids=str)
def test_the_first_dimension_is_the_batch_and_examples_do_not_mix(model: Model) -> None:
    module, x = built(model).train(), inputs(model, 6)
    with torch.no_grad():
        scores = module(x)
        assert scores.shape == (6, CLASSES)
        for part in (x[2:3], x[2:5]):
            torch.testing.assert_close(module(part)[0], scores[2], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model", SMALL, ids=str)
def test_a_stack_of_copies_is_each_copy_by_itself(model: Model) -> None:
    """Outputs and gradients under `torch.vmap`, in double precision, so that only the order of additions differs."""
    module = built(model).double()
    copies = [{name: p.detach().double() for name, p in built(model, seed).named_parameters()} for seed in (1, 2, 3)]
    x = inputs(model, 3, 4)
    x = x.double() if x.is_floating_point() else x
    stacked = {name: torch.stack([copy[name] for copy in copies]).requires_grad_() for name in copies[0]}
    with sdpa_kernel(SDPBackend.MATH):  # the only one that vmap knows
        together = torch.vmap(lambda p, xs: functional_call(module, p, (xs,)))(stacked, x)
    gradients = torch.autograd.grad(together.square().sum(), list(stacked.values()))
    for row, copy in enumerate(copies):
        own = {name: p.requires_grad_() for name, p in copy.items()}
        alone = functional_call(module, own, (x[row],))
        torch.testing.assert_close(together[row], alone, rtol=1e-9, atol=1e-11)
        expected = torch.autograd.grad(alone.square().sum(), list(own.values()))
        for grad, single in zip(gradients, expected, strict=True):
            torch.testing.assert_close(grad[row], single, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("model", [*SMALL, *BATCH_NORMED], ids=str)
def test_parameters_live_in_standard_layers_and_nothing_is_in_place(model: Model) -> None:
    for layer in built(model).modules():
        assert not getattr(layer, "inplace", False)
        if next(layer.parameters(recurse=False), None) is not None:
            assert isinstance(layer, LEAVES)


@pytest.mark.parametrize("model", SMALL, ids=str)
def test_initial_weights_follow_from_torch_s_seed(model: Model) -> None:
    first, again, other = (torch.cat([p.flatten() for p in built(model, s).parameters()]) for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("model", [m for m in SMALL if not isinstance(m, TOKENS)], ids=str)
def test_models_that_calculate_with_their_inputs_refuse_tokens(model: Model) -> None:
    with pytest.raises(ConfigError, match=r"takes numbers, not tokens \(the vocabulary has 80\)"):
        model.build(IMAGES, CLASSES, 80)


@pytest.mark.parametrize("model", BATCH_NORMED, ids=str)
def test_with_batch_norm_a_model_has_buffers_and_normalizes_over_the_batch(model: Model) -> None:
    module, x = built(model).train(), inputs(model, 6)
    layers = [layer for layer in module.modules() if isinstance(layer, nn.BatchNorm2d)]
    assert layers
    assert not any(isinstance(layer, nn.GroupNorm) for layer in module.modules())
    scores = module(x)
    assert scores.shape == (6, CLASSES)
    assert not torch.allclose(module(x[:3]), scores[:3], rtol=1e-3), "it depends on the rest of the batch"
    assert all(int(layer.num_batches_tracked or 0) == 2 for layer in layers)
    module.eval()
    torch.testing.assert_close(module(x[:3]), module(x)[:3], rtol=1e-4, atol=1e-5)


def small_data(model: Model) -> ob.Dataset:
    """Return images with horizontal, vertical or no stripes; for models of tokens the label is the last token."""
    rng = np.random.default_rng(0)
    if isinstance(model, TOKENS):
        x = rng.integers(VOCABULARY - 1, size=(300, *SEQUENCES))
        return ob.from_arrays(x[:200], x[:200, -1], x[200:], x[200:, -1], classes=CLASSES, vocabulary=VOCABULARY)
    y = rng.integers(3, size=300)
    size = shape(model)[1]
    stripes = np.where(np.arange(size) % 2, 1.0, -1.0)
    patterns = np.stack([np.zeros((size, size)), np.tile(stripes, (size, 1)), np.tile(stripes[:, None], (1, size))])
    x = (patterns[y][:, None] + 0.5 * rng.standard_normal((300, *shape(model)))).astype(np.float32)
    return ob.from_arrays(x[:200], y[:200], x[200:], y[200:], classes=CLASSES)


@pytest.mark.parametrize("model", SMALL, ids=str)
def test_a_short_run_learns(model: Model) -> None:
    result = ob.run(
        data=small_data(model),
        model=model,
        algorithm=ob.FedAvg(),
        partition=ob.partitions.IID(),
        clients=4,
        client=ob.SGD(lr=RATES.get(type(model), 0.05), steps=8, batch_size=16),
        scheduler=ob.Rounds(concurrency=2),
        rounds=20 if isinstance(model, TOKENS) else 6,
        executor="sequential",
    )
    losses = [row["loss"] for row in result.evaluations]
    assert all(map(math.isfinite, losses))
    assert losses[-1] < 0.95 * losses[0]
