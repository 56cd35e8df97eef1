"""Which executor: as asked for, or the one that is fastest here, found out by trying."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import time
from collections.abc import Sequence
from typing import Literal

import torch

from offbeat.engine.executors.base import Executor, Task, arithmetic, threads
from offbeat.engine.executors.graphs import Graphs
from offbeat.engine.executors.lanes import cores
from offbeat.engine.executors.probe import why_not_stackable
from offbeat.engine.executors.processes import Processes
from offbeat.engine.executors.ray import Ray, missing
from offbeat.engine.executors.sequential import Sequential
from offbeat.engine.executors.vectorised import Vectorised
from offbeat.engine.work import Work
from offbeat.errors import ConfigError, DivergenceError, first_line
from offbeat.messages import Job
from offbeat.seeds import key

EXECUTORS: dict[str, type[Executor]] = {
    "sequential": Sequential,
    "vectorised": Vectorised,
    "graphs": Graphs,
    "processes": Processes,
    "ray": Ray,
}
Name = Literal["sequential", "vectorised", "graphs", "processes", "ray"]
Choice = Literal["auto", "sequential", "vectorised", "graphs", "processes", "ray"]

TRIED_STEPS = 10  # at most, of each client on trial: what a job costs beside its steps is to weigh as it will
TRIED_SECONDS = 0.5  # for each candidate, after it has been set up
AHEAD = 1.1  # a candidate replaces an earlier one that is slower than this
HEAVY = 1000.0  # client-steps a second, under which processes are worth their messages
# Seconds: a run that the first candidate does in less is not worth trying others, nor their other bits.  To try one
# takes about a second, and some where it must be captured.
SHORT = {"cpu": 10.0, "cuda": 40.0}

_LOG = logging.getLogger("offbeat")
_CHOSEN: dict[object, tuple[str, dict[str, float]]] = {}


def choose(choice: Choice, work: Work, together: int, rounds: int) -> tuple[Name, dict[str, float]]:
    """The executor's name, and for `auto` the client-steps a second of each candidate on jobs that come `together`.

    At most `together` jobs a round are expected.  What was found for a model, a rule, a device and an amount of work
    holds for the rest of the process: the runs of a sweep agree.
    """
    if choice != "auto":
        if reason := why_not(choice, work):
            raise ConfigError(f"{choice!r} cannot run this model: {reason}  Use 'sequential'.", key="executor")
        return choice, {}
    setting = (str(work.module), work.layout.fingerprint, work.rule, work.device, work.precision, together, rounds)
    if setting not in _CHOSEN:
        _CHOSEN[setting] = _fastest(work, together, rounds)
    name, rates = _CHOSEN[setting]
    return name, rates  # type: ignore[return-value]


def why_not(name: str, work: Work) -> str | None:
    """Why an executor cannot run a model; None when it can."""
    gpu = work.device.type == "cuda"
    if name == "vectorised":
        return why_not_stackable(work)
    if name == "ray":
        return missing()
    if name == "graphs":
        return _why_not_capturable(work) if gpu else "CUDA graphs need device = 'cuda'."
    if name == "processes" and (gpu or not hasattr(os, "sched_getaffinity")):
        return "it spreads clients over the cores of a CPU, under Linux."
    return None


def _fastest(work: Work, together: int, rounds: int) -> tuple[str, dict[str, float]]:
    """Try what can run the model; on a GPU uncompiled, which ranked a CNN and a ResNet alike and takes no minute."""
    gpu = work.device.type == "cuda"
    able = [n for n in ("vectorised", "graphs" if gpu else "sequential") if why_not(n, work) is None] or ["sequential"]
    if why_not("processes", work) is None and cores() > 1:
        able.append("processes")
    tasks = trial(work, together, TRIED_STEPS)
    steps = rounds * sum(work.steps(job.client) for _, job in tasks)
    rates: dict[str, float] = {}
    best = able[0]
    for name in able if len(able) > 1 else ():
        if name == "processes" and rates[best] > HEAVY:
            continue
        with contextlib.closing(_on_trial(name, work)) as executor:
            try:
                rates[name] = client_steps_per_second(executor, tasks)
            except ConfigError:  # a child of this program cannot differentiate
                continue
        best = name if rates[name] > AHEAD * rates[best] else best
        if steps < SHORT[work.device.type] * rates[best]:
            break
    told = ", ".join(f"{name} {rate:,.0f}" for name, rate in rates.items())
    _LOG.info("executor %s (client-steps a second on trial: %s)", best, told)
    return best, rates


def _on_trial(name: str, work: Work) -> Executor:
    return EXECUTORS[name](work, compiled=False) if work.device.type == "cuda" else EXECUTORS[name](work)  # type: ignore[call-arg]


def client_steps_per_second(executor: Executor, tasks: Sequence[Task], seconds: float = TRIED_SECONDS) -> float:
    """As many rounds of the tasks as fit into the time, after one that sets everything up.  Clients keep nothing."""
    work = tasks[0][0]
    before, module = {name: dict(values) for name, values in work.kept.items()}, copy.deepcopy(work.module.state_dict())
    tasks = tasks[: executor.sample]
    done = 0
    with threads(work), arithmetic(work):
        executor.train_all(tasks)
        _wait(work)
        started = time.perf_counter()
        while not done or time.perf_counter() - started < seconds:
            executor.train_all(tasks)
            _wait(work)
            done += sum(job.steps for _, job in tasks)
        elapsed = time.perf_counter() - started
    work.kept = before
    work.module.load_state_dict(module)
    return done / elapsed


def _wait(work: Work) -> None:
    if work.device.type == "cuda":
        torch.cuda.synchronize(work.device)


def trial(work: Work, together: int, steps: int) -> list[Task]:
    """Made-up jobs of the first clients."""
    x, half = work.layout.read(work.module), work.server_half()
    if half is not None:
        half.start(x, work.data.clients)
    extra = half.extra() if half is not None else {}
    clients = [i % work.data.clients for i in range(together)]
    return [(work, Job(i, c, 0, x, min(steps, work.steps(c)), key(i), extra=extra)) for i, c in enumerate(clients)]


def _why_not_capturable(work: Work) -> str | None:
    try:
        with contextlib.closing(Graphs(work, compiled=False)) as graphs:
            outcome = graphs.train_all(trial(work, 1, 1))[0]
    except Exception as error:  # whatever the model, the capture or a kernel may raise
        return first_line(error)
    return str(outcome) if isinstance(outcome, DivergenceError) else None
