"""The two things that travel: a `Job` from the server to a client, an `Update` back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar, dataclass_transform

from torch import Tensor

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(kind: type[T]) -> type[T]:
    """A dataclass that is never changed once it is made.

    mypy sees to that.  At run time it is not frozen: a frozen one takes several times as long to make, and the loop
    makes a handful of them for every event.
    """
    return dataclass(slots=True)(kind)


@record
class Job:
    """A request to train.  `x` is shared between all jobs of one version, never copied and never changed."""

    id: int
    client: int
    version: int  # of x: what the client downloads
    x: Tensor
    steps: int  # local steps that the client is asked for
    seed: int  # everything random about this trip follows from it
    rate: float = 1.0  # the client's local rate is multiplied by this
    peer_seconds: float = 0.0  # what talking to other clients takes
    compression_rate: float | None = None  # instead of the codec's own
    extra: Mapping[str, Tensor] = field(default_factory=dict)  # what goes down beside x
    last_accepted_job: int | None = (
        None  # the client's last job whose update was let in, 0 for none; None where none is refused
    )


@record
class Update:
    """What a client did with a job: delta = x_K − x, pointing downhill.

    An update's tensors are its own and are never changed after they were handed over, by nobody: who wants to keep
    them, such as a server's memory, need not copy.
    """

    job: int
    client: int
    version: int  # the version it started from
    delta: Tensor
    steps: int  # local steps that it really did
    examples: int  # size of its data
    wire_bytes: int  # what the upload cost
    extra: Mapping[str, Tensor] = field(default_factory=dict)


def parts(message: Any) -> dict[str, Any]:
    """A record as a dict whose tensors are still shared (`dataclasses.asdict` would copy them)."""
    return {field.name: getattr(message, field.name) for field in fields(message)}
