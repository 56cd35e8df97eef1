"""Multi-head attention with stacked parameters, on the concatenated batches of clients."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, scaled_dot_product_attention

from offbeat.client.local_step import GradientFactors
from offbeat.executors.affine import affine


class StackedAttention(nn.MultiheadAttention):
    """`nn.MultiheadAttention` with parameters (n, …); never built, but assumed by a layer of a copied model."""

    factors: GradientFactors | None

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend within each example; the arguments are those of `nn.MultiheadAttention`."""
        together = query is key and key is value
        if not self.batch_first:
            query, key, value = (each.transpose(0, 1) for each in (query, key, value))
        q, k, v = self._projected(query, key, value, together)
        causal = is_causal and key_padding_mask is None and not need_weights
        mask = None if causal else self._mask(q, k, attn_mask, key_padding_mask)
        rate, weights = self.dropout if self.training else 0.0, None
        if need_weights:
            scores = q @ k.transpose(2, 3) * q.shape[3] ** -0.5
            weights = dropout((scores if mask is None else scores + mask).softmax(dim=3), rate, self.training)
            y = weights @ v
            weights = weights.mean(dim=1) if average_attn_weights else weights
        else:
            y = scaled_dot_product_attention(q, k, v, mask, rate, is_causal=causal)
        y = affine(y.transpose(1, 2).flatten(2), self.out_proj.weight, self.out_proj.bias, self.factors)
        return y if self.batch_first else y.transpose(0, 1), weights

    def _projected(self, query: Tensor, key: Tensor, value: Tensor, together: bool) -> list[Tensor]:
        """Return queries, keys and values (n·B, heads, T, d)."""
        weight, bias = self.in_proj_weight, self.in_proj_bias
        if together:
            parts = affine(query, weight, bias, self.factors).chunk(3, dim=-1)
        else:  # parts of a weight have no gradient factors of their own
            biases = [None] * 3 if bias is None else bias.chunk(3, dim=1)
            each = zip((query, key, value), weight.chunk(3, dim=1), biases, strict=True)
            parts = tuple(affine(x, w, b) for x, w, b in each)
        return [part.view(*part.shape[:2], self.num_heads, -1).transpose(1, 2) for part in parts]

    def _mask(self, q: Tensor, k: Tensor, attention: Tensor | None, padding: Tensor | None) -> Tensor | None:
        """Return what is added to the scores (n·B, heads, T, S)."""
        masks = []
        if attention is not None:
            own = attention.dim() == 3  # one per example and head
            masks.append(_additive(attention, q).view((*q.shape[:3], k.shape[2]) if own else attention.shape))
        if padding is not None:
            masks.append(_additive(padding, q)[:, None, None])
        return sum(masks[1:], masks[0]) if masks else None


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    """Return a mask as numbers that are added to scores; true entries of a Boolean mask are left out."""
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, float("-inf"))
