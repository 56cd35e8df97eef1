"""The choice of an executor: the requested one, or the fastest one on this machine, found by a trial."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections.abc import Sequence
from typing import Any, Literal

import torch

from offbeat.client.context import TrainingContext
from offbeat.client.runtime import ClientRuntime
from offbeat.errors import ConfigError, DivergenceError, first_line
from offbeat.executors.base import Executor, Task, arithmetic, threads
from offbeat.executors.cpu_threads import cores
from offbeat.executors.graphs import Graphs
from offbeat.executors.probe import why_no_pure_steps, why_not_stackable
from offbeat.executors.processes import Processes
from offbeat.executors.ray import Ray, missing
from offbeat.executors.sequential import Sequential
from offbeat.executors.vectorized import Vectorized
from offbeat.messages import Job
from offbeat.random import key

EXECUTORS: dict[str, type[Executor]] = {
    "sequential": Sequential,
    "vectorized": Vectorized,
    "graphs": Graphs,
    "processes": Processes,
    "ray": Ray,
}
Name = Literal["sequential", "vectorized", "graphs", "processes", "ray"]
Choice = Literal["auto", "sequential", "vectorized", "graphs", "processes", "ray"]

TRIAL_STEPS = 10  # per client; few, so that the fixed costs of a job weigh as much as in the run
TRIAL_SECONDS = 0.5  # per candidate, after its setup
MIN_SPEEDUP = 1.1  # a candidate replaces an earlier one only if it is this much faster
SLOW_RATE = 1000.0  # client steps per second below which the messages of worker processes pay off
# Seconds: if the first candidate needs less for the whole run, its trial ends and no other is tried. A trial takes
# about a second, or some seconds where steps must be captured, and another executor rounds differently.
SHORT_RUN = {"cpu": 10.0, "cuda": 40.0}

_LOG = logging.getLogger("offbeat")
_CHOSEN: dict[object, tuple[str, dict[str, float]]] = {}


def choose(choice: Choice, runtime: ClientRuntime, together: int, rounds: int) -> tuple[Name, dict[str, float]]:
    """Return the name of the executor to use and, for `auto`, the client steps per second of each candidate.

    The result for a model, a rule, a device and an amount of work is remembered, so that the runs of a sweep agree.

    Args:
        choice: The requested executor, or `auto`.
        runtime: The client runtime of the run.
        together: Number of jobs that are trained at the same time.
        rounds: Number of rounds of the run.

    Raises:
        ConfigError: The requested executor cannot run the model.
    """
    if choice != "auto":
        if reason := why_not(choice, runtime):
            raise ConfigError(f"{choice!r} cannot run this model: {reason} Use 'sequential'.", key="executor")
        return choice, {}
    setting = (
        str(runtime.context.module),
        runtime.context.layout.fingerprint,
        type(runtime.context.rule),
        str(runtime.context.rule),  # the fields of a user's rule need not be hashable
        runtime.context.device,
        runtime.context.precision,
        together,
        rounds,
    )
    if setting not in _CHOSEN:
        _CHOSEN[setting] = _fastest(runtime, together, rounds)
    name, rates = _CHOSEN[setting]
    return name, rates  # type: ignore[return-value]


def why_not(name: str, runtime: ClientRuntime) -> str | None:
    """Return why an executor cannot run a model; None if it can."""
    gpu = runtime.context.device.type == "cuda"
    if name == "vectorized":
        return why_not_stackable(runtime.context)
    if name == "ray":
        return missing()
    if name == "graphs":
        if not gpu:
            return "CUDA graphs need device = 'cuda'."
        return why_no_pure_steps(runtime.context.rule) or _why_not_capturable(runtime)
    if name == "processes" and (gpu or not hasattr(os, "sched_getaffinity")):
        return "it needs the cores of a CPU, and Linux."
    return None


def _fastest(runtime: ClientRuntime, together: int, rounds: int) -> tuple[str, dict[str, float]]:
    """Time the candidates; on a GPU uncompiled, which ranks a CNN and a ResNet the same and saves a minute."""
    gpu = runtime.context.device.type == "cuda"
    pair = ("vectorized", "graphs" if gpu else "sequential")
    reasons = {name: why_not(name, runtime) for name in pair}
    candidates = [name for name, reason in reasons.items() if reason is None] or ["sequential"]
    if reasons["vectorized"] is not None:
        _LOG.info("clients are not stacked: %s", reasons["vectorized"])
    if why_not("processes", runtime) is None and cores() > 1:
        candidates.append("processes")
    tasks = trial(runtime, together, TRIAL_STEPS)
    steps = rounds * sum(runtime.context.steps(job.client) for _, job in tasks)
    short = steps / SHORT_RUN[runtime.context.device.type]  # client steps per second that make the run short
    rates: dict[str, float] = {}
    best = candidates[0]
    for name in candidates if len(candidates) > 1 else ():
        if name == "processes" and rates[best] > SLOW_RATE:
            continue
        with contextlib.closing(_candidate(name, runtime)) as executor:
            try:
                rates[name] = client_steps_per_second(executor, tasks, enough=math.inf if rates else short)
            except ConfigError:
                if name != "processes":
                    raise
                continue  # autograd does not work in child processes of this program
        best = name if rates[name] > MIN_SPEEDUP * rates[best] else best
        if rates[best] > short:
            break
    listed = ", ".join(f"{name} {rate:,.0f}" for name, rate in rates.items())
    _LOG.info("executor %s%s", best, f" (client steps per second in a trial: {listed})" if rates else "")
    return best, rates


def _candidate(name: str, runtime: ClientRuntime) -> Executor:
    kind: Any = EXECUTORS[name]
    executor: Executor = kind(runtime, compiled=False) if runtime.context.device.type == "cuda" else kind(runtime)
    return executor


def client_steps_per_second(
    executor: Executor, tasks: Sequence[Task], seconds: float = TRIAL_SECONDS, enough: float = math.inf
) -> float:
    """Return the speed of an executor; the clients' state and the module are left unchanged.

    Args:
        executor: The executor.
        tasks: Tasks to train, again and again.
        seconds: Least duration of the measurement, after a first call that sets everything up.
        enough: Client steps per second above which the exact speed does not matter; the measurement then ends early.
    """
    runtime = tasks[0][0]
    rows = {name: dict(values) for name, values in runtime.state.rows.items()}
    context = runtime.context
    x, b = (part.read(context.module) for part in (context.layout, context.buffers))
    tasks = tasks[: executor.sample]
    done = 0
    with threads(runtime.context), arithmetic(runtime.context):
        executor.train_all(tasks)
        _synchronize(runtime.context)
        started, elapsed = time.perf_counter(), 0.0
        while not done or (elapsed < seconds and done <= enough * elapsed):
            executor.train_all(tasks)
            _synchronize(runtime.context)
            done += sum(job.steps for _, job in tasks)
            elapsed = time.perf_counter() - started
    runtime.state.rows = rows
    context.layout.write(context.module, x)
    context.buffers.write(context.module, b)
    return done / elapsed


def _synchronize(context: TrainingContext) -> None:
    if context.device.type == "cuda":
        torch.cuda.synchronize(context.device)


def trial(runtime: ClientRuntime, together: int, steps: int) -> list[Task]:
    """Return tasks of the first clients, for a trial.

    Args:
        runtime: The client runtime of the run.
        together: Number of tasks.
        steps: Maximum number of local steps per task.
    """
    x, extension = runtime.context.split.shared.read(runtime.context.module), runtime.server_extension()
    if extension is not None:
        extension.start(x, runtime.context.data.clients)
    extra = extension.extra() if extension is not None else {}
    context = runtime.context
    clients = [i % context.data.clients for i in range(together)]
    return [
        (runtime, Job(i, c, 0, x, min(steps, context.steps(c)), key(i), extra=extra)) for i, c in enumerate(clients)
    ]


def _why_not_capturable(runtime: ClientRuntime) -> str | None:
    try:
        with contextlib.closing(Graphs(runtime, compiled=False)) as graphs:
            outcome = graphs.train_all(trial(runtime, 1, 1))[0]
    except Exception as error:  # the model, the capture or a kernel may raise anything
        return first_line(error)
    return str(outcome) if isinstance(outcome, DivergenceError) else None
