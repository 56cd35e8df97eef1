"""The two messages of federated learning: a `Job` from the server to a client, and an `Update` back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar, dataclass_transform

from torch import Tensor

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(kind: type[T]) -> type[T]:
    """Make a class an immutable record.

    mypy enforces immutability. At run time the dataclass is not frozen: creating a frozen one takes several times as
    long, and the loop creates a handful of records per event.
    """
    return dataclass(slots=True)(kind)


@record
class Job:
    """A request to train. All jobs of one version share `x`, which is never copied and never modified."""

    id: int
    client: int
    version: int  # version of x
    x: Tensor
    steps: int  # local steps that the server requests
    seed: int  # determines everything random about this job
    rate: float = 1.0  # factor of the client's learning rate
    peer_seconds: float = 0.0  # time spent on communication with other clients
    compression_rate: float | None = None  # overrides the codec's own rate
    extra: Mapping[str, Tensor] = field(default_factory=dict)  # auxiliary vectors sent along with x
    last_accepted_job: int | None = None  # the client's last accepted job, 0 for none; None where all are accepted


@record
class Update:
    """The result of a job: delta = x_K − x, which points downhill.

    Nobody modifies an update's tensors after it was handed over. An update cache may therefore keep them without a
    copy.
    """

    job: int
    client: int
    version: int  # version that the client started from
    delta: Tensor
    steps: int  # local steps that the client performed
    examples: int  # number of the client's training examples
    wire_bytes: int  # size of the upload
    extra: Mapping[str, Tensor] = field(default_factory=dict)  # auxiliary vectors
    loss: float = math.nan  # mean training loss over the local steps; NaN if it is not known


def parts(message: Any) -> dict[str, Any]:
    """Return a record as a dict that shares its tensors; `dataclasses.asdict` would copy them."""
    return {field.name: getattr(message, field.name) for field in fields(message)}
