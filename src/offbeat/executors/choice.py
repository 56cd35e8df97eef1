"""Which executor: as asked for, or the one that is fastest here, found out by trying."""

from __future__ import annotations

import contextlib
import copy
import logging
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
from offbeat.executors.gpu.graphs import Graphs
from offbeat.executors.probe import why_not_stackable
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

TRIED_STEPS = 10  # at most, of each client on trial: what a job costs beside its steps is to weigh as it will
TRIED_SECONDS = 0.5  # for each candidate, after it has been set up
AHEAD = 1.1  # a candidate replaces an earlier one that is slower than this
HEAVY = 1000.0  # client-steps a second, under which processes are worth their messages
# Seconds: a run that the first candidate does in less is not worth trying others, nor their other bits.  To try one
# takes about a second, and some where it must be captured.
SHORT = {"cpu": 10.0, "cuda": 40.0}

_LOG = logging.getLogger("offbeat")
_CHOSEN: dict[object, tuple[str, dict[str, float]]] = {}


def choose(choice: Choice, runtime: ClientRuntime, together: int, rounds: int) -> tuple[Name, dict[str, float]]:
    """The executor's name, and for `auto` the client-steps a second of each candidate on jobs that come `together`.

    At most `together` jobs a round are expected.  What was found for a model, a rule, a device and an amount of work
    holds for the rest of the process: the runs of a sweep agree.
    """
    if choice != "auto":
        if reason := why_not(choice, runtime):
            raise ConfigError(f"{choice!r} cannot run this model: {reason}  Use 'sequential'.", key="executor")
        return choice, {}
    setting = (
        str(runtime.context.module),
        runtime.context.layout.fingerprint,
        runtime.context.rule,
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
    """Why an executor cannot run a model; None when it can."""
    gpu = runtime.context.device.type == "cuda"
    if name == "vectorized":
        return why_not_stackable(runtime.context)
    if name == "ray":
        return missing()
    if name == "graphs":
        return _why_not_capturable(runtime) if gpu else "CUDA graphs need device = 'cuda'."
    if name == "processes" and (gpu or not hasattr(os, "sched_getaffinity")):
        return "it spreads clients over the cores of a CPU, under Linux."
    return None


def _fastest(runtime: ClientRuntime, together: int, rounds: int) -> tuple[str, dict[str, float]]:
    """Try what can run the model; on a GPU uncompiled, which ranked a CNN and a ResNet alike and takes no minute."""
    gpu = runtime.context.device.type == "cuda"
    able = [n for n in ("vectorized", "graphs" if gpu else "sequential") if why_not(n, runtime) is None] or [
        "sequential"
    ]
    if why_not("processes", runtime) is None and cores() > 1:
        able.append("processes")
    tasks = trial(runtime, together, TRIED_STEPS)
    steps = rounds * sum(runtime.context.steps(job.client) for _, job in tasks)
    rates: dict[str, float] = {}
    best = able[0]
    for name in able if len(able) > 1 else ():
        if name == "processes" and rates[best] > HEAVY:
            continue
        with contextlib.closing(_on_trial(name, runtime)) as executor:
            try:
                rates[name] = client_steps_per_second(executor, tasks)
            except ConfigError:  # a child of this program cannot differentiate
                continue
        best = name if rates[name] > AHEAD * rates[best] else best
        if steps < SHORT[runtime.context.device.type] * rates[best]:
            break
    told = ", ".join(f"{name} {rate:,.0f}" for name, rate in rates.items())
    _LOG.info("executor %s (client-steps a second on trial: %s)", best, told)
    return best, rates


def _on_trial(name: str, runtime: ClientRuntime) -> Executor:
    kind: Any = EXECUTORS[name]
    executor: Executor = kind(runtime, compiled=False) if runtime.context.device.type == "cuda" else kind(runtime)
    return executor


def client_steps_per_second(executor: Executor, tasks: Sequence[Task], seconds: float = TRIED_SECONDS) -> float:
    """As many rounds of the tasks as fit into the time, after one that sets everything up.  Clients keep nothing."""
    runtime = tasks[0][0]
    before, module = (
        {name: dict(values) for name, values in runtime.state.rows.items()},
        copy.deepcopy(runtime.context.module.state_dict()),
    )
    tasks = tasks[: executor.sample]
    done = 0
    with threads(runtime.context), arithmetic(runtime.context):
        executor.train_all(tasks)
        _wait(runtime.context)
        started = time.perf_counter()
        while not done or time.perf_counter() - started < seconds:
            executor.train_all(tasks)
            _wait(runtime.context)
            done += sum(job.steps for _, job in tasks)
        elapsed = time.perf_counter() - started
    runtime.state.rows = before
    runtime.context.module.load_state_dict(module)
    return done / elapsed


def _wait(context: TrainingContext) -> None:
    if context.device.type == "cuda":
        torch.cuda.synchronize(context.device)


def trial(runtime: ClientRuntime, together: int, steps: int) -> list[Task]:
    """Made-up jobs of the first clients."""
    x, extension = runtime.context.layout.read(runtime.context.module), runtime.server_extension()
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
    except Exception as error:  # whatever the model, the capture or a kernel may raise
        return first_line(error)
    return str(outcome) if isinstance(outcome, DivergenceError) else None
