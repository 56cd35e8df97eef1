"""MF-CA²FL: memory-friendly CA²FL. Wang et al., ICLR 2024, appendix C.

    Q     unbiased stochastic uniform quantization with 2^bits levels between min Δ_i and max Δ_i
    h_i   Q(Δ_i), packed into `bits` bits per number
    h     cache.mean, the mean of the stored (quantized) h_i
    v     h + (1/|S_t|) Σ_{i∈S_t} (Δ_i − h_i), where the fresh Δ_i are not quantized

This is CA²FL with a quantized cache: `ca2fl` with `cache = { name = "quantized", bits = 4 }` gives the same models.
"""

from __future__ import annotations

from dataclasses import dataclass

from offbeat.algorithms.ca2fl import CachedCalibration
from offbeat.cache import Quantized
from offbeat.compression.bits import Bits


@dataclass(kw_only=True)
class MFCA2FL(CachedCalibration):
    """MF-CA²FL (Wang et al., ICLR 2024, appendix C): CA²FL with a quantized cache."""

    bits: Bits = 4
    """Bits per cached number."""

    def reset(self) -> None:
        """Start CA²FL with an empty quantized cache."""
        self.cache = Quantized(bits=self.bits)
        super().reset()
