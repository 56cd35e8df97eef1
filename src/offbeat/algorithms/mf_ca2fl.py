"""MF-CA²FL, the memory-friendly CA²FL.  Wang et al., ICLR 2024, appendix C.

As CA²FL, but the server keeps h_i = Q(Δ_i) with `bits` bits a number, really packed:

    Q     unbiased stochastic uniform quantisation, 2^bits levels between min Δ_i and max Δ_i
    h     cache.mean, the mean of the stored (quantized) h_i
    v     h + (1/|S_t|) Σ_{i∈S_t} (Δ_i − h_i), with the fresh Δ_i unquantised
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from offbeat.algorithms.base import Algorithm
from offbeat.cache import Quantized
from offbeat.compression.bits import Bits
from offbeat.messages import Job, Update
from offbeat.random import key


@dataclass(kw_only=True)
class MFCA2FL(Algorithm):
    bits: Bits = 4
    """Bits a stored number."""

    schedulers: ClassVar[tuple[str, ...]] = (
        "buffered",
        "continuous",
        "per-arrival",
        "rounds",
        "available",
        "periodic",
        "anarchic",
    )
    state_names: ClassVar[tuple[str, ...]] = ("cache", "fresh")

    def reset(self) -> None:
        self.cache = Quantized(bits=self.bits)
        self.cache.start(self.x, self.clients)
        self.fresh: list[tuple[int, Tensor]] = []  # S_t

    def accumulate(self, job: Job, update: Update) -> None:
        self.fresh.append((update.client, update.delta))

    def pseudo_gradient(self) -> Tensor:
        # h and Σ (Δ_i − h_i) over S_t, then line 11: h_i ← Q(Δ_i) for S_t, all in one pass.
        h, differences = self.cache.replace(self.fresh, lambda place: key(self.seed, "store", self.version, place))
        self.fresh = []
        return h.add_(differences, alpha=1 / self.received)  # line 9
