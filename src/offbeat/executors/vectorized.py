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

from offbeat.client.context import TrainingContext
from offbeat.client.local_step import LocalStepper
from offbeat.client.rules import ClientRule, State
from offbeat.client.runtime import ClientRuntime
from offbeat.client.training import Plan, Trained, WorkItem, seeded_generators
from offbeat.executors.base import Executor, Task, TrainingOutcome, outcome
from offbeat.executors.cpu_threads import StackThreads, cores, worker_count
from offbeat.executors.gpu.program import Programs, shares
from offbeat.executors.stacked import Stack
from offbeat.random import key

# Of parameters in one stack on a CPU: more do not stay in the cache, with all that goes with them.  Plain steps
# without weight decay have no gradients beside them.
CACHE_BYTES, PLAIN_BYTES = 6 << 20, 20 << 20


class Vectorized(Executor):
    """On a CPU step by step, a stack on each core; on a GPU the step is compiled and captured once for each size of a
    stack."""

    def __init__(self, runtime: ClientRuntime, compiled: bool = True) -> None:
        super().__init__(runtime)
        context = runtime.context
        self.stack, self.compiled = Stack(context), compiled and context.device.type == "cuda"
        self.programs = Programs()
        self.stream = torch.cuda.Stream() if context.device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.rows = height(context, self.bulk)
        self.sample = min(self.bulk, 2 * self.rows * cores())
        self._lanes: StackThreads | None = None

    def train_all(self, tasks: Sequence[Task]) -> list[TrainingOutcome]:
        if not tasks:
            return []
        self.context.module.train()
        outcomes: dict[int, TrainingOutcome] = {}
        cpu_threads = self.cpu_threads(tasks)
        parts = stacks(tasks, self.rows, cpu_threads)
        orders = (
            ([tasks[i][0].item(tasks[i][1]) for i in places], plan([tasks[i] for i in places])) for places in parts
        )
        if cpu_threads == 1:
            results: Iterable[Iterable[Trained]] = (self.local_work(*order) for order in orders)
        else:
            self._lanes = self._lanes or StackThreads([Vectorized(self.runtime).local_work for _ in range(cores())])
            results = self._lanes.train(orders)
        for places, trained in zip(parts, results, strict=True):
            outcomes |= {i: outcome(tasks[i], *result) for i, result in zip(places, trained, strict=True)}
        return [outcomes[i] for i in range(len(tasks))]

    def close(self) -> None:
        if self._lanes is not None:
            self._lanes.close()
        self._lanes = None

    def cpu_threads(self, tasks: Sequence[Task]) -> int:
        """How many stacks are worth training at the same time."""
        if self.context.device.type != "cpu" or not self.stack.independent:
            return 1
        widest = max(
            min(runtime.context.rule.batch_size, runtime.context.data.size(job.client)) for runtime, job in tasks
        )
        return worker_count(len(tasks), self.rows, widest * self.context.layout.dim)

    def local_work(self, items: Sequence[WorkItem], plan: Plan) -> Iterator[Trained]:
        """Jobs of like rules, sorted by falling number of steps, from begin to finish."""
        rule, jobs = items[0].rule, [item.job for item in items]
        x = _stacked([job.x for job in jobs])
        lr = x.new_tensor([[item.rule.lr * item.job.rate] for item in items])
        steps = np.array([job.steps for job in jobs])
        state = rule.begin(x, rows(job.extra for job in jobs), rows(item.client_state for item in items))
        with seeded_generators(key(*(job.seed for job in jobs)), self.context.device):
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
        if self.context.device.type == "cuda":
            program = self.programs.get(
                self.stack.loss_of, self.context.layout, rule, x, batches, state, self.stream, self.compiled
            )
            return program.run(x, lr, steps, state, batches, counts)
        index, weights = torch.from_numpy(batches), torch.from_numpy(shares(batches, counts)).to(x.dtype)
        walk = LocalStepper(rule, self.context.layout, x, state, self.stack.factors)
        for t in range(int(steps[0])):
            n = int(np.searchsorted(-steps, -t))  # rows that do more than t steps
            leaves = walk.leaves(n)
            walk.step(self.stack.loss_of(walk.parameters(leaves), index[t, :n], weights[t, :n]), leaves, lr[:n])
        return walk.end()


def height(context: TrainingContext, bulk: int) -> int:
    """Most rows of one stack that are worth it."""
    cache = PLAIN_BYTES if context.rule.plain and not context.rule.weight_decay else CACHE_BYTES
    return bulk if context.device.type == "cuda" else max(2, cache // (4 * max(1, context.layout.dim)))


def stacks(tasks: Sequence[Task], most: int, workers: int = 1) -> list[list[int]]:
    """Places of the tasks that train together: like rules, at most so many, sorted by falling number of steps.

    Of each rule as few stacks as will do, about equally high, and a multiple of the workers.
    """
    parts = []
    for places in alike([runtime.context.rule for runtime, _ in tasks]):
        order = sorted(places, key=lambda i: -tasks[i][1].steps)
        turns = -(-len(order) // (most * workers))
        each = -(-len(order) // (turns * workers))
        parts += [order[first : first + each] for first in range(0, len(order), each)]
    return parts


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
    runtimes = {id(runtime): runtime for runtime, _ in tasks}
    parts = []
    for name, runtime in runtimes.items():
        own = [row for row, task in enumerate(tasks) if id(task[0]) == name]
        parts.append((own, *runtime.context.plans([tasks[row][1] for row in own])))
    if len(parts) == 1:
        return parts[0][1:]
    most, width = max(p[1].shape[0] for p in parts), max(p[1].shape[2] for p in parts)
    shape = (most, len(tasks), width, *parts[0][1].shape[3:])
    batches, counts = np.zeros(shape, dtype=np.int64), np.zeros(shape[:2], dtype=np.int64)
    for own, index, count in parts:
        batches[: len(index), own, : index.shape[2]] = index
        counts[: len(count), own] = count
    return batches, counts


def _stacked(xs: Sequence[Tensor]) -> Tensor:
    """(n, d), without a copy where all are one."""
    return xs[0].expand(len(xs), -1) if all(x is xs[0] for x in xs) else torch.stack(list(xs))


def rows(vectors: Iterable[Mapping[str, Tensor]]) -> State:
    """Named vectors of each row → named (n, d)."""
    listed = list(vectors)
    return {name: torch.stack([row[name] for row in listed]) for name in listed[0]}
