"""Client by client on a GPU, several at a time: each in a lane of its own, a CUDA graph on a stream.

For models whose single step keeps the chip half busy: stacking them gains nothing, since cuDNN's ordinary convolutions
beat grouped ones, but launching a step's hundreds of kernels from the host costs more than running them.  A lane's step
is compiled and captured once, and then replayed as often as its client has steps; the lanes fill each other's gaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from offbeat.client.context import TrainingContext
from offbeat.client.runtime import ClientRuntime
from offbeat.client.training import seeded_generators
from offbeat.executors.base import Executor, Task, TrainingOutcome, outcome
from offbeat.executors.gpu.program import Program, Programs
from offbeat.executors.probe import mixes_examples
from offbeat.executors.vectorized import rows
from offbeat.random import key
from offbeat.server.extensions import BUFFERS

LANES = 8


class Lane:
    """A stream, the programs on it, and the running statistics of the model in it.  On a CPU there is no stream."""

    def __init__(self, context: TrainingContext) -> None:
        self.context = context
        self.stream: Any = torch.cuda.Stream() if context.device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.programs = Programs()
        self.program: Program | None = None  # of the job that is loaded
        self.counts = np.zeros(0, dtype=np.int64)  # examples in each of the job's batches
        self.buffers = context.buffers.read(context.module) if context.buffers.names else None

    def load(self, task: Task, compiled: bool) -> Program:
        runtime, job = task
        context = runtime.context
        x, lr = job.x[None], job.x.new_tensor([[context.rule.lr * job.rate]])
        state = context.rule.begin(x, rows([job.extra]), rows([runtime.begin(job)]))
        batches, counts = context.plans([job])
        self.program = None  # it may have to make room
        self.program = self.programs.get(
            self._loss, context.layout, context.rule, x, batches, state, self.stream, compiled
        )
        self.program.load(x, lr, np.array([job.steps]), state, batches, counts)
        self.counts = counts[:, 0]
        if self.buffers is not None:
            self.buffers.copy_(job.extra[BUFFERS])
        return self.program

    def finish(self, task: Task, finite: bool) -> TrainingOutcome:
        (runtime, job), program = task, self.program
        assert program is not None
        rule = runtime.context.rule
        lr = rule.lr * job.rate
        sent, kept = rule.finish(program.y, program.x, lr, float(job.steps), program.state)
        beside = {name: value[0].clone() for name, value in sent.items()}
        if self.buffers is not None:
            beside[BUFFERS] = self.buffers.clone()
        return outcome(
            task, finite, program.y[0] - program.x[0], beside, {name: value[0].clone() for name, value in kept.items()}
        )

    def _loss(self, parameters: dict[str, Tensor], batch: Tensor, weight: Tensor) -> Tensor:
        """The weighted mean loss of one model, its parameters being (1, …)."""
        context = self.context
        inputs = context.inputs(batch[0])
        if inputs.is_cuda and inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        own = context.buffers.unflatten(self.buffers) if self.buffers is not None else {}
        changed = {name: view.clone() for name, view in own.items()}  # by the forward pass, in place
        alone = {name: value.squeeze(0) for name, value in parameters.items()}
        with context.autocast():
            outputs = functional_call(context.module, alone | changed, (inputs,))
        for name, view in own.items():
            view.copy_(changed[name])
        return cross_entropy(outputs.to(weight.dtype), context.labels(batch[0]), reduction="none").dot(weight[0])


class Graphs(Executor):
    def __init__(self, runtime: ClientRuntime, compiled: bool = True) -> None:
        super().__init__(runtime)
        context = runtime.context
        self.compiled = compiled and context.device.type == "cuda"
        self.lanes = [Lane(context) for _ in range(LANES)]
        self.mixes = mixes_examples(context)  # then a short batch may not be padded
        self.bulk = min(self.bulk, 4 * LANES)

    def close(self) -> None:
        """A program holds its lane, which holds it: their memory would else wait for the garbage collector."""
        for lane in self.lanes:
            lane.program, lane.programs = None, Programs()

    def train_all(self, tasks: Sequence[Task]) -> list[TrainingOutcome]:
        self.context.module.train()
        order = sorted(range(len(tasks)), key=lambda i: -tasks[i][1].steps)  # lanes of one turn end together
        outcomes: dict[int, TrainingOutcome] = {}
        with seeded_generators(key(*(job.seed for _, job in tasks)), self.context.device):
            for first in range(0, len(order), LANES):
                places = order[first : first + LANES]
                outcomes |= zip(places, self._train([tasks[i] for i in places]), strict=True)
        return [outcomes[i] for i in range(len(tasks))]

    def _train(self, tasks: Sequence[Task]) -> list[TrainingOutcome]:
        """One task a lane."""
        lanes = self.lanes[: len(tasks)]
        programs = [lane.load(task, self.compiled) for lane, task in zip(lanes, tasks, strict=True)]
        streams = [lane.stream for lane in lanes if lane.stream is not None]
        for stream in streams:
            stream.wait_stream(torch.cuda.current_stream())
        for t in range(max(job.steps for _, job in tasks)):
            for lane, program, (_, job) in zip(lanes, programs, tasks, strict=True):
                if t < job.steps:
                    with torch.cuda.stream(lane.stream):
                        program.step(1, self._short(lane, program, t))
        for stream in streams:
            torch.cuda.current_stream().wait_stream(stream)
        finite = torch.isfinite(torch.stack([program.y.sum() for program in programs])).tolist()
        return [lane.finish(task, good) for lane, task, good in zip(lanes, tasks, finite, strict=True)]

    def _short(self, lane: Lane, program: Program, t: int) -> int | None:
        """How many examples the batch has where that must be told."""
        count = int(lane.counts[t])
        return count if self.mixes and count < program.weights.shape[2] else None
