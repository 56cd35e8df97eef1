"""State that clients keep between jobs: control variates, counters, the residual of error feedback."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from torch import Tensor

from offbeat.messages import Job
from offbeat.stateful import Stateful

Snapshot = tuple[int, dict[str, Tensor | None]]  # a client's last job, and its state before that job


class ClientState(Stateful):
    """One tensor per name and client, of any shape, with rollback.

    A client's state changes when it has trained a job; a job that is lost in simulation is never trained and changes
    nothing. Where an update can be lost or rejected after training, the client's next job carries
    `last_accepted_job`, and the client rolls back to its state before the update that was not accepted. Otherwise
    SCAFFOLD's c would drift away from the mean of the c_i.

    Args:
        names: Names of the tensors that a client can keep.
    """

    state_names: ClassVar[tuple[str, ...]] = ("rows", "snapshots")

    def __init__(self, names: Iterable[str]) -> None:
        self.rows: dict[str, dict[int, Tensor]] = {name: {} for name in names}
        self.snapshots: dict[int, Snapshot] = {}

    def get(self, name: str, client: int) -> Tensor | None:
        """Return a client's tensor, or None before it has stored one."""
        return self.rows[name].get(client)

    def set(self, name: str, client: int, value: Tensor) -> None:
        """Store a client's tensor."""
        self.rows[name][client] = value

    def update(self, job: Job, values: Mapping[str, Tensor]) -> None:
        """Store the state after a trained job, with a snapshot for rollback where updates can be rejected."""
        self.roll_back(job)
        if job.last_accepted_job is not None:
            self.snapshots[job.client] = job.id, {name: rows.get(job.client) for name, rows in self.rows.items()}
        for name, value in values.items():
            self.set(name, job.client, value)

    def roll_back(self, job: Job) -> None:
        """Restore the client's state before its last job if the server did not accept that job's update."""
        last, before = self.snapshots.pop(job.client, (job.last_accepted_job, {}))
        for name, value in before.items() if last != job.last_accepted_job else ():
            if value is None:
                self.rows[name].pop(job.client, None)
            else:
                self.set(name, job.client, value)

    def accepted(self, client: int, last_accepted_job: int | None) -> dict[str, Tensor | None]:
        """Return a client's state after its last accepted job, whether or not it has trained since; changes nothing.

        Without a job, all are accepted.
        """
        now = {name: rows.get(client) for name, rows in self.rows.items()}
        last, before = self.snapshots.get(client, (last_accepted_job, {}))
        return now if last_accepted_job in (None, last) else now | before

    @property
    def nbytes(self) -> int:
        """Bytes of all stored tensors."""
        return sum(value.nbytes for rows in self.rows.values() for value in rows.values())
