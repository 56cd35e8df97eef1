"""One row of packed 8-, 4- or 2-bit numbers a client."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from offbeat.compression.bits import Bits, Packed, dequantise, quantise
from offbeat.memory.base import Memory
from offbeat.seeds import torch_stream


@dataclass(kw_only=True)
class Quantised(Memory):
    """h_i ← Q(Δ_i), really stored in bits/8·d bytes.  The mean is that of the *stored* entries."""

    bits: Bits = 4

    def __getitem__(self, client: int) -> Tensor:
        row = self.rows.get(client)
        return torch.zeros_like(self.like) if row is None else dequantise(Packed(*row), self.bits, self.like)

    def store(self, client: int, value: Tensor, key: int) -> None:
        noise = torch.rand(value.shape, generator=torch_stream(key, device=value.device), device=value.device)
        new = quantise(value, self.bits, noise)
        self.total.add_(dequantise(new, self.bits, self.like).sub_(self[client]))
        self.rows[client] = (new.codes, new.lo, new.u)

    @property
    def nbytes(self) -> int:
        return sum(codes.nbytes + 16 for codes, _, _ in self.rows.values())
