"""The character model against torch.nn.LSTM."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from offbeat.errors import ConfigError
from offbeat.models import LSTM
from offbeat.models.lstm import Layer, recurrence, recurrence_back


def layers(module: nn.Module) -> list[Layer]:
    return [layer for layer in module.modules() if isinstance(layer, Layer)]


def under_torch_s_names(module: nn.Module) -> dict[str, Tensor]:
    """Return the layers' parameters under the names of nn.LSTM."""
    return {
        f"{kind}_{name}_l{k}": getattr(linear, kind)
        for k, layer in enumerate(layers(module))
        for name, linear in (("ih", layer.input), ("hh", layer.hidden))
        for kind in ("weight", "bias")
    }


GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_mathematics_of_torch_s_lstm(count: int, device: str) -> None:
    """Scores and every gradient, in double precision, so that only the order of additions differs."""
    module = LSTM(embedding=5, hidden=7, layers=count).build((11,), 4, vocabulary=9).double().to(device)
    assert isinstance(module, nn.Sequential)
    own = under_torch_s_names(module)
    other = nn.LSTM(5, 7, num_layers=count, batch_first=True).double().to(device)
    other.load_state_dict(own)
    theirs = dict(other.named_parameters())
    tokens = torch.randint(9, (6, 11), generator=torch.Generator().manual_seed(0)).to(device)
    mine = module(tokens)
    expected = module[-1](other(module[0](tokens))[0][:, -1])
    torch.testing.assert_close(mine, expected, rtol=1e-12, atol=1e-12)
    embedding = next(module[0].parameters())
    gradients = torch.autograd.grad(mine.square().sum(), [*own.values(), embedding])
    torch.testing.assert_close(
        gradients,
        torch.autograd.grad(expected.square().sum(), [*(theirs[name] for name in own), embedding]),
        rtol=1e-10,
        atol=1e-12,
    )


@pytest.mark.parametrize("models", [(), (2,)])
def test_a_compiler_knows_what_the_recurrence_gives(models: tuple[int, ...]) -> None:
    """Sizes, layouts and gradients, for one model and for a stack."""
    rng = torch.Generator().manual_seed(0)
    z = torch.randn(5, *models, 3, 16, generator=rng, requires_grad=True)
    weight = torch.randn(*models, 16, 4, generator=rng, requires_grad=True)
    torch.library.opcheck(recurrence, (z, weight))
    states, gates, cells = (value.detach() for value in recurrence(z, weight))
    torch.library.opcheck(recurrence_back, (torch.ones_like(states), weight.detach(), states, gates, cells))


@pytest.mark.parametrize(
    ("model", "size"),
    [
        (LSTM(), 80 * 8 + 1024 * (8 + 256 + 2) + 1024 * (512 + 2) + 257 * 80),
        (LSTM(hidden=100), 80 * 8 + 400 * (8 + 100 + 2) + 400 * (200 + 2) + 101 * 80),
        (LSTM(embedding=80, dropout=0.05), 80 * 80 + 1024 * (80 + 256 + 2) + 1024 * (512 + 2) + 257 * 80),
    ],
    ids=["LEAF", "Anarchic FL", "AFGA"],
)
def test_sizes_of_the_papers(model: LSTM, size: int) -> None:
    assert sum(p.numel() for p in model.build((80,), 80, vocabulary=80).parameters()) == size


def test_initial_weights_are_as_torch_s() -> None:
    for layer in layers(LSTM(hidden=64).build((80,), 80, vocabulary=80)):
        for p in layer.parameters():
            assert 0.9 / 8 < p.abs().max() <= 1 / 8
            assert abs(p.mean()) < 0.02


def test_dropout_only_in_training() -> None:
    module = LSTM(hidden=32, dropout=0.5).build((4,), 3, vocabulary=5)
    tokens = torch.zeros((2, 4), dtype=torch.int64)
    assert not torch.equal(module(tokens), module(tokens))
    module.eval()
    assert torch.equal(module(tokens), module(tokens))
    with pytest.raises(ConfigError, match=r"dropout: 1\.0 is not a number ≥ 0 and < 1"):
        LSTM(dropout=1.0)


@pytest.mark.parametrize(
    ("shape", "vocabulary", "message"),
    [
        ((80,), None, "not numbers of shape [80]"),
        ((3, 32, 32), None, "not numbers of shape [3, 32, 32]"),
        ((4, 20), 80, "not tokens of shape [4, 20]"),
    ],
)
def test_inputs_that_are_not_sequences_of_tokens_are_rejected(
    shape: tuple[int, ...], vocabulary: int | None, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        LSTM().build(shape, 10, vocabulary)
    assert caught.value.key == "name"
    assert message in str(caught.value)
