"""What the loop of a run meets: simulated clients, or real ones."""

from __future__ import annotations

import copy
import pathlib
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from offbeat.algorithms import Algorithm
from offbeat.clients import BUFFERS
from offbeat.engine import Loop, Terms, Transport
from offbeat.experiments.experiment import Assembly
from offbeat.memory import Disk
from offbeat.messages import Job, Update
from offbeat.world import World

MEMORY = "memory"  # folder of a memory on disk


class Carrier(Transport, Protocol):
    """A transport for whole runs: it has a state.  One in virtual time also wants jobs to be trained."""

    bytes_down: int

    @property
    def next_at(self) -> float:
        return self.now

    def wanted(self) -> list[Job]:
        return []

    def deliver(self, updates: Sequence[Update]) -> None:
        raise AssertionError("nothing was wanted")

    @abstractmethod
    def state_dict(self) -> dict[str, Any]: ...

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class Reality:
    """Who is there, what is asked of a client, how x goes out, and what the server's own draws follow from."""

    world: World
    terms: Callable[[int], Terms]
    outgoing: Callable[[Tensor, int], Tensor]
    seed: Callable[[Algorithm], int]

    @classmethod
    def simulated(cls, assembly: Assembly) -> Reality:
        return cls(assembly.world, assembly.terms, assembly.work.outgoing, lambda _: assembly.experiment.seed)

    def loop(self, assembly: Assembly, transport: Transport, place: pathlib.Path | None = None) -> Loop:
        """The loop at the beginning of a run that keeps its files in a place."""
        experiment, work = assembly.experiment, assembly.work
        algorithm, dispatch = copy.deepcopy(experiment.algorithm), copy.deepcopy(experiment.dispatch)
        memory = getattr(algorithm, "memory", None)
        if isinstance(memory, Disk) and not memory.directory and place is not None:
            memory.directory = str(place / MEMORY)  # where a resumed run finds it again
        clients, x, half = work.data.clients, work.layout.read(work.module), work.server_half()
        beside = dict.fromkeys(work.rule.sends, x.numel()) | ({BUFFERS: work.buffers.dim} if work.buffers.names else {})
        loop = Loop(
            algorithm, dispatch, self.world, transport, clients, self.terms, experiment.seed, half, experiment.gate,
            beside, self.outgoing, bool(work.rule.keeps) or experiment.compression.error_feedback,
        )  # fmt: skip
        algorithm.start(x, clients, self.seed(algorithm), assembly.world.availability.probability_of, dispatch.updates)
        if half is not None:
            half.start(x, clients)
        return loop
