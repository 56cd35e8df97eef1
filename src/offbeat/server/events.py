"""Events that a transport reports, and the outcome of each turn of the loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from offbeat.messages import Job, Update, record
from offbeat.server.validation import Reason


@record
class Arrival:
    """An update has arrived."""

    job: Job
    update: Update
    sent: float  # time at which the job was sent


@record
class Lost:
    """A job failed or timed out; its client is idle again."""

    job: Job
    sent: float
    reason: str = ""  # empty if unknown
    unreadable: bool = False  # whether a reply arrived that could not be decoded


@record
class Tick:
    """A requested wake-up; `client` is set if it is an anarchic client that joins."""

    client: int | None = None


Event = Arrival | Lost | Tick


class Transport(Protocol):
    """Delivers jobs and updates, either in virtual time or in real time."""

    untrusted: bool = True
    """Whether updates come from outside, so that their values must be checked."""

    @property
    def now(self) -> float:
        """Current time in seconds."""

    def send(self, jobs: Sequence[Job]) -> None:
        """Send jobs to their clients."""

    def wake(self, at: float, client: int | None = None) -> None:
        """Request a `Tick` at the given time."""

    def receive(self) -> Event:
        """Return the next event in order of time."""


@record
class Outcome:
    """One turn of the loop: the event, how it was handled, and whether the server stepped."""

    now: float
    event: Event
    staleness: int  # of an arrival
    aggregated: bool  # whether the algorithm received the update; it does not if a synchronous round is over
    stepped: bool  # whether there is a new version
    refused: Reason | None = None  # why the update was rejected
