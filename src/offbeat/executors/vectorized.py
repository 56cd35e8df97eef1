"""The `vectorized` executor: parameters stacked (n, d), one forward pass for all clients of a stack.

Clients with fewer steps and shorter batches are masked: a stack is sorted by descending number of steps, so that the
active clients are always its first rows, and padding has weight zero in the loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offbeat.client.batches import forward_slices
from offbeat.client.context import TrainingContext
from offbeat.client.local_step import LocalStepper
from offbeat.client.rules import ClientRule, State
from offbeat.client.runtime import ClientRuntime
from offbeat.client.training import Plan, Trained, WorkItem, seeded_generators
from offbeat.executors import gpu
from offbeat.executors.base import Executor, Task
from offbeat.executors.cpu_threads import StackThreads, cores, worker_count
from offbeat.executors.stacked import Stack
from offbeat.random import key
from offbeat.server.extensions import BUFFERS

# Bytes of parameters in one stack on a CPU, so that the stack stays in the cache together with its gradients. Plain
# steps without weight decay never assemble the gradients.
CACHE_BYTES, PLAIN_CACHE_BYTES = 6 << 20, 20 << 20


class Vectorized(Executor):
    """Trains stacks of clients.

    On a CPU there is one stack per core. On a GPU the step is compiled and captured once per size of a stack.

    Attributes:
        rows: Maximum number of jobs per stack.

    Args:
        runtime: The client runtime of the run.
        compiled: Whether to compile steps on a GPU.
    """

    def __init__(self, runtime: ClientRuntime, compiled: bool = True) -> None:
        super().__init__(runtime)
        context = runtime.context
        self.stack, self.compiled = Stack(context), compiled and context.device.type == "cuda"
        self.programs = gpu.Programs()
        self.stream = torch.cuda.Stream() if context.device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.rows = height(context, self.bulk)
        self.sample = min(self.bulk, 2 * self.rows * cores())
        self._threads: StackThreads | None = None

    def local_results(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Trained]]:
        """Split the tasks into stacks and train these one after the other, or in threads."""
        if not tasks:
            return
        self.context.module.train()
        cpu_threads = self.cpu_threads(tasks)
        parts = stacks(tasks, self.rows, cpu_threads)
        work = ([tasks[i] for i in positions] for positions in parts)
        arguments = (([runtime.item(job) for runtime, job in part], plan(part)) for part in work)
        if cpu_threads == 1:
            results: Iterable[Iterable[Trained]] = (self.local_work(*each) for each in arguments)
        else:
            self._threads = self._threads or StackThreads([Vectorized(self.runtime).local_work for _ in range(cores())])
            results = self._threads.train(arguments)
        for positions, trained in zip(parts, results, strict=True):
            yield from zip(positions, trained, strict=True)

    def close(self) -> None:
        """End the threads."""
        if self._threads is not None:
            self._threads.close()
        self._threads = None

    def cpu_threads(self, tasks: Sequence[Task]) -> int:
        """Return the number of stacks to train at the same time."""
        if self.context.device.type != "cpu" or not self.stack.independent:
            return 1
        widest = max(
            min(runtime.context.rule.examples_per_step, runtime.context.data.size(job.client)) for runtime, job in tasks
        )
        return worker_count(len(tasks), self.rows, widest * self.context.layout.dim)

    def local_work(self, items: Sequence[WorkItem], plan: Plan) -> Iterator[Trained]:
        """Train one stack.

        Args:
            items: Jobs whose rules differ at most in the learning rate, sorted by descending number of steps.
            plan: Their batches.

        Yields:
            The result of each job.
        """
        rule, jobs = items[0].rule, [item.job for item in items]
        x = _stacked([job.x for job in jobs])
        lr = x.new_tensor([[item.rule.lr * item.job.rate] for item in items])
        steps = np.array([job.steps for job in jobs])
        received = rows(job.extra for job in jobs)
        buffers = self.context.received_buffers(received)
        state = rule.begin(x, received, rows(item.client_state for item in items))
        with seeded_generators(key(*(job.seed for job in jobs)), self.context.device):
            y, state, buffers, losses = self._steps(rule, x, lr, steps, state, buffers, *plan)
        extra, client_state = rule.finish(y, x, lr, x.new_tensor(steps)[:, None], state)
        if buffers is not None:
            extra = extra | {BUFFERS: buffers}
        # Each row gets its own memory: one slow update in flight must not keep the whole stack alive.
        deltas = torch._foreach_sub(y.unbind(), x.unbind())
        vectors = [
            [{name: v[row].clone() for name, v in part.items()} for part in (extra, client_state)]
            for row in range(len(x))
        ]
        finite, mean = torch.stack([torch.isfinite(y.sum(dim=1)), losses]).tolist()  # waits for the device, once
        for row, delta in enumerate(deltas):
            row_extra, row_state = vectors[row]
            yield Trained(bool(finite[row]), delta, row_extra, row_state, mean[row] / max(1, int(steps[row])))

    def _steps(
        self, rule: ClientRule, x: Tensor, lr: Tensor, steps: NDArray[np.int64], state: State, buffers: Tensor | None,
        batches: NDArray[np.int64], counts: NDArray[np.int64],
    ) -> tuple[Tensor, State, Tensor | None, Tensor]:  # fmt: skip
        """Return the trained models, the rule's state, the running statistics and the sum of each row's losses."""
        if self.context.device.type == "cuda":
            program = self.programs.get(
                self.stack.losses, self.context.layout, rule, x, batches, state, buffers, self.stream, self.compiled
            )
            return program.run(x, lr, steps, state, buffers, batches, counts)
        index, weights = torch.from_numpy(batches), torch.from_numpy(gpu.batch_weights(batches, counts)).to(x.dtype)
        stepper = LocalStepper(rule, self.context.layout, x, state, self.stack.factors)
        total = x.new_zeros(len(x))
        for t in range(int(steps[0])):
            n = int(np.searchsorted(-steps, -t))  # rows with more than t steps
            own = None if buffers is None else buffers[:n]
            stepper.leaves(n)
            for part in forward_slices(index.shape[2], rule.batch_size):
                losses = self.stack.losses(stepper.parameters(), index[t, :n, part], weights[t, :n, part], own)
                stepper.backward(losses.sum())
                total[:n] += losses.detach()
            stepper.advance(lr[:n])
        return *stepper.end(), buffers, total


def height(context: TrainingContext, bulk: int) -> int:
    """Return the maximum number of rows per stack."""
    cache = PLAIN_CACHE_BYTES if context.rule.plain and not context.rule.weight_decay else CACHE_BYTES
    return bulk if context.device.type == "cuda" else max(2, cache // (4 * max(1, context.layout.dim)))


def stacks(tasks: Sequence[Task], most: int, workers: int = 1) -> list[list[int]]:
    """Return the positions of the tasks of each stack, sorted by descending number of steps.

    The rules of a stack differ at most in the learning rate. For each rule there are as few stacks as possible, of
    about equal size, and their number is a multiple of the number of workers.

    Args:
        tasks: The tasks.
        most: Maximum number of tasks per stack.
        workers: Number of stacks that are trained at the same time.
    """
    parts = []
    for positions in by_rule([runtime.context.rule for runtime, _ in tasks]):
        order = sorted(positions, key=lambda i: -tasks[i][1].steps)
        turns = -(-len(order) // (most * workers))
        each = -(-len(order) // (turns * workers))
        parts += [order[first : first + each] for first in range(0, len(order), each)]
    return parts


def by_rule(rules: Sequence[ClientRule]) -> list[list[int]]:
    """Group the positions of rules that can share a stack: they differ at most in the learning rate."""
    groups: dict[ClientRule, list[int]] = {}
    known: dict[int, ClientRule] = {}
    for position, rule in enumerate(rules):
        if id(rule) not in known:
            known[id(rule)] = rule.without_rate()
        groups.setdefault(known[id(rule)], []).append(position)
    return list(groups.values())


def plan(tasks: Sequence[Task]) -> Plan:
    """Return the joint plan of the tasks: indices (most steps, n, B) and valid examples (most steps, n)."""
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
    """Stack the models (n, d), without a copy if all are the same tensor."""
    return xs[0].expand(len(xs), -1) if all(x is xs[0] for x in xs) else torch.stack(list(xs))


def rows(vectors: Iterable[Mapping[str, Tensor]]) -> State:
    """Stack the named vectors of all rows (n, d)."""
    listed = list(vectors)
    return {name: torch.stack([row[name] for row in listed]) for name in listed[0]}
