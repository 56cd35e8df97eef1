"""A local step on the GPU as one fixed program: compiled by `torch.compile`, captured as a CUDA graph, replayed.

The program works on memory of its own that never moves: models, plan of batches, and a counter of steps on the device.
A replay is a single launch, so the host has nothing to do between two steps.  A stack is padded to one of a few sizes
(`LADDER`), so that nothing is captured anew in the middle of a run; rows that have done all their steps stay still.
"""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
import gc
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offbeat.client.rules import ClientRule, State
from offbeat.errors import first_line
from offbeat.executors.gpu import triton_support as triton_support
from offbeat.vectors import Layout

LADDER = [
    1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 18, 20, 24, 28, 32, 36, 40, 45, 50, 56, 64, 72, 80, 90, 100, 112, 120, 128,
    144, 160, 180, 200, 224, 256,
]  # fmt: skip

ALIGN = 64  # numbers
# Several executors may share a function, and none of them may change what is made of it for another: a batch of another
# width is compiled by itself instead of making the width a variable for all that come after.
COMPILER: dict[str, Any] = {"cache_size_limit": 4 * len(LADDER), "automatic_dynamic_shapes": False}

Loss = Callable[[dict[str, Tensor], Tensor, Tensor], Tensor]  # of models (n, …) by name, their batches, the weights
Integers = NDArray[np.int64]


def padded(rows: int) -> int:
    """The next size of the ladder."""
    return LADDER[bisect.bisect_left(LADDER, rows)] if rows <= LADDER[-1] else rows


def shares(batches: Integers, counts: Integers) -> NDArray[np.float64]:
    """Weights 1/count, zero for padding: (most steps, n, B)."""
    inside = np.arange(batches.shape[2]) < counts[..., None]
    return inside / np.maximum(counts, 1)[..., None]


class Program:
    """Made for stacks like the one it is given.  Without a stream, on a CPU, steps are not captured but simply done."""

    def __init__(
        self, loss: Loss, layout: Layout, rule: ClientRule, x: Tensor, batches: Integers, state: State, stream: Any,
        compiled: bool,
    ) -> None:  # fmt: skip
        triton_support.detect_triton(x.device)
        self.layout = layout
        steps = 1 << (len(batches) - 1).bit_length()
        width = min(rule.batch_size, 1 << (batches.shape[2] - 1).bit_length())  # few widths, each compiled by itself
        rows = padded(len(x))
        self._least = min(rows, 2 if compiled else 1)  # a single row would be compiled by itself
        self.rule = dataclasses.replace(rule, lr=1.0)
        self.x, self.y = _aligned(x, rows), _aligned(x, rows)
        self.lr, self.steps = x.new_zeros((rows, 1)), torch.zeros((rows, 1), dtype=torch.int64, device=x.device)
        self.state: State = {name: _aligned(value, rows) for name, value in state.items()}
        self.batches = torch.zeros((steps, rows, width, *batches.shape[3:]), dtype=torch.int64, device=x.device)
        self.weights = x.new_zeros((steps, rows, width))
        self.t = torch.zeros(1, dtype=torch.int64, device=x.device)
        # A plain step is done parameter by parameter: the gradient is never put together to be read once.
        self.apart = rule.plain and triton_support.has_kernels(x)
        named = _by_parameter(loss, layout.names) if self.apart else by_vector(loss, layout)
        advance = _advance(self.rule, tuple(state))
        self._plain = gradient_of(named)
        self._gradient = Compiled(named, gradient_of) if compiled else self._plain
        self._advance = Compiled(advance) if compiled and not self.apart else advance
        # Captured where it will be replayed: cuBLAS has a workspace for each stream, which two lanes must not share.
        self._stream = stream
        self._pool = torch.cuda.graph_pool_handle() if stream is not None else None
        self._graphs: dict[int, Any] = {}

    def fits(self, rule: ClientRule, x: Tensor, batches: Integers, state: State) -> bool:
        """Whether such a stack can be run on this program's memory."""
        steps, rows, width = self.weights.shape
        return (
            self.rule == dataclasses.replace(rule, lr=1.0)
            and len(x) <= rows
            and len(batches) <= steps
            and batches.shape[2] <= width
            and state.keys() == self.state.keys()
        )

    def run(
        self, x: Tensor, lr: Tensor, steps: Integers, state: State, batches: Integers, counts: Integers
    ) -> tuple[Tensor, State]:
        """y and state after each row's number of steps, which falls from row to row.  Read them before the next run."""
        n = self.load(x, lr, steps, state, batches, counts)
        for size in self._sizes(steps):
            self.step(size)
        return self.y[:n], {name: value[:n] for name, value in self.state.items()}

    def load(self, x: Tensor, lr: Tensor, steps: Integers, state: State, batches: Integers, counts: Integers) -> int:
        """Copy a stack into place."""
        n, (most, _, width) = len(x), batches.shape[:3]
        for size in sorted(set(self._sizes(steps)) if self._stream is not None else (), reverse=True):
            self._capture(size)
        self.x[:n], self.y[:n], self.lr[:n] = x, x, lr
        self.steps.zero_()
        self.steps[:n, 0] = torch.from_numpy(steps)
        for name, value in state.items():
            self.state[name][:n] = value
        self.batches[:most, :n, :width].copy_(torch.from_numpy(batches))
        self.weights.zero_()
        self.weights[:most, :n, :width].copy_(torch.from_numpy(shares(batches, counts)))
        self.t.zero_()
        return n

    def step(self, size: int, count: int | None = None) -> None:
        """The next step of the first `size` rows; with `count` on so many examples of each batch, uncaptured."""
        if self._stream is None or count is not None:
            self._step(size, count)
        else:
            self._graphs[size].replay()

    def _sizes(self, steps: Integers) -> list[int]:
        """Rows to be computed in each step: those that still have steps to do, and some for the ladder."""
        busy = np.searchsorted(-steps, -np.arange(steps[0]))
        return [min(max(padded(rows), self._least), len(self.y)) for rows in busy.tolist()]

    def _capture(self, size: int) -> None:
        """Compile and capture the step for stacks of this size, on rows that do not move: they have no steps to do."""
        if size in self._graphs:
            return
        self.steps.zero_()
        self.t.zero_()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(2):
                self._step(size)
        torch.cuda.current_stream().wait_stream(self._stream)
        torch.cuda.synchronize()
        if not self._graphs:  # what the steps above have used is not for the graph's own pool
            torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        # Not `torch.cuda.graph`, which collects garbage first: a sixth of a second, a dozen times.
        with _uncollected(), torch.cuda.stream(self._stream):
            graph.capture_begin(pool=self._pool)
            try:
                self._step(size)
            finally:
                graph.capture_end()
        self._graphs[size] = graph

    def _step(self, size: int, count: int | None = None) -> None:
        y = self.y[:size]
        parts = self.layout.unflatten(y).values() if self.apart else (y,)
        leaves = [part.detach().requires_grad_() for part in parts]
        t = self.t.remainder(len(self.batches))
        batch, weight = (table.index_select(0, t)[0, :size, :count] for table in (self.batches, self.weights))
        grad_output = (self._gradient if count is None else self._plain)(leaves, batch, weight)
        lr, on = self.lr[:size], self.steps[:size] > self.t
        if self.apart:
            _descend(self.rule, leaves, grad_output, lr, on)
        else:
            rows = [value[:size] for value in self.state.values()]
            self._advance(y, *grad_output, self.x[:size], lr, on, rows)
        self.t.add_(1)


class Programs:
    """The last programs that were used, one for each rule: the runs of a sweep may have several by turns."""

    KEPT = 4  # each with memory for its largest stack

    def __init__(self) -> None:
        self._known: dict[ClientRule, Program] = {}  # by rule but for its rate, the last that was used at the end

    def get(
        self, loss: Loss, layout: Layout, rule: ClientRule, x: Tensor, batches: Integers, state: State, stream: Any,
        compiled: bool,
    ) -> Program:  # fmt: skip
        """One that fits such a stack."""
        name = dataclasses.replace(rule, lr=1.0)
        program = self._known.pop(name, None)
        if program is None or not program.fits(rule, x, batches, state):
            program = None  # its memory is free before the next one's is taken
            while len(self._known) >= self.KEPT:
                del self._known[next(iter(self._known))]
            program = Program(loss, layout, rule, x, batches, state, stream, compiled)
        self._known[name] = program
        return program


def gradient_of(loss: Callable[..., Tensor]) -> Callable[..., tuple[Tensor | None, ...]]:
    """The gradients by what the first argument lists."""

    def gradient(leaves: list[Tensor], batch: Tensor, weight: Tensor) -> tuple[Tensor | None, ...]:
        return torch.autograd.grad(loss(leaves, batch, weight), leaves, allow_unused=True)

    return gradient


def by_vector(loss: Loss, layout: Layout) -> Callable[..., Tensor]:
    """The loss of models that lie in one list's only vectors (n, d)."""

    def of_vector(leaves: list[Tensor], batch: Tensor, weight: Tensor) -> Tensor:
        return loss(layout.unflatten(leaves[0]), batch, weight)

    return of_vector


def _by_parameter(loss: Loss, names: Sequence[str]) -> Callable[..., Tensor]:
    def of_parameters(leaves: list[Tensor], batch: Tensor, weight: Tensor) -> Tensor:
        return loss(dict(zip(names, leaves, strict=True)), batch, weight)

    return of_parameters


def _descend(
    rule: ClientRule, leaves: Sequence[Tensor], grad_output: Sequence[Tensor | None], lr: Tensor, on: Tensor
) -> None:
    """A plain step in place, for rows that still have steps to do."""
    from offbeat.executors.gpu import kernels

    for leaf, slope in zip(leaves, grad_output, strict=True):
        if slope is None and rule.weight_decay:
            slope = torch.zeros_like(leaf)
        if slope is not None:
            kernels.descend(leaf.detach(), slope, lr, on, rule.weight_decay)


def _advance(rule: ClientRule, names: tuple[str, ...]) -> Callable[..., None]:
    def advance(y: Tensor, g: Tensor, x: Tensor, lr: Tensor, on: Tensor, rows: list[Tensor]) -> None:
        """The rule's step, in place, for rows that still have steps to do."""
        state = dict(zip(names, rows, strict=True))
        after, new = rule.step(y, g, x, lr, state)
        for name, value in new.items():
            if value is not state[name]:
                _keep(value, state[name], on)
        _keep(after, y, on)

    return advance


def _keep(new: Tensor, old: Tensor, on: Tensor) -> None:
    """Into the rows of `old` that are on."""
    if triton_support.has_kernels(new) and not torch.compiler.is_compiling():
        from offbeat.executors.gpu import kernels

        kernels.keep(new, old, on)
    else:
        old.copy_(torch.where(on, new, old))


def _aligned(like: Tensor, rows: int) -> Tensor:
    """(rows, d) of zeros, each row beginning at a multiple of 256 bytes: matrix products on rows are faster then."""
    width = like.shape[1]
    return like.new_zeros((rows, -(-width // ALIGN) * ALIGN))[:, :width]


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """An old program that is thrown away in the middle of a capture would spoil it."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The compiler's remarks on itself are not for users."""
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
    """A function compiled once for stacks of all sizes; where that fails, left as it is.

    Once for each size would do in some of these cases, but takes half a minute for each of them.  What is compiled may
    be a part of the function, `whole` making the function of it: a backward pass is not seen by the compiler as such,
    but is compiled when it is first used.
    """

    def __init__(self, part: Callable[..., Any], whole: Callable[..., Any] = lambda part: part) -> None:
        self._uncompiled = whole(part)
        with _quiet():
            self._compiled: Callable[..., Any] | None = whole(torch.compile(part))

    def __call__(self, *arguments: Any) -> Any:
        if self._compiled is not None:
            tensors = [t for a in arguments for t in (a if isinstance(a, list) else [a])]
            for tensor in tensors if len(tensors[0]) > 1 else ():
                torch._dynamo.mark_dynamic(tensor, 0)
            try:
                with torch._dynamo.config.patch(**COMPILER), _quiet():
                    return self._compiled(*arguments)
            except Exception as error:  # whatever a compiler may raise
                self._compiled = None
                reason = f"torch.compile failed, so steps run uncompiled: {first_line(error)}"
                warnings.warn(reason, RuntimeWarning, stacklevel=2)
        return self._uncompiled(*arguments)
