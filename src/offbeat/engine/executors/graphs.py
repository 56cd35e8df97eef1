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

from offbeat.engine.executors.base import Executor, Outcome, Task, outcome, replayable
from offbeat.engine.executors.program import Program
from offbeat.engine.executors.vectorised import rows
from offbeat.engine.work import Work
from offbeat.errors import ConfigError
from offbeat.seeds import key

LANES = 8


class Graphs(Executor):
    def __init__(self, work: Work, compiled: bool = True) -> None:
        super().__init__(work)
        if work.device.type != "cuda":
            raise ConfigError("'graphs' are CUDA graphs: they need device = \"cuda\"", key="executor")
        self.compiled = compiled
        self.images = len(work.data.dataset.shape) == 3
        self.streams: list[Any] = [torch.cuda.Stream() for _ in range(LANES)]  # type: ignore[no-untyped-call]
        self.programs: list[Program | None] = [None] * LANES
        self.bulk = min(self.bulk, 4 * LANES)

    def train_all(self, tasks: Sequence[Task]) -> list[Outcome]:
        self.work.module.train()
        order = sorted(range(len(tasks)), key=lambda i: -tasks[i][1].steps)  # lanes of one turn end together
        outcomes: dict[int, Outcome] = {}
        with replayable(key(*(job.seed for _, job in tasks)), self.work.device):
            for first in range(0, len(order), LANES):
                places = order[first : first + LANES]
                outcomes |= zip(places, self._train([tasks[i] for i in places]), strict=True)
        return [outcomes[i] for i in range(len(tasks))]

    def _train(self, tasks: Sequence[Task]) -> list[Outcome]:
        """One task a lane."""
        lanes = [self._load(lane, task) for lane, task in enumerate(tasks)]
        here = torch.cuda.current_stream()
        for stream, _ in zip(self.streams, lanes, strict=False):
            stream.wait_stream(here)
        for t in range(max(job.steps for _, job in tasks)):
            for stream, program, (_, job) in zip(self.streams, lanes, tasks, strict=False):
                if t < job.steps:
                    with torch.cuda.stream(stream):
                        program.step(1)
        for stream, _ in zip(self.streams, lanes, strict=False):
            here.wait_stream(stream)
        finite = torch.isfinite(torch.stack([program.y.sum() for program in lanes])).tolist()
        return [self._finish(*each) for each in zip(tasks, lanes, finite, strict=True)]

    def _load(self, lane: int, task: Task) -> Program:
        work, job = task
        x, lr = job.x[None], job.x.new_tensor([[work.rule.lr * job.rate]])
        state = work.rule.begin(x, rows([job.extra]), rows([work.kept_by(job)]))
        batches, counts = work.plans([job])
        program = self.programs[lane]
        if program is None or not program.fits(work.rule, x, batches, state):
            stream = self.streams[lane]
            program = self.programs[lane] = Program(self._loss, work.rule, x, batches, state, stream, self.compiled)
        program.load(x, lr, np.array([job.steps]), state, batches, counts)
        return program

    def _finish(self, task: Task, program: Program, finite: bool) -> Outcome:
        work, job = task
        lr = work.rule.lr * job.rate
        sent, kept = work.rule.finish(program.y, program.x, lr, float(job.steps), program.state)
        parts = ({name: value[0].clone() for name, value in part.items()} for part in (sent, kept))
        return outcome(task, finite, program.y[0] - program.x[0], *parts)

    def _loss(self, y: Tensor, batch: Tensor, weight: Tensor) -> Tensor:
        """The weighted mean loss of the one model in y (1, d)."""
        work = self.work
        inputs = work.inputs(batch[0])
        if self.images:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        with torch.autocast(work.device.type, torch.bfloat16, enabled=work.precision == "bfloat16"):
            outputs = functional_call(work.module, work.layout.unflatten(y[0]), (inputs,))
        return cross_entropy(outputs.to(y.dtype), work.labels(batch[0]), reduction="none").dot(weight[0])
