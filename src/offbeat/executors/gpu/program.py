"""Local steps on a GPU as fixed programs: compiled by `torch.compile`, captured as CUDA graphs, and replayed.

A program has its own memory at fixed addresses: models, the plan of batches, and a step counter on the device. A replay
is a single launch, so the host has nothing to do between two steps. Stacks are padded to one of a few sizes (`SIZES`),
so that nothing is captured again in the middle of a run. Rows that have done all their steps do not change.
"""

from __future__ import annotations

import bisect
import contextlib
import logging
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offbeat.client.batches import forward_slices
from offbeat.client.local_step import added, clipped
from offbeat.client.rules import ClientRule, State
from offbeat.errors import first_line
from offbeat.executors.gpu import triton_support
from offbeat.executors.gpu.capture import aligned, captured
from offbeat.executors.gpu.steps import FRESH, in_place
from offbeat.vectors import Layout

SIZES = [
    1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 18, 20, 24, 28, 32, 36, 40, 45, 50, 56, 64, 72, 80, 90, 100, 112, 120, 128,
    144, 160, 180, 200, 224, 256,
]  # fmt: skip

# Executors may share a compiled function, and must not affect each other: a batch of another width is compiled
# separately, instead of turning the width into a dynamic size for all later calls.
COMPILER: dict[str, Any] = {"cache_size_limit": 4 * len(SIZES), "automatic_dynamic_shapes": False}

# Parameters (n, …) by name, batches, weights of the examples, running statistics → losses (n,)
Loss = Callable[[dict[str, Tensor], Tensor, Tensor, Tensor | None], Tensor]
# The same with a list of leaves → their gradients, losses (n,)
Gradient = Callable[[list[Tensor], Tensor, Tensor, Tensor | None], tuple[Sequence[Tensor | None], Tensor]]
Integers = NDArray[np.int64]


def padded(rows: int) -> int:
    """Return the number of rows to which a stack is padded."""
    return SIZES[bisect.bisect_left(SIZES, rows)] if rows <= SIZES[-1] else rows


def batch_weights(batches: Integers, counts: Integers) -> NDArray[np.float64]:
    """Return the examples' weights in the loss, 1/count and zero for padding: (most steps, n, B).

    Args:
        batches: Indices of the examples (most steps, n, B).
        counts: Valid examples per batch (most steps, n).
    """
    inside = np.arange(batches.shape[2]) < counts[..., None]
    return inside / np.maximum(counts, 1)[..., None]


class Program:
    """The local steps of stacks of one rule and up to one size.

    Args:
        loss: The loss of a stack.
        layout: Layout of the parameters.
        rule: The client rule; its learning rate is not used.
        x: Models of the first stack; sets the number of rows.
        batches: Plan of the first stack; sets the number of steps and the batch size.
        state: The rule's state for the first stack.
        buffers: Running statistics of the first stack, if the models have any.
        stream: Stream on which steps are captured; None on a CPU, where steps run without capture.
        compiled: Whether steps are compiled.
    """

    def __init__(
        self, loss: Loss, layout: Layout, rule: ClientRule, x: Tensor, batches: Integers, state: State,
        buffers: Tensor | None, stream: Any, compiled: bool,
    ) -> None:  # fmt: skip
        triton_support.detect_triton(x.device)
        self.layout = layout
        steps = 1 << (len(batches) - 1).bit_length()
        width = min(rule.examples_per_step, 1 << (batches.shape[2] - 1).bit_length())  # few widths, each compiled once
        rows = padded(len(x))
        self._least = min(rows, 2 if compiled else 1)  # a single row would be compiled separately
        self.rule = rule.without_rate()
        self.x, self.y = aligned(x, rows), aligned(x, rows)
        self.lr, self.steps = x.new_zeros((rows, 1)), torch.zeros((rows, 1), dtype=torch.int64, device=x.device)
        self.state: State = {name: aligned(value, rows) for name, value in state.items()}
        self.buffers = None if buffers is None else aligned(buffers, rows)
        self.losses = x.new_zeros((rows, 1))  # sums over the steps
        self.batches = torch.zeros((steps, rows, width, *batches.shape[3:]), dtype=torch.int64, device=x.device)
        self.weights = x.new_zeros((steps, rows, width))
        self.t = torch.zeros(1, dtype=torch.int64, device=x.device)
        self._in_place = in_place(self.rule, layout, x, steps)
        self.apart = self._in_place is not None  # parameter by parameter
        named = _by_parameter(loss, layout.names) if self.apart else _by_vector(loss, layout)
        advance = _advance(self.rule, tuple(state))
        self._plain = _gradient_of(named)
        self._gradient = Compiled(named, _gradient_of) if compiled else self._plain
        self._advance = Compiled(advance) if compiled and not self.apart else advance
        # Captured on the stream of its replay: cuBLAS has one workspace per stream, which two streams must not share.
        self._stream = stream
        self._pool = torch.cuda.graph_pool_handle() if stream is not None else None
        self._graphs: dict[int, Any] = {}

    def fits(self, rule: ClientRule, x: Tensor, batches: Integers, state: State) -> bool:
        """Return whether this program can run a stack."""
        steps, rows, width = self.weights.shape
        return (
            self.rule == rule.without_rate()
            and len(x) <= rows
            and len(batches) <= steps
            and batches.shape[2] <= width
            and state.keys() == self.state.keys()
        )

    def run(
        self, x: Tensor, lr: Tensor, steps: Integers, state: State, buffers: Tensor | None,
        batches: Integers, counts: Integers,
    ) -> tuple[Tensor, State, Tensor | None, Tensor]:  # fmt: skip
        """Run all steps of a stack.

        Args:
            x: Models to start from (n, d).
            lr: Learning rate per row (n, 1).
            steps: Number of steps per row, in descending order.
            state: The rule's state.
            buffers: Running statistics (n, b), if the models have any.
            batches: Indices of the examples (most steps, n, B).
            counts: Valid examples per batch (most steps, n).

        Returns:
            The trained models, the rule's state, the running statistics and the sum of each row's losses, valid until
            the next run.
        """
        n = self.load(x, lr, steps, state, buffers, batches, counts)
        for size in self._sizes(steps):
            self.step(size)
        state = {name: value[:n] for name, value in self.state.items()}
        return self.y[:n], state, None if self.buffers is None else self.buffers[:n], self.losses[:n, 0]

    def load(
        self, x: Tensor, lr: Tensor, steps: Integers, state: State, buffers: Tensor | None,
        batches: Integers, counts: Integers,
    ) -> int:  # fmt: skip
        """Copy a stack into the program's memory; capture steps of sizes that are new. Returns the number of rows."""
        n, (most, _, width) = len(x), batches.shape[:3]
        for size in sorted(set(self._sizes(steps)) if self._stream is not None else (), reverse=True):
            self._capture(size)
        self.x[:n], self.y[:n], self.lr[:n] = x, x, lr
        self.steps.zero_()
        self.steps[:n, 0] = torch.from_numpy(steps)
        for name, value in state.items():
            if self._in_place is None or name not in FRESH:
                self.state[name][:n] = value
        if self.buffers is not None and buffers is not None:
            self.buffers[:n] = buffers
        self.losses.zero_()
        self.batches[:most, :n, :width].copy_(torch.from_numpy(batches))
        self.weights.zero_()
        self.weights[:most, :n, :width].copy_(torch.from_numpy(batch_weights(batches, counts)))
        self.t.zero_()
        return n

    def step(self, size: int, count: int | None = None) -> None:
        """Run the next step of the first rows.

        Args:
            size: Number of rows.
            count: Number of examples of each batch to use, without capture; None for all.
        """
        if self._stream is None or count is not None:
            self._step(size, count)
        else:
            self._graphs[size].replay()

    def _sizes(self, steps: Integers) -> list[int]:
        """Return the rows to compute in each step: those that still have steps to do, padded."""
        busy = np.searchsorted(-steps, -np.arange(steps[0]))
        return [min(max(padded(rows), self._least), len(self.y)) for rows in busy.tolist()]

    def _capture(self, size: int) -> None:
        """Compile and capture the step for stacks of this size; no row changes, since none has steps to do."""
        if size in self._graphs:
            return
        self.steps.zero_()
        self.t.zero_()
        self._graphs[size] = captured(lambda: self._step(size), self._stream, self._pool, first=not self._graphs)

    def _step(self, size: int, count: int | None = None) -> None:
        y, on = self.y[:size], self.steps[:size] > self.t
        parts = self.layout.unflatten(y).values() if self.apart else (y,)
        leaves = [part.detach().requires_grad_() for part in parts]
        t = self.t.remainder(len(self.batches))
        batch, weight = (table.index_select(0, t)[0, :size, :count] for table in (self.batches, self.weights))
        gradient = self._gradient if count is None else self._plain
        buffers = None if self.buffers is None else self.buffers[:size].clone()
        gradients: list[Tensor | None] = []
        for part in forward_slices(batch.shape[1], self.rule.batch_size):
            found, losses = gradient(leaves, batch[:, part], weight[:, part], buffers)
            gradients = [added(a, b) for a, b in zip(gradients, found, strict=True)] if gradients else list(found)
            self.losses[:size].add_(torch.where(on, losses[:, None], torch.zeros_like(self.losses[:size])))
        if self.rule.clip_norm is not None:
            rows = [None if g is None else g.reshape(size, -1) for g in gradients]
            pairs = zip(clipped(rows, self.rule.clip_norm), leaves, strict=True)
            gradients = [None if g is None else g.view_as(leaf) for g, leaf in pairs]
        if self.buffers is not None and buffers is not None:
            self.buffers[:size].copy_(torch.where(on, buffers, self.buffers[:size]))
        lr = self.lr[:size]
        state = {name: value[:size] for name, value in self.state.items()}
        if self._in_place is not None:
            self._in_place(leaves, gradients, lr, on, self.steps[:size], state)
        else:
            self._advance(y, *gradients, self.x[:size], lr, on, list(state.values()))
        self.t.add_(1)


class Programs:
    """The programs that were used last, one per rule: the runs of a sweep may alternate between several."""

    CAPACITY = 4  # each has memory for its largest stack

    def __init__(self) -> None:
        self._known: dict[ClientRule, Program] = {}  # by rule without its learning rate, most recently used last

    def get(
        self, loss: Loss, layout: Layout, rule: ClientRule, x: Tensor, batches: Integers, state: State,
        buffers: Tensor | None, stream: Any, compiled: bool,
    ) -> Program:  # fmt: skip
        """Return a program that can run a stack; the arguments are those of `Program`."""
        name = rule.without_rate()
        program = self._known.pop(name, None)
        if program is None or not program.fits(rule, x, batches, state):
            program = None  # frees its memory before the next one allocates
            while len(self._known) >= self.CAPACITY:
                del self._known[next(iter(self._known))]
            program = Program(loss, layout, rule, x, batches, state, buffers, stream, compiled)
        self._known[name] = program
        return program


class StackGradient:
    """The gradient of a stack, captured once per shape of a stack on a GPU, and replayed.

    Args:
        loss: The loss of a stack.
        layout: Layout of the parameters.
        stream: Stream of the captures; None on a CPU, where nothing is captured.
        compiled: Whether the gradient is compiled.
    """

    def __init__(self, loss: Loss, layout: Layout, stream: Any, compiled: bool) -> None:
        of_vector = _by_vector(loss, layout)
        self._gradient = Compiled(of_vector, _gradient_of) if compiled else _gradient_of(of_vector)
        self._stream = stream
        self._captures: dict[Hashable, _Capture] = {}

    def __call__(self, y: Tensor, batch: Tensor, weight: Tensor, statistics: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the gradients (n, d) and the losses (n,).

        Args:
            y: Models (n, d).
            batch: Indices of the examples (n, B).
            weight: Weights of the examples (n, B).
            statistics: Running statistics (n, b), which change in place, if the models have any.
        """
        if self._stream is None:
            gradients, losses = self._gradient([y.detach().requires_grad_()], batch, weight, statistics)
            g: Tensor = gradients[0]  # type: ignore[assignment]
            return g, losses
        shape = (y.shape, batch.shape, statistics is None)
        if shape not in self._captures:
            self._captures[shape] = _Capture(self._gradient, self._stream, y, batch, weight, statistics)
        return self._captures[shape](y, batch, weight, statistics)


class _Capture:
    """A captured gradient of stacks of one shape, with memory at fixed addresses."""

    def __init__(
        self, gradient: Gradient, stream: Any, y: Tensor, batch: Tensor, weight: Tensor, statistics: Tensor | None
    ) -> None:
        self.y, self.batch, self.weight = aligned(y, len(y)), batch.clone(), weight.clone()
        self.statistics = None if statistics is None else aligned(statistics, len(y))
        self.found: tuple[Sequence[Tensor | None], Tensor] | None = None

        def run() -> None:
            self.found = gradient([self.y.detach().requires_grad_()], self.batch, self.weight, self.statistics)

        self.graph = captured(run, stream, torch.cuda.graph_pool_handle(), first=True)

    def __call__(self, y: Tensor, batch: Tensor, weight: Tensor, statistics: Tensor | None) -> tuple[Tensor, Tensor]:
        for memory, value in ((self.y, y), (self.batch, batch), (self.weight, weight)):
            memory.copy_(value)
        if self.statistics is not None and statistics is not None:
            self.statistics.copy_(statistics)
        self.graph.replay()
        if self.statistics is not None and statistics is not None:
            statistics.copy_(self.statistics)
        assert self.found is not None
        gradients, losses = self.found
        g = gradients[0]
        assert g is not None
        return g.clone(), losses.clone()


def _gradient_of(loss: Callable[..., Tensor]) -> Gradient:
    """Return a function for the gradients by the tensors in the first argument, and the losses themselves."""

    def gradient(
        leaves: list[Tensor], batch: Tensor, weight: Tensor, buffers: Tensor | None
    ) -> tuple[Sequence[Tensor | None], Tensor]:
        losses = loss(leaves, batch, weight, buffers)
        return torch.autograd.grad(losses.sum(), leaves, allow_unused=True), losses.detach()

    return gradient


def _by_vector(loss: Loss, layout: Layout) -> Callable[..., Tensor]:
    """Return the losses as a function of [models (n, d)]."""

    def of_vector(leaves: list[Tensor], batch: Tensor, weight: Tensor, buffers: Tensor | None) -> Tensor:
        return loss(layout.unflatten(leaves[0]), batch, weight, buffers)

    return of_vector


def _by_parameter(loss: Loss, names: Sequence[str]) -> Callable[..., Tensor]:
    """Return the losses as a function of a list of parameters (n, …)."""

    def of_parameters(leaves: list[Tensor], batch: Tensor, weight: Tensor, buffers: Tensor | None) -> Tensor:
        return loss(dict(zip(names, leaves, strict=True)), batch, weight, buffers)

    return of_parameters


def _advance(rule: ClientRule, names: tuple[str, ...]) -> Callable[..., None]:
    def advance(y: Tensor, g: Tensor, x: Tensor, lr: Tensor, on: Tensor, rows: list[Tensor]) -> None:
        """Take the rule's step in place, for rows that still have steps to do."""
        state = dict(zip(names, rows, strict=True))
        after, new = rule.step(y, g, x, lr, state)
        for name, value in new.items():
            if value is not state[name]:
                _keep(value, state[name], on)
        _keep(after, y, on)

    return advance


def _keep(new: Tensor, old: Tensor, on: Tensor) -> None:
    """Copy the rows of `new` that are on into `old`."""
    if triton_support.has_kernels(new) and not torch.compiler.is_compiling():
        from offbeat.executors.gpu import kernels

        kernels.keep(new, old, on)
    else:
        old.copy_(torch.where(on, new, old))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide the compiler's log messages and warnings."""
    loggers = [logging.getLogger(name) for name in ("torch._guards", "torch._dynamo", "torch._inductor")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


class Compiled:
    """A function that is compiled once for stacks of all sizes, and runs uncompiled if that fails.

    Compiling once per size would work in some of these cases, but takes half a minute each.

    Args:
        part: The part of the function to compile.
        whole: Makes the function of its part. The compiler does not see a backward pass, but compiles it when it is
            first used.
    """

    def __init__(self, part: Callable[..., Any], whole: Callable[..., Any] = lambda part: part) -> None:
        self._uncompiled = whole(part)
        with _quiet():
            self._compiled: Callable[..., Any] | None = whole(torch.compile(part))

    def __call__(self, *arguments: Any) -> Any:
        """Call the compiled function, or the original one once compiling has failed."""
        if self._compiled is not None:
            tensors = [t for a in arguments for t in (a if isinstance(a, list) else [a]) if t is not None]
            for tensor in tensors if len(tensors[0]) > 1 else ():
                torch._dynamo.mark_dynamic(tensor, 0)
            try:
                with torch._dynamo.config.patch(**COMPILER), _quiet():
                    return self._compiled(*arguments)
            except Exception as error:  # a compiler may raise anything
                self._compiled = None
                reason = f"torch.compile failed, so steps run uncompiled: {first_line(error)}"
                warnings.warn(reason, RuntimeWarning, stacklevel=2)
        return self._uncompiled(*arguments)
