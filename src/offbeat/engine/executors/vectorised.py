"""All clients at once: parameters stacked (n, d), one forward pass for the whole stack.

Clients that do fewer steps than others and batches that are shorter than others are masked: the stack is sorted by
falling number of steps, so those still at work are always its first rows, and padding has weight zero in the loss.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offbeat.clients import ClientRule, State
from offbeat.engine.executors.base import Executor, Outcome, Piece, Plan, Task, Trained, outcome, replayable
from offbeat.engine.executors.program import Programs, shares
from offbeat.engine.executors.stacked import Stack
from offbeat.engine.executors.walk import Walk
from offbeat.engine.work import Work
from offbeat.seeds import key

# Of parameters in one stack on a CPU: more do not stay in the cache, with all that goes with them.
CACHE_BYTES = 6 << 20


class Vectorised(Executor):
    """On a CPU step by step; on a GPU the step is compiled and captured once for each size of a stack."""

    def __init__(self, work: Work, compiled: bool = True) -> None:
        super().__init__(work)
        self.stack, self.compiled = Stack(work), compiled and work.device.type == "cuda"
        self.programs = Programs()
        self.stream = torch.cuda.Stream() if work.device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.rows = height(work, self.bulk)
        self.sample = min(self.bulk, 2 * self.rows)

    def train_all(self, tasks: Sequence[Task]) -> list[Outcome]:
        self.work.module.train()
        outcomes: dict[int, Outcome] = {}
        for places in evenly(tasks, self.rows, 1):
            part = [tasks[i] for i in places]
            trained = self.local_work([Piece.of(task) for task in part], plan(part))
            outcomes |= {i: outcome(tasks[i], *result) for i, result in zip(places, trained, strict=True)}
        return [outcomes[i] for i in range(len(tasks))]

    def local_work(self, pieces: Sequence[Piece], plan: Plan) -> Iterator[Trained]:
        """Jobs of like rules, sorted by falling number of steps, from begin to finish."""
        rule, jobs = pieces[0].rule, [piece.job for piece in pieces]
        x = torch.stack([job.x for job in jobs])
        lr = x.new_tensor([[piece.rule.lr * piece.job.rate] for piece in pieces])
        steps = np.array([job.steps for job in jobs])
        state = rule.begin(x, rows(job.extra for job in jobs), rows(piece.kept for piece in pieces))
        with replayable(key(*(job.seed for job in jobs)), self.work.device):
            y, state = self._steps(rule, x, lr, steps, state, *plan)
        sent, kept = rule.finish(y, x, lr, x.new_tensor(steps)[:, None], state)
        # Each row its own memory: one slow update in flight must not keep the whole stack alive.
        deltas = torch._foreach_sub(y.unbind(), x.unbind())
        beside = [
            [{name: v[row].clone() for name, v in part.items()} for part in (sent, kept)] for row in range(len(x))
        ]
        finite = torch.isfinite(y.sum(dim=1)).tolist()  # waits for the device, once a stack
        for good, delta, (own, left) in zip(finite, deltas, beside, strict=True):
            yield good, delta, own, left

    def _steps(
        self, rule: ClientRule, x: Tensor, lr: Tensor, steps: NDArray[np.int64], state: State,
        batches: NDArray[np.int64], counts: NDArray[np.int64],
    ) -> tuple[Tensor, State]:  # fmt: skip
        if self.work.device.type == "cuda":
            program = self.programs.get(self.stack.loss, rule, x, batches, state, self.stream, self.compiled)
            return program.run(x, lr, steps, state, batches, counts)
        index, weights = torch.from_numpy(batches), torch.from_numpy(shares(batches, counts)).to(x.dtype)
        walk = Walk(rule, self.work.layout, x, state)
        for t in range(int(steps[0])):
            n = int(np.searchsorted(-steps, -t))  # rows that do more than t steps
            leaves = walk.leaves(n)
            walk.step(self.stack.loss_of(walk.parameters(leaves), index[t, :n], weights[t, :n]), leaves, lr[:n])
        return walk.end()


def height(work: Work, bulk: int) -> int:
    """Most rows of one stack that are worth it."""
    return bulk if work.device.type == "cuda" else max(2, CACHE_BYTES // (4 * max(1, work.layout.dim)))


def stacks(tasks: Sequence[Task], most: int) -> list[list[int]]:
    """Places of the tasks that train together: like rules, at most so many, sorted by falling number of steps."""
    parts = []
    for places in alike([work.rule for work, _ in tasks]):
        order = sorted(places, key=lambda i: -tasks[i][1].steps)
        parts += [order[first : first + most] for first in range(0, len(order), most)]
    return parts


def evenly(tasks: Sequence[Task], most: int, workers: int) -> list[list[int]]:
    """Such places for several workers: as few stacks as hold at most so many, and a multiple of the workers."""
    turns = -(-len(tasks) // (most * workers))
    return stacks(tasks, -(-len(tasks) // (turns * workers)))


def alike(rules: Sequence[ClientRule]) -> list[list[int]]:
    """Places of the rules that can step together: equal but for the rate, which is each row's own."""
    groups: dict[ClientRule, list[int]] = {}
    known: dict[int, ClientRule] = {}
    for place, rule in enumerate(rules):
        if id(rule) not in known:
            known[id(rule)] = dataclasses.replace(rule, lr=1.0)
        groups.setdefault(known[id(rule)], []).append(place)
    return list(groups.values())


def plan(tasks: Sequence[Task]) -> Plan:
    """Indices into the data set (most steps, n, B), and how many of each row count (most steps, n)."""
    works = {id(work): work for work, _ in tasks}
    parts = []
    for name, work in works.items():
        own = [row for row, task in enumerate(tasks) if id(task[0]) == name]
        parts.append((own, *work.plans([tasks[row][1] for row in own])))
    if len(parts) == 1:
        return parts[0][1:]
    most, width = max(p[1].shape[0] for p in parts), max(p[1].shape[2] for p in parts)
    shape = (most, len(tasks), width, *parts[0][1].shape[3:])
    batches, counts = np.zeros(shape, dtype=np.int64), np.zeros(shape[:2], dtype=np.int64)
    for own, index, count in parts:
        batches[: len(index), own, : index.shape[2]] = index
        counts[: len(count), own] = count
    return batches, counts


def rows(vectors: Iterable[Mapping[str, Tensor]]) -> State:
    """Named vectors of each row → named (n, d)."""
    listed = list(vectors)
    return {name: torch.stack([row[name] for row in listed]) for name in listed[0]}
