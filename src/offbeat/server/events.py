"""What a transport reports, and what the loop made of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from offbeat.messages import Job, Update, record
from offbeat.server.validation import Reason


@record
class Arrival:
    """An update came back."""

    job: Job
    update: Update
    sent: float  # when the job left


@record
class Lost:
    """The server has given a trip up; its client is free again."""

    job: Job
    sent: float
    reason: str = ""  # as far as it is known
    unreadable: bool = False  # something came, and could not be decoded


@record
class Tick:
    """A moment that was asked for with `wake`; `client` is the one that joins by its own will, if any."""

    client: int | None = None


Event = Arrival | Lost | Tick


class Transport(Protocol):
    """Carries jobs out and updates back: simulated (it moves a virtual clock) or real (it waits)."""

    untrusted: bool = True
    """Whether the numbers of updates may be anything: they come from others."""

    @property
    def now(self) -> float: ...

    def send(self, jobs: Sequence[Job]) -> None: ...

    def wake(self, at: float, client: int | None = None) -> None:
        """Ask for a `Tick` at that time."""

    def receive(self) -> Event:
        """The next event, in order of time."""


@record
class Outcome:
    """One turn of the loop: the event, what became of it, and whether the server stepped."""

    now: float
    event: Event
    staleness: int  # of an arrival
    aggregated: bool  # an arrival that the algorithm took in; a late one in synchronous rounds is not
    stepped: bool  # a new version was made
    refused: Reason | None = None  # why what came was not let in
