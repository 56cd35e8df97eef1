"""Encoding of updates: a codec with optional error feedback, to a tensor or to bytes."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from offbeat.client.state import ClientState
from offbeat.compression import Compression
from offbeat.messages import Job, Update
from offbeat.payload import encode_update
from offbeat.vectors import Layout

RESIDUAL = "error"  # the client state that error feedback keeps


class UpdateEncoder:
    """Turns Δ into what the server receives.

    With error feedback, what compression drops is stored as the client's residual and added to its next update.

    Args:
        compression: The codecs and whether error feedback is on.
        layout: Layout of the model's vector.
        state: The clients' state, which holds the residuals.
    """

    def __init__(self, compression: Compression, layout: Layout, state: ClientState) -> None:
        self.compression, self.layout, self.state = compression, layout, state

    def to_tensor(self, job: Job, delta: Tensor) -> Tensor:
        """Return Δ as the server decodes it."""
        delta = self._with_residual(job, delta)
        decoded = self.compression.upload.carry(delta, self.layout, job.seed, job.compression_rate)
        self._store_residual(job, delta, decoded)
        return decoded

    def to_bytes(self, job: Job, update: Update) -> bytes:
        """Return an update as the payload that a client sends; its Δ is not encoded yet."""
        delta, codec = self._with_residual(job, update.delta), self.compression.upload
        payload = encode_update(dataclasses.replace(update, delta=delta), codec, self.layout, job)
        if self.compression.error_feedback:
            self._store_residual(job, delta, codec.carry(delta, self.layout, job.seed, job.compression_rate))
        return payload

    def upload_bytes(self, job: Job) -> int:
        """Return the size of the encoded Δ of a job's update."""
        return self.compression.upload.size(self.layout, job.compression_rate)

    def _with_residual(self, job: Job, delta: Tensor) -> Tensor:
        residual = self.state.get(RESIDUAL, job.client) if self.compression.error_feedback else None
        return delta if residual is None else delta + residual

    def _store_residual(self, job: Job, delta: Tensor, decoded: Tensor) -> None:
        if self.compression.error_feedback:
            self.state.set(RESIDUAL, job.client, delta - decoded)
