"""The command line."""

from __future__ import annotations

import json
import pathlib
import shlex
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click
from rich.console import Console

from offbeat.errors import ConfigError, OffbeatError, nearest
from offbeat.version import __version__

INTERRUPTED = 130


class Group(click.Group):
    """Offbeat's errors become one message and exit status 2; a mistyped command gets a hint."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            _fail(f"unknown command {args[0]!r}; {nearest(args[0], self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except OffbeatError as error:
            _fail(str(error))
        except KeyboardInterrupt:
            click.echo("offbeat: interrupted", err=True)
            sys.exit(INTERRUPTED)


def _fail(message: str) -> NoReturn:
    click.echo(f"offbeat: {message}", err=True)
    sys.exit(2)


def _data_dir(command: Any) -> Any:
    return click.option(
        "--data-dir", type=click.Path(path_type=pathlib.Path), envvar="OFFBEAT_DATA",
        help="Where data sets lie (also: OFFBEAT_DATA).",
    )(command)  # fmt: skip


def _settings(command: Any) -> Any:
    """Options that change an experiment."""
    for option in (
        click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Override a key; repeatable."),
        click.option("--device", type=click.Choice(["cpu", "cuda"])),
        click.option(
            "--executor", type=click.Choice(["auto", "sequential", "vectorised", "graphs", "processes", "stacks"])
        ),
    ):
        command = option(command)
    return _data_dir(command)


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="offbeat")
def main() -> None:
    """Federated learning in which every client keeps its own time."""


@main.command()
@click.argument("file")
@_settings
@click.option("--seed", type=int, help="Seed of everything random.")
@click.option("--out", type=click.Path(path_type=pathlib.Path), help="Run folder (default: a new one under runs/).")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def run(
    file: str,
    assignments: Sequence[str],
    device: str | None,
    executor: str | None,
    data_dir: pathlib.Path | None,
    seed: int | None,
    out: pathlib.Path | None,
    quiet: bool,
) -> None:
    """Run one experiment: FILE.toml or preset:NAME."""
    from offbeat.experiments import api, config
    from offbeat.experiments.progress import Display

    table = _table(file, assignments, device=device, executor=executor, seed=seed)
    if "variants" in table:
        raise ConfigError(f"{file} describes several variants; run it with: offbeat sweep {shlex.quote(file)}")
    experiment = config.parse(table)
    folder = out or _new_folder(file, f"seed{experiment.seed}")
    console = Console()
    with Display(console, _stem(file), quiet) as display:
        result = api.execute(experiment, out=folder, data_dir=data_dir, modules=_modules(file), watch=display.watch)
    _conclude(console, result, _stem(file), quiet)


@main.command()
@click.argument("folder", type=click.Path(path_type=pathlib.Path))
@_data_dir
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def resume(folder: pathlib.Path, data_dir: pathlib.Path | None, quiet: bool) -> None:
    """Go on with an interrupted run."""
    from offbeat.experiments import api
    from offbeat.experiments.progress import Display

    console = Console()
    with Display(console, folder.name, quiet) as display:
        result = api.resume(folder, data_dir=data_dir, watch=display.watch)
    _conclude(console, result, folder.name, quiet)


@main.command()
@click.argument("file")
@_settings
@click.option("--grid", multiple=True, metavar="KEY=V1,V2…", help="An axis of the grid; repeatable.")
@click.option("--seeds", default="", metavar="0,1,2", help="Seeds to run each point with.")
@click.option("--out", type=click.Path(path_type=pathlib.Path), help="Folder of all runs; an unfinished one goes on.")
@click.option("--quiet", is_flag=True, help="Print only the final table.")
def sweep(
    file: str,
    assignments: Sequence[str],
    device: str | None,
    executor: str | None,
    data_dir: pathlib.Path | None,
    grid: Sequence[str],
    seeds: str,
    out: pathlib.Path | None,
    quiet: bool,
) -> None:
    """Run variants × grid × seeds of FILE.toml or preset:NAME, and compare them."""
    from offbeat.experiments.progress import Display, Together
    from offbeat.experiments.sweep import Cell, Sweep
    from offbeat.report import plots, tables

    table = _table(file, assignments, device=device, executor=executor)
    plan = Sweep.plan(table, grid, _seeds(seeds))
    plan.check(data_dir)
    folder = out or _new_folder(file, "sweep")
    console = Console()
    ended: dict[str, dict[str, Any]] = {}
    display: list[Display] = []

    def watch(cells: Sequence[Cell]) -> list[Any]:
        for old in display:
            old.__exit__(None, None, None)
        label = f"{cells[0].label} seed {cells[0].seed}" if len(cells) == 1 else f"{len(cells)} runs at once"
        display[:] = [Display(console, label, quiet)]
        show, all_ = display[0].__enter__().watch, Together()
        return [all_.watch(place, show) for place in range(len(cells))]

    try:
        for cell, summary in plan.run(folder, data_dir, watch, _modules(file)):
            if summary is None:
                break
            ended[cell.folder] = summary
    finally:
        for last in display:
            last.__exit__(None, None, None)
    if len(ended) < len(plan.cells):
        console.print(
            f"interrupted after {len(ended)} of {len(plan.cells)} runs; the same command with --out {folder} goes on"
        )
        sys.exit(INTERRUPTED)
    summaries: dict[str, list[dict[str, Any]]] = {}
    folders: dict[str, list[pathlib.Path]] = {}
    for cell in plan.cells:
        summaries.setdefault(cell.label, []).append(ended[cell.folder])
        if ended[cell.folder]:
            folders.setdefault(cell.label, []).append(folder / cell.folder)
    console.print(tables.results(summaries))
    if folders:
        target = next((s["target"] for group in summaries.values() for s in group if s), None)
        plots.accuracy(folders, target=target).savefig(folder / "accuracy.png")
        click.echo(f"runs     {folder}\npicture  {folder / 'accuracy.png'}")


@main.command("list")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def list_(as_json: bool) -> None:
    """What can be named in an experiment."""
    from offbeat.algorithms import ALGORITHMS, OPTIMISERS, STALENESS, TOPOLOGIES
    from offbeat.clients import CLIENTS
    from offbeat.compression import CODECS
    from offbeat.data import AUGMENTS, DATASETS, PARTITIONS
    from offbeat.engine import DISPATCHES
    from offbeat.experiments.presets import PRESETS
    from offbeat.memory import MEMORIES
    from offbeat.models import MODELS
    from offbeat.world import AVAILABILITIES, DELAYS, EFFORTS

    names = {
        "algorithms": list(ALGORITHMS),
        "optimisers": list(OPTIMISERS),
        "staleness": list(STALENESS),
        "memories": list(MEMORIES),
        "topologies": list(TOPOLOGIES),
        "clients": list(CLIENTS),
        "codecs": list(CODECS),
        "dispatches": list(DISPATCHES),
        "datasets": list(DATASETS),
        "partitions": list(PARTITIONS),
        "augmentations": list(AUGMENTS),
        "models": list(MODELS),
        "delays": list(DELAYS),
        "availabilities": list(AVAILABILITIES),
        "efforts": list(EFFORTS),
        "presets": list(PRESETS),
    }
    if as_json:
        click.echo(json.dumps(names, indent=2))
        return
    for kind, members in names.items():
        click.echo(f"{kind:16}{', '.join(members)}")


@main.command()
@click.argument("preset")
def show(preset: str) -> None:
    """Print a preset as TOML, to be changed and run."""
    from offbeat.experiments.presets import text

    click.echo(text(preset.removeprefix("preset:")), nl=False)


@main.command()
@click.argument("file")
@_settings
@click.option("--seed", type=int, help="Seed of everything random.")
@click.option("--png", type=click.Path(path_type=pathlib.Path), is_flag=False, flag_value=pathlib.Path("partition.png"),
              help="Draw labels by clients into this file (partition.png when none is named).")  # fmt: skip
def partition(
    file: str,
    assignments: Sequence[str],
    device: str | None,
    executor: str | None,
    data_dir: pathlib.Path | None,
    seed: int | None,
    png: pathlib.Path | None,
) -> None:
    """Show how FILE.toml divides its data among the clients."""
    from offbeat.data import data_dir as place
    from offbeat.experiments import config
    from offbeat.report import plots

    table = _table(file, assignments, device=device, executor=executor, seed=seed)
    table.pop("variants", None)
    experiment = config.parse(table)
    data = experiment.data.load(place(data_dir), experiment.seed)
    counts = data.label_counts()
    labels = (counts > 0).sum(axis=1)
    sizes = data.sizes
    click.echo(f"{data.clients} clients, {sizes.sum():,} examples, {data.dataset.classes} labels")
    click.echo(f"examples a client: {sizes.min()} to {sizes.max()}, median {int(sorted(sizes)[len(sizes) // 2])}")
    click.echo(f"labels a client:   {labels.min()} to {labels.max()}, mean {labels.mean():.1f}")
    if png is not None:
        try:
            plots.partition(counts).savefig(png)
        except (OSError, ValueError) as error:
            raise ConfigError(str(error), key="--png") from error
        click.echo(f"picture: {png}")


@main.group(cls=Group)
def bench() -> None:
    """Measure offbeat itself."""


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
    from offbeat.experiments import bench
    from offbeat.report import tables

    if algorithm not in ALGORITHMS:
        raise ConfigError(f"unknown name {algorithm!r}; {nearest(algorithm, ALGORITHMS)}", key="--algorithm")
    if len(clients) > 1:
        rows = bench.engines(clients, algorithm, arrivals, concurrency, parameters)
    else:
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
    from offbeat.experiments import bench
    from offbeat.report import tables

    for name in algorithms:
        if name not in ALGORITHMS:
            raise ConfigError(f"unknown name {name!r}; {nearest(name, ALGORITHMS)}", key="--algorithm")
    rows = bench.servers(parameters, clients, arrivals, device, algorithms)
    if as_json:
        for row in rows:
            click.echo(json.dumps(row))
        return
    Console().print(tables.server_costs(list(rows)))


@bench.command()
@click.option("--model", "models", multiple=True, default=("lr", "mlp", "cnn"), show_default=True)
@click.option("--batch", "batches", multiple=True, type=click.IntRange(min=1), default=(10,), show_default=True)
@click.option("--group", "groups", multiple=True, type=click.IntRange(min=1), default=(50,), show_default=True,
              help="Clients whose jobs come together.")  # fmt: skip
@click.option("--executor", "executors", multiple=True, help="All of them when none is named.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--precision", type=click.Choice(["float32", "tf32", "bfloat16"]), default="tf32", show_default=True)
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
    seconds: float,
    repeat: int,
    as_json: bool,
) -> None:
    """Local steps a second: model × batch × clients at once × executor.

    50,000 made-up examples, one epoch: of 1,000 clients up to batches of 10 (the shape of pfl-research's own
    benchmark), of clients with ten batches each beyond.
    """
    from offbeat.engine.executors import EXECUTORS
    from offbeat.experiments.bench_train import rates
    from offbeat.models import MODELS
    from offbeat.report import tables

    for option, given, known in (("--model", models, MODELS), ("--executor", executors, EXECUTORS)):
        for name in given:
            if name not in known:
                raise ConfigError(f"unknown name {name!r}; {nearest(name, list(known))}", key=option)
    rows = []
    for row in rates(models, batches, groups, executors or list(EXECUTORS), device, precision, seconds, repeat):
        rows.append(row)
        if as_json:
            click.echo(json.dumps(row))
    if not as_json:
        Console().print(tables.training_rates(rows))


@bench.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def peers(options: Sequence[str]) -> None:
    """The same work in offbeat and other frameworks (benchmarks/peers in the repository; --help goes to it)."""
    import subprocess

    script = pathlib.Path(__file__).resolve().parents[2] / "benchmarks" / "peers" / "run.py"
    if not script.is_file():
        raise ConfigError(
            f"{script} is not there: an installed package does not have the scripts; "
            "clone the repository and run: python benchmarks/peers/run.py"
        )
    sys.exit(subprocess.run([sys.executable, str(script), *options], check=False).returncode)


def _table(file: str, assignments: Sequence[str], **flags: Any) -> dict[str, Any]:
    """The experiment's table: the file or preset, then --set, then the flags that have names of their own."""
    import tomllib

    from offbeat.experiments import config
    from offbeat.experiments.presets import text

    if file.startswith("preset:"):
        table = tomllib.loads(text(file.removeprefix("preset:")))
    else:
        table = config.read(pathlib.Path(file))
        sys.path.insert(0, str(_modules(file)))
    for assignment in assignments:
        config.override(table, assignment)
    return table | {name: value for name, value in flags.items() if value is not None}


def _modules(file: str) -> pathlib.Path | None:
    """Where the user's own modules are looked for: beside the file, or where the run of a config.toml had them."""
    from offbeat.experiments.folder import Origin

    if file.startswith("preset:"):
        return None
    folder = pathlib.Path(file).resolve().parent
    return pathlib.Path(Origin.of(folder).modules or folder)


def _seeds(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ConfigError(f"{text!r}: expected whole numbers, such as 0,1,2", key="--seeds") from None


def _stem(file: str) -> str:
    return pathlib.Path(file.removeprefix("preset:")).stem


def _new_folder(file: str, kind: str) -> pathlib.Path:
    base = pathlib.Path("runs") / f"{_stem(file)}-{kind}"
    tries = (base if n == 1 else base.with_name(f"{base.name}-{n}") for n in range(1, 1_000_000))
    return next(path for path in tries if not path.exists())


def _conclude(console: Console, result: Any, label: str, quiet: bool) -> None:
    """The last words of a run."""
    from offbeat.report import tables

    if result.interrupted:
        click.echo(
            f"interrupted at round {result.summary['rounds']}; go on with: offbeat resume {result.folder}", err=True
        )
        sys.exit(INTERRUPTED)
    if not quiet:
        console.print(tables.results({label: [result.summary]}))
        click.echo(f"run  {result.folder}")
