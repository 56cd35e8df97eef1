"""The client runtime: what happens to a job at a client, in the simulator and on a Flower node alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from offbeat.client.context import TrainingContext
from offbeat.client.encoder import RESIDUAL, UpdateEncoder
from offbeat.client.personal_part import PERSONAL, PERSONAL_BUFFERS, PersonalPart
from offbeat.client.rules import State, checked_initial_state
from offbeat.client.state import ClientState
from offbeat.client.training import Trained, WorkItem, train_job
from offbeat.compression import Compression
from offbeat.messages import Job, Update
from offbeat.random import key
from offbeat.server.extensions import BUFFERS, CompositeExtension, RunningStatistics, ServerExtension


class DeltaEncoder(Protocol):
    """Turns a job's Δ into the Δ that the server decodes."""

    def __call__(self, job: Job, delta: Tensor) -> Tensor:
        """Return the Δ that the server decodes."""


class ClientRuntime:
    """Job → Update: client state before training, encoding and bookkeeping after it.

    An executor does the training in between, for one job or for a stack of them.

    Args:
        context: Model, data, rule and device.
        compression: Codecs of uploads and downloads; none when left out.
    """

    def __init__(self, context: TrainingContext, compression: Compression | None = None) -> None:
        self.context = context
        self.compression = compression or Compression()
        own = (PERSONAL, PERSONAL_BUFFERS) if context.split.any else ()
        self.state = ClientState((*context.rule.client_state, RESIDUAL, *own))
        self.personal = PersonalPart(context, self.state) if context.split.any else None
        self.encoder = UpdateEncoder(self.compression, context.split.shared, self.state)
        self.encode: DeltaEncoder = self.encoder.to_tensor

    @property
    def stateful(self) -> bool:
        """Whether clients keep anything between jobs, so that they need to know which updates were accepted."""
        return bool(self.context.rule.client_state) or self.compression.error_feedback or self.personal is not None

    def begin(self, job: Job) -> State:
        """Return the client state with which a job starts, rolled back where its last update was not accepted."""
        self.state.roll_back(job)
        return self.rule_state(job, {name: self.state.get(name, job.client) for name in self.context.rule.client_state})

    def rule_state(self, job: Job, stored: Mapping[str, Tensor | None]) -> State:
        """Return the state of the client rule among what a client has stored; initially what the rule says."""
        rule = self.context.rule
        known = {name: value for name in rule.client_state if (value := stored[name]) is not None}
        return known if len(known) == len(rule.client_state) else checked_initial_state(rule, job.x) | known

    def finish(self, job: Job, trained: Trained) -> Update:
        """Store the client's new state and return its update, encoded as the server will see it."""
        trained = self._stored(job, trained)
        return self.message(job, self.encode(job, trained.delta), trained)

    def item(self, job: Job) -> WorkItem:
        """Return a job with everything that its training needs."""
        state = self.begin(job)
        if self.personal is not None:
            job, state = self.personal.joined(job, state)
        return WorkItem(self.context.rule, job, state)

    def _stored(self, job: Job, trained: Trained) -> Trained:
        """Store the client's new state and return what it sends."""
        if self.personal is not None:
            trained = self.personal.separated(job, trained)
        self.state.update(job, trained.client_state)
        return trained

    def train_to_bytes(self, job: Job) -> tuple[Update, bytes]:
        """Train one job here and return its update and the payload to send, as a Flower node does.

        Raises:
            DivergenceError: Training produced an update that is not finite.
        """
        self.context.module.train()
        trained = train_job(self.context, self.item(job), self.context.plan(job))
        if not trained.finite:
            raise self.context.divergence(job)
        trained = self._stored(job, trained)
        update = self.message(job, trained.delta, trained)
        return update, self.encoder.to_bytes(job, update)

    def message(self, job: Job, delta: Tensor, trained: Trained) -> Update:
        """Return a trained job's result as a message, with Δ as it travels."""
        return Update(
            job=job.id, client=job.client, version=job.version, delta=delta, steps=job.steps,
            examples=self.context.data.size(job.client), wire_bytes=self.upload_bytes(job), extra=trained.extra,
            loss=trained.loss,
        )  # fmt: skip

    def upload_bytes(self, job: Job) -> int:
        """Return the size of a job's update: the encoded Δ and the auxiliary vectors, which travel as they are."""
        return self.encoder.upload_bytes(job) + 4 * sum(self.auxiliary_sizes().values())

    def download_bytes(self, job: Job) -> int:
        """Return the size of what a client downloads with a job."""
        size = self.compression.download.size(self.context.split.shared)
        return size + sum(t.nbytes for t in job.extra.values())

    def outgoing(self, x: Tensor, version: int) -> Tensor:
        """Return x as clients decode it."""
        return self.compression.download.carry(x, self.context.split.shared, key("download", version))

    def auxiliary_sizes(self) -> dict[str, int]:
        """Return the sizes of the vectors that an update carries in addition to Δ."""
        split = self.context.split
        sizes = dict.fromkeys(self.context.rule.sends, split.shared.dim)
        return sizes | ({BUFFERS: split.shared_buffers.dim} if split.shared_buffers.names else {})

    def server_extension(self) -> ServerExtension | None:
        """Return the server's counterpart of the auxiliary vectors: of the client rule, and of running statistics."""
        context = self.context
        extensions = [extension for extension in (context.rule.server(),) if extension is not None]
        if context.split.shared_buffers.names:
            extensions.append(RunningStatistics(context.split.shared_buffers.read(context.module)))
        return CompositeExtension(extensions) if len(extensions) > 1 else next(iter(extensions), None)

    def state_dict(self) -> dict[str, Any]:
        """Return the clients' state."""
        return self.state.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.state.load_state_dict(state)
