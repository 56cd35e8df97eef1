"""Crops and flips against a plain loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import offbeat as ob
from offbeat.data import AUGMENTS, CropFlip, from_arrays
from offbeat.errors import ConfigError
from offbeat.random import stream
from offbeat.runs import config
from offbeat.runs.data import Data


def plainly(image: NDArray[np.generic], draw: NDArray[np.int16], pad: int) -> NDArray[np.generic]:
    """Pad with zeros, crop, mirror."""
    dy, dx, mirrored = draw.tolist()
    _, height, width = image.shape
    padded = np.pad(image, ((0, 0), (pad, pad), (pad, pad)))
    crop = padded[:, pad + dy : pad + dy + height, pad + dx : pad + dx + width]
    return crop[:, :, ::-1] if mirrored else crop


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize(("lead", "shape"), [((40,), (3, 8, 6)), ((4, 10), (1, 5, 9)), ((2, 3, 5), (2, 7, 7))])
def test_bits_equal_those_of_a_plain_loop(
    dtype: type[np.generic], lead: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(1, 256, size=(*lead, *shape)).astype(dtype)
    law = CropFlip(pad=3)
    draws = law.draw(rng, lead)
    seen = law.apply(torch.from_numpy(images), torch.from_numpy(draws))
    assert seen.shape == images.shape
    assert seen.numpy().dtype == dtype
    for where in np.ndindex(*lead):
        np.testing.assert_array_equal(seen[where].numpy(), plainly(images[where], draws[where], pad=3))


def test_by_hand() -> None:
    image = torch.tensor([[[1, 2, 3], [4, 5, 6]]], dtype=torch.uint8)

    def done(*draw: int) -> list[list[int]]:
        rows: list[list[int]] = CropFlip(pad=1).apply(image, torch.tensor(draw, dtype=torch.int16))[0].tolist()
        return rows

    assert done(0, 0, 0) == [[1, 2, 3], [4, 5, 6]]
    assert done(0, 0, 1) == [[3, 2, 1], [6, 5, 4]]
    assert done(1, 0, 0) == [[4, 5, 6], [0, 0, 0]]
    assert done(-1, 0, 0) == [[0, 0, 0], [1, 2, 3]]
    assert done(0, 1, 0) == [[2, 3, 0], [5, 6, 0]]
    assert done(0, 1, 1) == [[0, 3, 2], [0, 6, 5]]


def test_augmentation_does_not_modify_the_images() -> None:
    images = torch.arange(2 * 16, dtype=torch.uint8).view(2, 1, 4, 4)
    before = images.clone()
    CropFlip(pad=1).apply(images, torch.tensor([[1, 1, 1], [0, 0, 0]], dtype=torch.int16))
    assert torch.equal(images, before)


def test_the_padding_is_black_before_standardizing() -> None:
    raw = torch.full((2, 1, 4, 4), 255, dtype=torch.uint8)
    data = ob.Dataset(raw, torch.tensor([0, 1]), raw, torch.tensor([0, 1]), 2, mean=(0.5,), std=(0.25,))
    seen = data.prepare(CropFlip().apply(raw, torch.tensor([[4, 0, 0], [0, 0, 0]], dtype=torch.int16)))
    assert (seen[0] == -2.0).all()
    assert (seen[1] == 2.0).all()


def test_draws_are_uniform_and_follow_from_the_stream() -> None:
    law = CropFlip(pad=2)
    draws = law.draw(stream(7, "augment"), (300, 50))
    assert draws.dtype == np.int16
    assert draws.shape == (300, 50, 3)
    np.testing.assert_array_equal(draws, law.draw(stream(7, "augment"), (300, 50)))
    np.testing.assert_array_equal(draws[:9], law.draw(stream(7, "augment"), (9, 50)))  # fewer steps: the first of them
    for column, values in ((0, [-2, -1, 0, 1, 2]), (1, [-2, -1, 0, 1, 2]), (2, [0, 1])):
        found, counts = np.unique(draws[..., column], return_counts=True)
        assert found.tolist() == values
        assert np.abs(counts / 15_000 - 1 / len(values)).max() < 0.02  # five standard deviations
    assert np.abs(np.corrcoef(draws.reshape(-1, 3), rowvar=False) - np.eye(3)).max() < 0.04


def test_without_padding_images_are_only_mirrored() -> None:
    assert np.unique(CropFlip(pad=0).draw(np.random.default_rng(0), (100,)), axis=0).tolist() == [[0, 0, 0], [0, 0, 1]]


def test_it_can_be_stacked() -> None:
    """No shape depends on a value, so `torch.vmap` works."""
    law, rng = CropFlip(), np.random.default_rng(0)
    images = torch.randint(256, (3, 4, 2, 8, 8), dtype=torch.uint8)
    draws = torch.from_numpy(law.draw(rng, (3, 4)))
    assert torch.equal(torch.vmap(law.apply)(images, draws), law.apply(images, draws))


def data(x: Tensor, vocabulary: int | None = None) -> ob.Dataset:
    return from_arrays(x, [0, 1], x, [0, 1], vocabulary=vocabulary)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (data(torch.zeros(2, 5)), "not numbers of shape [5]"),
        (data(torch.zeros(2, 5, dtype=torch.uint8), vocabulary=80), "not tokens of shape [5]"),
        (data(torch.zeros(2, 3, 4, 4, dtype=torch.uint8), vocabulary=80), "not tokens of shape [3, 4, 4]"),
        (
            data(torch.zeros(2, 3, 4, 9)),
            "data.augment.pad: a shift of 4 pixels moves 4×9 images out of the frame; use a smaller pad",
        ),
    ],
)
def test_inputs_that_are_not_images_are_rejected(made: ob.Dataset, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ob.run(data=made, model=torch.nn.Flatten(), algorithm=ob.FedAvg(), clients=1, augment=CropFlip())
    assert str(caught.value).startswith("data.augment.")
    assert message in str(caught.value)


def test_in_toml_by_name_or_as_a_table() -> None:
    for given, expected in (("crop-flip", CropFlip()), ({"name": "crop-flip", "pad": 2}, CropFlip(pad=2))):
        experiment = config.parse({"data": {"name": "cifar10", "clients": 10, "augment": given}})
        assert experiment.data.augment == expected
        assert config.parse(config.describe(experiment)) == experiment
    assert config.parse({}).data.augment is None
    assert Data().augment is None
    assert {"crop-flip": CropFlip} == AUGMENTS
    with pytest.raises(ConfigError, match=r"data\.augment\.name: unknown name 'flip'; valid: crop-flip"):
        config.parse({"data": {"augment": "flip"}})
    with pytest.raises(ConfigError, match=r"data\.augment\.pad: -1"):
        config.parse({"data": {"augment": {"name": "crop-flip", "pad": -1}}})
