"""The personal parts of the clients' models, stored as client state."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from offbeat.client.context import TrainingContext
from offbeat.client.rules import HEAD_STEPS, State
from offbeat.client.state import ClientState
from offbeat.client.training import Trained
from offbeat.messages import Job
from offbeat.server.extensions import BUFFERS

PERSONAL, PERSONAL_BUFFERS = "personal", "personal-buffers"  # the client state that holds p_i and its statistics


class PersonalPart:
    """Joins x with the personal part of a client before training, and separates the two afterwards.

    Args:
        context: The model and what stays on the clients.
        state: The clients' state.
    """

    def __init__(self, context: TrainingContext, state: ClientState) -> None:
        self.context, self.split, self.state = context, context.split, state

    def joined(
        self, job: Job, client_state: State, values: Mapping[str, Tensor | None] | None = None
    ) -> tuple[Job, State]:
        """Return a job that trains [x, p_i], and the client's state in the same dimension.

        Args:
            job: The job as it was sent.
            client_state: The state of the client rule.
            values: The client's state from which to take p_i; by default the current one.
        """
        split, head_steps = self.split, self.context.personalization.head_steps
        own, statistics = self.of(job.client, values)
        extra = {name: split.longer(value) for name, value in job.extra.items() if name != BUFFERS}
        if split.buffers.names:
            received = (job.extra[BUFFERS],) if split.shared_buffers.names else ()
            extra[BUFFERS] = torch.cat([*received, statistics])
        state = {name: split.longer(value) for name, value in client_state.items()}
        if head_steps:  # local work may be cut short; at least one step is on x
            state[HEAD_STEPS] = job.x.new_tensor([min(head_steps, job.steps - 1)])
        return dataclasses.replace(job, x=torch.cat([job.x, own]), extra=extra), state

    def separated(self, job: Job, trained: Trained) -> Trained:
        """Return a trained job's result as the server sees it, with the new p_i among the client's state."""
        split = self.split
        own, _ = self.of(job.client)
        whole = self.context.rule.own_loop  # such a rule stores what it likes
        state = {name: value if whole else split.shorter(value) for name, value in trained.client_state.items()}
        state[PERSONAL] = own + trained.delta[split.shared.dim :]
        extra = {name: split.shorter(value) for name, value in trained.extra.items() if name != BUFFERS}
        if split.buffers.names:
            buffers, cut = trained.extra[BUFFERS], split.shared_buffers.dim
            state[PERSONAL_BUFFERS] = buffers[cut:].clone()
            extra |= {BUFFERS: buffers[:cut].clone()} if cut else {}
        return trained._replace(delta=split.shorter(trained.delta), extra=extra, client_state=state)

    def of(self, client: int, values: Mapping[str, Tensor | None] | None = None) -> tuple[Tensor, Tensor]:
        """Return a client's p_i and its running statistics; initially those of the model."""
        names = (PERSONAL, PERSONAL_BUFFERS)
        stored = (self.state.get(name, client) if values is None else values[name] for name in names)
        own, statistics = (
            first if found is None else found for first, found in zip(self.split.first, stored, strict=True)
        )
        return own, statistics
