"""The commands `bench`."""

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
    """Measure the performance of offbeat (needs a checkout of the repository)."""
    enable_tools("bench")


@bench.command()
@click.option("--algorithm", default="fedbuff", show_default=True, help="Algorithm to measure.")
@click.option("--clients", type=click.IntRange(min=1), multiple=True, default=(10_000,), show_default=True,
              help="Number of clients; repeat it for a table of speed and memory by clients.")  # fmt: skip
@click.option("--arrivals", type=click.IntRange(min=1), default=100_000, show_default=True, help="Updates to process.")
@click.option("--concurrency", type=click.IntRange(min=1), default=1_000, show_default=True, help="Busy clients.")
@click.option("--parameters", type=click.IntRange(min=1), default=7_850, show_default=True, help="Model size.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def engine(
    algorithm: str, clients: Sequence[int], arrivals: int, concurrency: int, parameters: int, as_json: bool
) -> None:
    """Measure arrivals per second with a trainer that does nothing, and peak memory."""
    from offbeat.algorithms import ALGORITHMS
    from offbeat.runs.progress import Measuring
    from offbeat_bench import engine as bench
    from offbeat_bench import tables

    if algorithm not in ALGORITHMS:
        raise ConfigError(f"unknown name {algorithm!r}; {nearest(algorithm, ALGORITHMS)}", key="--algorithm")
    with Measuring(Console(stderr=True)) as measuring:
        if len(clients) > 1:
            rows = bench.engines(clients, algorithm, arrivals, concurrency, parameters, measuring.next)
        else:
            measuring.next(f"{algorithm}, {clients[0]:,} clients", 0, 1)
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
        f"{figures['arrivals_per_second']:,.0f} per second, peak {figures['peak_megabytes']:,.0f} MB"
    )


@bench.command()
@click.option("--algorithm", "algorithms", multiple=True, help="Measure only this algorithm; repeatable.")
@click.option("--parameters", type=click.IntRange(min=1), default=1_000_000, show_default=True, help="Model size.")
@click.option("--clients", type=click.IntRange(min=1), default=50, show_default=True, help="Number of clients.")
@click.option("--arrivals", type=click.IntRange(min=1), default=100, show_default=True, help="Updates to process.")
@click.option("--device", default="cpu", show_default=True, help="Where to measure.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def server(
    algorithms: tuple[str, ...], parameters: int, clients: int, arrivals: int, device: str, as_json: bool
) -> None:
    """Measure the cost of an arrival for each algorithm and cache.

    It is compared with a plain copy of the bytes that the algorithm must touch.
    """
    from offbeat.algorithms import ALGORITHMS
    from offbeat.runs.progress import Measuring
    from offbeat_bench import server as bench
    from offbeat_bench import tables

    for name in algorithms:
        if name not in ALGORITHMS:
            raise ConfigError(f"unknown name {name!r}; {nearest(name, ALGORITHMS)}", key="--algorithm")
    with Measuring(Console(stderr=True)) as measuring:
        rows = _rows(bench.servers(parameters, clients, arrivals, device, algorithms, measuring.next), as_json)
    if not as_json:
        Console().print(tables.server_costs(rows))


@bench.command()
@click.option("--model", "models", multiple=True, default=("lr", "mlp", "cnn"), show_default=True)
@click.option("--batch", "batches", multiple=True, type=click.IntRange(min=1), default=(10,), show_default=True)
@click.option("--group", "groups", multiple=True, type=click.IntRange(min=1), default=(50,), show_default=True,
              help="Clients that are trained at once; repeatable.")  # fmt: skip
@click.option("--executor", "executors", multiple=True, help="Executor to measure (default: all); repeatable.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--precision", type=click.Choice(["float32", "tf32", "bfloat16"]), default="tf32", show_default=True)
@click.option("--compile", "compiled", is_flag=True, help="Compile steps on a GPU, as long runs do.")
@click.option("--seconds", type=float, default=3.0, show_default=True, help="Duration of a measurement.")
@click.option("--repeat", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
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
    """Measure local steps per second, by model, batch size, concurrent clients and executor.

    One epoch of 50,000 synthetic examples: 1,000 clients for batches of up to 10 (the shape of pfl-research's
    benchmark); for larger batches, clients with ten batches each.
    """
    from offbeat.executors import EXECUTORS
    from offbeat.models import MODELS
    from offbeat.runs.progress import Measuring
    from offbeat_bench import tables
    from offbeat_bench.train import rates

    for option, given, known in (("--model", models, MODELS), ("--executor", executors, EXECUTORS)):
        for name in given:
            if name not in known:
                raise ConfigError(f"unknown name {name!r}; {nearest(name, list(known))}", key=option)
    chosen = executors or list(EXECUTORS)
    with Measuring(Console(stderr=True)) as measuring:
        found = rates(models, batches, groups, chosen, device, precision, seconds, repeat, compiled, measuring.next)
        rows = _rows(found, as_json)
    if not as_json:
        Console().print(tables.training_rates(rows))


@bench.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def peers(options: Sequence[str]) -> None:
    """Compare offbeat with other frameworks.

    All options are passed to benchmarks/peers/run.py.
    """
    import subprocess

    script = pathlib.Path(__file__).resolve().parents[3] / "benchmarks" / "peers" / "run.py"
    if not script.is_file():
        raise ConfigError(
            f"{script} does not exist: it is not part of the installed package; "
            "clone the repository and run: python benchmarks/peers/run.py"
        )
    sys.exit(subprocess.run([sys.executable, str(script), *options], check=False).returncode)


@bench.command("deploy")
@click.option("--nodes", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--updates", type=click.IntRange(min=1), default=12, show_default=True, help="Updates per run.")
@click.option(
    "--race", is_flag=True, help="Measure the time to an accuracy with a slow node instead of updates per second."
)
@click.option("--seconds", type=float, default=8.0, show_default=True, help="Duration of a job with --race.")
@click.option("--slowdown", type=float, default=10.0, show_default=True, help="Slowdown of one node with --race.")
@click.option("--target", type=float, default=0.9, show_default=True, help="Accuracy to reach with --race.")
@click.option("--repeat", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def deploy_(
    nodes: int, updates: int, race: bool, seconds: float, slowdown: float, target: float, repeat: int, as_json: bool
) -> None:
    """Compare Flower's FedAvg with AsyncStrategy on the same nodes with the same client app."""
    from offbeat.cli.deploy import need_flower

    need_flower()
    from offbeat.runs.progress import Measuring
    from offbeat_bench import deployment as bench
    from offbeat_bench import tables

    with Measuring(Console(stderr=True)) as measuring:
        if race:
            found = bench.race(nodes, seconds, slowdown, target, repeat, measuring.next)
        else:
            found = bench.throughput(nodes, updates, repeat, measuring.next)
        rows = _rows(found, as_json)
    if not as_json:
        Console().print(tables.deployments(rows))


def _rows(found: Iterable[dict[str, Any]], as_json: bool) -> list[dict[str, Any]]:
    """Collect the rows; as JSON, print each as soon as it is measured."""
    rows = []
    for row in found:
        rows.append(row)
        if as_json:
            click.echo(json.dumps(row))
    return rows
