"""Transformers: a ViT for images and a GPT for sequences of tokens, in a form in which many clients' copies run as one.

Positions are the weight of an `nn.Embedding` that is added as a whole, so that they can be stacked like any layer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from offbeat.errors import ConfigError
from offbeat.models.base import Model, image_shape
from offbeat.models.lstm import Last
from offbeat.options import Interval, PositiveInt


@dataclass(kw_only=True, frozen=True)
class ViT(Model):
    """A vision transformer (Dosovitskiy et al., ICLR 2021) with pre-norm blocks and learned positions.

    As in Beyer et al. (*Better plain ViT baselines for ImageNet-1k*, 2022), the mean over all patches replaces the
    class token. The defaults have 1,205,642 parameters for 3×32×32 inputs and ten classes.
    """

    patch: PositiveInt = 4
    """Side of a patch in pixels."""
    width: PositiveInt = 128
    """Size of a token."""
    depth: PositiveInt = 6
    """Number of blocks."""
    heads: PositiveInt = 4
    """Number of attention heads."""
    ratio: PositiveInt = 4
    """Width of a block's hidden layer, as a multiple of the size of a token."""
    dropout: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    """Dropout rate of the embedding and of both halves of a block."""

    def build(self, shape: tuple[int, ...], classes: int, vocabulary: int | None = None) -> nn.Module:
        """Return the vision transformer."""
        channels, height, width = image_shape("vit", shape, vocabulary, min_size=self.patch)
        if height % self.patch or width % self.patch:
            raise ConfigError(f"{self.patch} does not divide {height}×{width} inputs evenly", key="patch")
        return _initialized(
            nn.Sequential(
                Patches(channels, self.patch, self.width),
                *_body(self, (height // self.patch) * (width // self.patch), causal=False),
                Mean(),
                nn.Linear(self.width, classes),
            ),
            self.depth,
        )


@dataclass(kw_only=True, frozen=True)
class GPT(Model):
    """A causal transformer on tokens with pre-norm blocks and learned positions, as GPT-2 (Radford et al., 2019).

    It returns scores for the next token at every position, for the task `language-modeling`. With as many classes as
    tokens the output layer shares its weight with the embedding. The defaults have 813,824 parameters for windows of 80
    characters of Shakespeare.
    """

    width: PositiveInt = 128
    """Size of a token."""
    depth: PositiveInt = 4
    """Number of blocks."""
    heads: PositiveInt = 4
    """Number of attention heads."""
    ratio: PositiveInt = 4
    """Width of a block's hidden layer, as a multiple of the size of a token."""
    context: PositiveInt | None = None
    """Largest length of a sequence; by default that of the data."""
    dropout: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    """Dropout rate of the embedding and of both halves of a block."""
    output: Literal["all", "last"] = "all"
    """Positions for which there are scores: all, or only the last one, to classify sequences."""
    tied: bool = True
    """Whether the output layer shares its weight with the embedding if there are as many classes as tokens."""

    def build(self, shape: tuple[int, ...], classes: int, vocabulary: int | None = None) -> nn.Module:
        """Return the GPT."""
        if vocabulary is None or len(shape) != 1:
            kind = "numbers" if vocabulary is None else "tokens"
            raise ConfigError(
                f"gpt needs sequences of tokens, not {kind} of shape {list(shape)}; "
                "pass vocabulary to from_arrays to use integers as tokens",
                key="name",
            )
        length = self.context or shape[0]
        if length < shape[0]:
            raise ConfigError(f"{length} is less than the {shape[0]} tokens of a sequence", key="context")
        embedding, head = nn.Embedding(vocabulary, self.width), nn.Linear(self.width, classes, bias=False)
        if self.tied and classes == vocabulary:
            head.weight = embedding.weight
        last = [Last()] if self.output == "last" else []
        return _initialized(nn.Sequential(embedding, *_body(self, length, causal=True), *last, head), self.depth)


def _body(model: ViT | GPT, length: int, *, causal: bool) -> list[nn.Module]:
    """Return the layers between the embedding and the output layer."""
    if model.width % model.heads:
        raise ConfigError(f"{model.heads} heads do not divide a width of {model.width} evenly", key="heads")
    blocks = (Block(model.width, model.heads, model.ratio, model.dropout, causal=causal) for _ in range(model.depth))
    return [
        Positions(length, model.width),
        *([nn.Dropout(model.dropout)] if model.dropout else []),
        *blocks,
        nn.LayerNorm(model.width),
    ]


class Block(nn.Module):
    """Attention and a hidden layer, each after a LayerNorm and with a residual connection.

    Args:
        width: Size of a token.
        heads: Number of attention heads.
        ratio: Width of the hidden layer, as a multiple of the size of a token.
        dropout: Dropout rate of both halves.
        causal: Whether a token attends to the tokens before it only.
    """

    def __init__(self, width: int, heads: int, ratio: int, dropout: float, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.hidden_norm = nn.LayerNorm(width)
        self.hidden = nn.Linear(width, ratio * width)
        self.hidden_out = nn.Linear(ratio * width, width)
        self.activation = nn.GELU()
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return the tokens (batch, length, width) after the block."""
        x = x + self.dropout(self._attended(self.attention_norm(x)))
        y: Tensor = self.hidden_out(self.activation(self.hidden(self.hidden_norm(x))))
        out: Tensor = x + self.dropout(y)
        return out

    def _attended(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=self.causal)
        mixed: Tensor = self.attention_out(y.transpose(1, 2).reshape(batch, length, width))
        return mixed


class Patches(nn.Module):
    """Cut images into patches and embed these.

    Args:
        channels: Channels of an image.
        patch: Side of a patch.
        width: Size of a token.
    """

    def __init__(self, channels: int, patch: int, width: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, width, patch, patch)

    def forward(self, images: Tensor) -> Tensor:
        """Return the tokens (batch, patches, width)."""
        tokens: Tensor = self.convolution(images).flatten(2).transpose(1, 2)
        return tokens


class Positions(nn.Module):
    """Add learned positions to tokens.

    Args:
        length: Largest length of a sequence.
        width: Size of a token.
    """

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(length, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens (batch, length, width) with their positions."""
        weight = self.table.weight[..., : x.shape[1], :]  # (length, width), or (n, length, width) for n stacked models
        return (x.view(*weight.shape[:-2], -1, *x.shape[1:]) + weight[..., None, :, :]).view_as(x)


class Mean(nn.Module):
    """Average the tokens."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean token (batch, width)."""
        return x.mean(dim=1)


def _initialized(module: nn.Module, depth: int) -> nn.Module:
    """Return a module with GPT-2's initial weights: N(0, 0.02²), less for layers that end a residual branch."""
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Linear | nn.Conv2d | nn.Embedding):
            ends = name.endswith(("attention_out", "hidden_out"))
            nn.init.normal_(layer.weight, std=0.02 / math.sqrt(2 * depth) if ends else 0.02)
            if getattr(layer, "bias", None) is not None:
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return module
