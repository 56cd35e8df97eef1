"""Measurements of offbeat itself."""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click
from rich.console import Console

from offbeat.cli.common import Group
from offbeat.cli.tools import enable_tools
from offbeat.errors import ConfigError, nearest


@click.group(cls=Group)
def bench() -> None:
    """Measure offbeat itself; needs a checkout of the repository."""
    enable_tools("bench")


@bench.command()
@click.option("--algorithm", default="fedbuff", show_default=True)
@click.option("--clients", type=click.IntRange(min=1), multiple=True, default=(10_000,), show_default=True,
              help="Several: a table of speed and memory against the number of clients.")  # fmt: skip
@click.option("--arrivals", type=click.IntRange(min=1), default=100_000, show_default=True)
@click.option("--concurrency", type=click.IntRange(min=1), default=1_000, show_default=True)
@click.option("--parameters", type=click.IntRange(min=1), default=7_850, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="As lines of JSON.")
def engine(
    algorithm: str, clients: Sequence[int], arrivals: int, concurrency: int, parameters: int, as_json: bool
) -> None:
    """Arrivals a second with a trainer that does nothing, and the memory they take."""
    from offbeat.algorithms import ALGORITHMS
    from offbeat.report import tables
    from offbeat.runs.progress import Measuring
    from offbeat_bench import engine as bench

    if algorithm not in ALGORITHMS:
        raise ConfigError(f"unknown name {algorithm!r}; {nearest(algorithm, ALGORITHMS)}", key="--algorithm")
    with Measuring(Console(stderr=True)) as measuring:
        if len(clients) > 1:
            rows = bench.engines(clients, algorithm, arrivals, concurrency, parameters, measuring.tell)
        else:
            measuring.tell(f"{algorithm}, {clients[0]:,} clients", 0, 1)
            rows = [bench.engine(algorithm, clients[0], arrivals, min(concurrency, clients[0]), dim=parameters)]
    if as_json:
        for row in rows:
            click.echo(json.dumps(row))
        return
    if len(rows) > 1:
        Console().print(tables.engine_scale(rows))
        return
    figures = rows[0]
    click.echo(
        f"{figures['arrivals']:,} arrivals from {figures['clients']:,} clients ({figures['concurrency']:,} busy, "
        f"{figures['parameters']:,} parameters, {algorithm}): {figures['seconds']:.1f} s, "
        f"{figures['arrivals_per_second']:,.0f} a second, peak {figures['peak_megabytes']:,.0f} MB"
    )


@bench.command()
@click.option("--algorithm", "algorithms", multiple=True, help="Only this one; may be given several times.")
@click.option("--parameters", type=click.IntRange(min=1), default=1_000_000, show_default=True)
@click.option("--clients", type=click.IntRange(min=1), default=50, show_default=True)
@click.option("--arrivals", type=click.IntRange(min=1), default=100, show_default=True)
@click.option("--device", default="cpu", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="As lines of JSON.")
def server(
    algorithms: tuple[str, ...], parameters: int, clients: int, arrivals: int, device: str, as_json: bool
) -> None:
    """What an arrival costs each server rule with each memory, beside a plain copy of the bytes that it must touch."""
    from offbeat.algorithms import ALGORITHMS
    from offbeat.report import tables
    from offbeat.runs.progress import Measuring
    from offbeat_bench import server as bench

    for name in algorithms:
        if name not in ALGORITHMS:
            raise ConfigError(f"unknown name {name!r}; {nearest(name, ALGORITHMS)}", key="--algorithm")
    with Measuring(Console(stderr=True)) as measuring:
        rows = _rows(bench.servers(parameters, clients, arrivals, device, algorithms, measuring.tell), as_json)
    if not as_json:
        Console().print(tables.server_costs(rows))


@bench.command()
@click.option("--model", "models", multiple=True, default=("lr", "mlp", "cnn"), show_default=True)
@click.option("--batch", "batches", multiple=True, type=click.IntRange(min=1), default=(10,), show_default=True)
@click.option("--group", "groups", multiple=True, type=click.IntRange(min=1), default=(50,), show_default=True,
              help="Clients whose jobs come together.")  # fmt: skip
@click.option("--executor", "executors", multiple=True, help="All of them when none is named.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--precision", type=click.Choice(["float32", "tf32", "bfloat16"]), default="tf32", show_default=True)
@click.option("--compile", "compiled", is_flag=True, help="Steps on a GPU, as in long runs.")
@click.option("--seconds", type=float, default=3.0, show_default=True, help="For each measurement.")
@click.option("--repeat", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="As lines of JSON.")
def train(
    models: Sequence[str],
    batches: Sequence[int],
    groups: Sequence[int],
    executors: Sequence[str],
    device: str,
    precision: Any,
    compiled: bool,
    seconds: float,
    repeat: int,
    as_json: bool,
) -> None:
    """Local steps a second: model × batch × clients at once × executor.

    50,000 made-up examples, one epoch: of 1,000 clients up to batches of 10 (the shape of pfl-research's own
    benchmark), of clients with ten batches each beyond.
    """
    from offbeat.executors import EXECUTORS
    from offbeat.models import MODELS
    from offbeat.report import tables
    from offbeat.runs.progress import Measuring
    from offbeat_bench.train import rates

    for option, given, known in (("--model", models, MODELS), ("--executor", executors, EXECUTORS)):
        for name in given:
            if name not in known:
                raise ConfigError(f"unknown name {name!r}; {nearest(name, list(known))}", key=option)
    chosen = executors or list(EXECUTORS)
    with Measuring(Console(stderr=True)) as measuring:
        found = rates(models, batches, groups, chosen, device, precision, seconds, repeat, compiled, measuring.tell)
        rows = _rows(found, as_json)
    if not as_json:
        Console().print(tables.training_rates(rows))


@bench.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def peers(options: Sequence[str]) -> None:
    """The same work in offbeat and other frameworks (benchmarks/peers in the repository; --help goes to it)."""
    import subprocess

    script = pathlib.Path(__file__).resolve().parents[3] / "benchmarks" / "peers" / "run.py"
    if not script.is_file():
        raise ConfigError(
            f"{script} is not there: an installed package does not have the scripts; "
            "clone the repository and run: python benchmarks/peers/run.py"
        )
    sys.exit(subprocess.run([sys.executable, str(script), *options], check=False).returncode)


@bench.command("deploy")
@click.option("--nodes", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--updates", type=click.IntRange(min=1), default=12, show_default=True, help="For each of the runs.")
@click.option("--race", is_flag=True, help="Time to accuracy with a slow node instead of updates a second.")
@click.option("--seconds", type=float, default=8.0, show_default=True, help="That a node works on a job, in a race.")
@click.option("--slowdown", type=float, default=10.0, show_default=True, help="Of one of the nodes, in a race.")
@click.option("--target", type=float, default=0.9, show_default=True, help="Accuracy, in a race.")
@click.option("--repeat", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="As lines of JSON.")
def deploy_(
    nodes: int, updates: int, race: bool, seconds: float, slowdown: float, target: float, repeat: int, as_json: bool
) -> None:
    """Flower's FedAvg and AsyncStrategy on the same nodes, with the same client app, in turn."""
    from offbeat.cli.deploy import need_flower

    need_flower()
    from offbeat.report import tables
    from offbeat.runs.progress import Measuring
    from offbeat_bench import deployment as bench

    with Measuring(Console(stderr=True)) as measuring:
        if race:
            found = bench.race(nodes, seconds, slowdown, target, repeat, measuring.tell)
        else:
            found = bench.throughput(nodes, updates, repeat, measuring.tell)
        rows = _rows(found, as_json)
    if not as_json:
        Console().print(tables.deployments(rows))


def _rows(found: Iterable[dict[str, Any]], as_json: bool) -> list[dict[str, Any]]:
    """All of them; as JSON each is printed as soon as it is there."""
    rows = []
    for row in found:
        rows.append(row)
        if as_json:
            click.echo(json.dumps(row))
    return rows
