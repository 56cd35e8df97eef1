"""MF-CA²FL, the memory-friendly CA²FL.  Wang et al., ICLR 2024, appendix C.

As CA²FL, but the server keeps h_i = Q(Δ_i) with `bits` bits a number, really packed:

    Q     unbiased stochastic uniform quantisation, 2^bits levels between min Δ_i and max Δ_i
    h     memory.mean, the mean of the stored (quantised) h_i
    v     h + (1/|S_t|) Σ_{i∈S_t} (Δ_i − h_i), with the fresh Δ_i unquantised
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from offbeat.algorithms.base import Algorithm
from offbeat.compression.bits import Bits
from offbeat.memory import Quantised
from offbeat.messages import Job, Update
from offbeat.seeds import key


@dataclass(kw_only=True)
class MFCA2FL(Algorithm):
    bits: Bits = 4
    """Bits a stored number."""

    dispatches: ClassVar[tuple[str, ...]] = (
        "buffered",
        "keep-busy",
        "per-arrival",
        "rounds",
        "available",
        "periodic",
        "anarchic",
    )
    state_names: ClassVar[tuple[str, ...]] = ("memory", "calibrated", "fresh")

    def reset(self) -> None:
        self.memory = Quantised(bits=self.bits)
        self.memory.start(self.x, self.clients)
        self.clear()

    def clear(self) -> None:
        self.calibrated = self.x.new_zeros(self.x.shape)
        self.fresh: list[tuple[int, Tensor]] = []

    def absorb(self, job: Job, update: Update) -> None:
        self.calibrated.add_(self.memory.difference(update.client, update.delta))
        self.fresh.append((update.client, update.delta))

    def direction(self) -> Tensor:
        v = self.memory.mean + self.calibrated / self.received
        for place, (client, delta) in enumerate(self.fresh):
            self.memory.store(client, delta, key(self.seed, "store", self.version, place))
        self.clear()
        return v
