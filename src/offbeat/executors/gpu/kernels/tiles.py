"""What kernels on tiles of rows and channels share."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def existing(inside, c, C: tl.constexpr, BC: tl.constexpr):
    """Return which numbers of a tile exist: those of rows inside and of channels c below C."""
    kept = inside[:, None]
    if C % BC != 0:
        kept = kept & (c < C)[None, :]
    return kept
