"""MF-CA²FL: memory-friendly CA²FL. Wang et al., FL-ICML 2023, appendix C.

    Q     unbiased stochastic uniform quantization with 2^bits levels between min Δ_i and max Δ_i
    h_i   Q(Δ_i), packed into `bits` bits per number
    h     cache.mean, the mean of the stored (quantized) h_i
    v     h + (1/|S_t|) Σ_{i∈S_t} (Δ_i − h_i), where the fresh Δ_i are not quantized

The paper assumes an unbiased Q of bounded variance and names none. `levels`, `rounding` and `range` select others:
fewer levels than 2^bits, rounding to the nearest level, which is biased, and a range for each tensor of the model.

This is CA²FL with a quantized cache: `ca2fl` with `cache = { name = "quantized", bits = 4 }` gives the same models.
"""

from __future__ import annotations

from dataclasses import dataclass

from offbeat.algorithms.ca2fl import CachedCalibration
from offbeat.cache import Quantized
from offbeat.cache.quantized import Levels, Range, Rounding
from offbeat.compression.bits import Bits


@dataclass(kw_only=True)
class MFCA2FL(CachedCalibration):
    """MF-CA²FL (Wang et al., FL-ICML 2023, appendix C): CA²FL with a quantized cache."""

    bits: Bits = 4
    """Bits per cached number in memory."""
    levels: Levels = None
    """Number of levels of Q, at most 2^bits, which is the default."""
    rounding: Rounding = "stochastic"
    """Rounding to one of the two adjacent levels: at random and unbiased, or to the nearest, and up from the middle."""
    range: Range = "vector"
    """Whether the levels lie between the ends of the whole Δ_i, or of each tensor of the model."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.cache = Quantized(bits=self.bits, levels=self.levels, rounding=self.rounding, range=self.range)
