"""The summary of a run: the content of `summary.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from offbeat.algorithms import Algorithm
from offbeat.client.gradients import COLUMNS
from offbeat.executors import Executor
from offbeat.metric_info import MetricInfo
from offbeat.runs import privacy
from offbeat.runs.assembly import Assembly
from offbeat.runs.delays import Delays
from offbeat.runs.result import RunCounters, algorithm_name
from offbeat.server.loop import Loop
from offbeat.server.session import RunTransport


def reaches(line: Mapping[str, Any], target: tuple[MetricInfo, float]) -> bool:
    """Return whether an evaluation reaches a target: a metric and its value."""
    info, value = target
    return info.reaches(line[info.name], value)


def evaluation_row(
    counters: RunCounters, transport: RunTransport, executor: Executor, algorithm: Algorithm
) -> dict[str, Any]:
    """Return the figures of an evaluation's row that do not depend on the model.

    Args:
        counters: The counters of the run.
        transport: The transport of the run.
        executor: The executor.
        algorithm: The server's algorithm.
    """
    return {
        "virtual_seconds": counters.virtual_seconds,
        "staleness_mean": counters.staleness_mean,
        "staleness_max": counters.staleness_max,
        "updates": counters.updates,
        "bytes_up": counters.bytes_up,
        "bytes_down": transport.bytes_down,
        "client_steps": counters.client_steps,
        "wall_seconds": counters.wall_seconds,
        **executor.metrics(),
        **privacy.metrics(algorithm),
    }


LATE, LAST_QUARTER = 10, 0.75


def late_mean(metrics: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Return the mean of the last ten evaluations, or None unless all of them lie in the last quarter of the run.

    Args:
        metrics: The evaluations.
        name: The metric.
    """
    last = metrics[-LATE:]
    if len(last) < LATE or last[0]["version"] < LAST_QUARTER * last[-1]["version"]:
        return None
    return float(sum(line[name] for line in last) / LATE)


def summarize(
    assembly: Assembly,
    loop: Loop,
    transport: RunTransport,
    counters: RunCounters,
    metrics: Sequence[Mapping[str, Any]],
    delays: Delays,
) -> dict[str, Any]:
    """Return the result of a run in figures.

    Args:
        assembly: The experiment.
        loop: The server loop in its current state.
        transport: The transport of the run.
        counters: The counters of the run.
        metrics: The evaluations; none if the run was interrupted during the first one.
        delays: The delays of the run.
    """
    experiment, context, executor = assembly.experiment, assembly.context, assembly.executor
    task, wall = experiment.task, counters.wall_seconds
    target = experiment.evaluation.target_of(task)
    main, reached = task.main, [line for line in metrics if target is not None and reaches(line, target)]
    values = [line[main.name] for line in metrics]
    return {
        "algorithm": algorithm_name(experiment.algorithm),
        "seed": experiment.seed,
        "metric": main.name,
        "metric_unit": main.unit,
        **{info.name: metrics[-1][info.name] if metrics else None for info in task.metric_infos()},
        f"{main.name}_last10": late_mean(metrics, main.name),
        f"best_{main.name}": main.best(values) if metrics else None,
        "target": target[1] if target is not None else None,
        "target_metric": target[0].name if target is not None else None,
        "target_seconds": reached[0]["virtual_seconds"] if reached else None,
        "target_bytes_up": reached[0]["bytes_up"] if reached else None,
        "rounds": counters.version,
        "updates": counters.updates,
        "lost": counters.lost,
        "late": counters.late,
        "refused": dict(sorted(counters.refused.items())),
        "virtual_seconds": counters.virtual_seconds,
        "budget": experiment.budget.amounts if experiment.budget is not None else None,
        "real": transport.real_time,  # real clients, and seconds of the wall clock
        "wall_seconds": wall,
        "client_steps": counters.client_steps,
        "client_steps_per_second": counters.client_steps / wall if wall else 0.0,
        "bytes_up": counters.bytes_up,
        "bytes_down": transport.bytes_down,
        "bytes_peer": executor.peer_bytes,
        **executor.metrics(),
        "staleness_mean": counters.staleness_mean,
        "staleness_max": counters.staleness_max,
        **delays.summary(cached=loop.algorithm.update_cache is not None),
        **_of_network(assembly),
        **_of_gradients(metrics),
        **privacy.summary(loop.algorithm),
        "clients": context.data.clients,
        "attackers": len(assembly.attackers),
        "parameters": context.split.shared.dim,
        "executor": assembly.executor_name,
        "executors_tried": assembly.rates,
        "precision": experiment.precision,
        "device": experiment.device,
    }


def _of_network(assembly: Assembly) -> dict[str, Any]:
    """Return the figures of a gossip network that the theory of AFGA uses, apart from ρ."""
    experiment, clients = assembly.experiment, assembly.context.data.clients
    network = experiment.algorithm.network()
    if network is None or not network.restarts:
        return {}
    reporting = experiment.scheduler.cohort(clients)
    return {"clusters": network.clusters, "rho_limit": reporting / (reporting + clients)}


def _of_gradients(metrics: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the last training loss, the mean ‖∇f(x)‖² and the largest heterogeneity of all evaluations."""
    if not metrics or not all(name in metrics[-1] for name in COLUMNS):
        return {}
    loss, square, heterogeneity = ([line[name] for line in metrics] for name in COLUMNS)
    return {
        "train_loss": loss[-1],
        "gradient_square_mean": sum(square) / len(square),
        "heterogeneity_max": max(heterogeneity),
    }
