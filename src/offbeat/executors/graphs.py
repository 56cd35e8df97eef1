"""The `graphs` executor: one client per CUDA graph, with several graphs in parallel on separate streams.

It suits models whose single step occupies about half of the GPU. Stacking them gains nothing, since cuDNN's ordinary
convolutions beat grouped ones, but launching the hundreds of kernels of a step from the host costs more than running
them. The step of each stream is compiled and captured once, and then replayed for every local step of a client; the
streams fill each other's gaps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offbeat.client.context import TrainingContext
from offbeat.client.runtime import ClientRuntime
from offbeat.client.training import Trained, seeded_generators
from offbeat.executors.base import Executor, Task
from offbeat.executors.gpu import Program, Programs
from offbeat.executors.probe import mixes_examples
from offbeat.executors.vectorized import rows
from offbeat.random import key
from offbeat.server.extensions import BUFFERS
from offbeat.tasks.base import in_dtype
from offbeat.trees import call

STREAMS = 8


class ClientStream:
    """A CUDA stream with its programs; on a CPU there is no stream.

    Attributes:
        program: The program of the loaded job.
        counts: Number of examples in each of the job's batches.

    Args:
        context: Model, data and device.
    """

    def __init__(self, context: TrainingContext) -> None:
        self.context = context
        self.cuda_stream: Any = torch.cuda.Stream() if context.device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self.programs = Programs()
        self.program: Program | None = None
        self.counts = np.zeros(0, dtype=np.int64)

    def load(self, task: Task, compiled: bool) -> Program:
        """Load a task into a program, and return the program."""
        runtime, _ = task
        context, item = runtime.context, runtime.item(task[1])
        job = item.job
        x, lr = job.x[None], job.x.new_tensor([[context.rule.lr * job.rate]])
        received = rows([job.extra])
        buffers = context.received_buffers(received)
        state = context.rule.begin(x, received, rows([item.client_state]))
        batches, counts = context.plans([job])
        self.program = None  # its memory may be needed for another one
        self.program = self.programs.get(
            self._losses, context.layout, context.rule, x, batches, state, buffers, self.cuda_stream, compiled
        )
        self.program.load(x, lr, np.array([job.steps]), state, buffers, batches, counts)
        self.counts = counts[:, 0]
        return self.program

    def result(self, task: Task, finite: bool, loss: float) -> Trained:
        """Return the result of the loaded task."""
        (runtime, job), program = task, self.program
        assert program is not None
        rule = runtime.context.rule
        lr = rule.lr * job.rate
        vectors = rule.finish(program.y, program.x, lr, float(job.steps), program.state)
        extra, client_state = ({name: value[0].clone() for name, value in part.items()} for part in vectors)
        if program.buffers is not None:
            extra[BUFFERS] = program.buffers[0].clone()
        delta = program.y[0] - program.x[0]
        return Trained(finite, delta, extra, client_state, loss / max(1, job.steps))

    def _losses(self, parameters: dict[str, Tensor], batch: Tensor, weight: Tensor, buffers: Tensor | None) -> Tensor:
        """Return the weighted mean loss (1,) of one model with parameters (1, …); the statistics change in place."""
        context = self.context
        inputs = context.inputs(batch[0])
        if isinstance(inputs, Tensor) and inputs.is_cuda and inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        single = {name: value.squeeze(0) for name, value in parameters.items()}
        views = context.buffers.unflatten(buffers[0]) if buffers is not None else {}
        own = {name: view.clone() for name, view in views.items()}  # autograd saves each of them for itself
        with context.autocast():
            outputs = in_dtype(call(context.module, inputs, single | own), weight.dtype)
        for name, view in views.items():
            view.copy_(own[name])
        return context.task.losses(outputs, context.labels(batch[0]), weight.shape[1]).dot(weight[0])[None]


class Graphs(Executor):
    """Trains clients on parallel CUDA streams.

    Args:
        runtime: The client runtime of the run.
        compiled: Whether to compile steps on a GPU.
    """

    def __init__(self, runtime: ClientRuntime, compiled: bool = True) -> None:
        super().__init__(runtime)
        context = runtime.context
        self.compiled = compiled and context.device.type == "cuda"
        self.streams = [ClientStream(context) for _ in range(STREAMS)]
        self.mixes = mixes_examples(context)  # then short batches must not be padded
        self.bulk = min(self.bulk, 4 * STREAMS)

    def close(self) -> None:
        """Drop the programs; their reference cycles would keep memory until the next garbage collection."""
        for stream in self.streams:
            stream.program, stream.programs = None, Programs()

    def local_results(self, tasks: Sequence[Task]) -> Iterator[tuple[int, Trained]]:
        """Train the tasks in groups of one task per stream, those with the most steps first."""
        self.context.module.train()
        order = sorted(range(len(tasks)), key=lambda i: -tasks[i][1].steps)  # so that a group ends together
        with seeded_generators(key(*(job.seed for _, job in tasks)), self.context.device):
            for first in range(0, len(order), STREAMS):
                positions = order[first : first + STREAMS]
                yield from zip(positions, self._train([tasks[i] for i in positions]), strict=True)

    def _train(self, tasks: Sequence[Task]) -> list[Trained]:
        """Train one task per stream."""
        streams = self.streams[: len(tasks)]
        programs = [stream.load(task, self.compiled) for stream, task in zip(streams, tasks, strict=True)]
        cuda_streams = [stream.cuda_stream for stream in streams if stream.cuda_stream is not None]
        for cuda_stream in cuda_streams:
            cuda_stream.wait_stream(torch.cuda.current_stream())
        for t in range(max(job.steps for _, job in tasks)):
            for stream, program, (_, job) in zip(streams, programs, tasks, strict=True):
                if t < job.steps:
                    with torch.cuda.stream(stream.cuda_stream):
                        program.step(1, self._batch_count(stream, program, t))
        for cuda_stream in cuda_streams:
            torch.cuda.current_stream().wait_stream(cuda_stream)
        sums = torch.stack([torch.stack([program.y.sum(), program.losses[0, 0]]) for program in programs]).tolist()
        return [
            stream.result(task, math.isfinite(total), loss)
            for stream, task, (total, loss) in zip(streams, tasks, sums, strict=True)
        ]

    def _batch_count(self, stream: ClientStream, program: Program, t: int) -> int | None:
        """Return the number of examples of a short batch that must not be padded; else None."""
        count = int(stream.counts[t])
        return count if self.mixes and count < program.weights.shape[2] else None
