"""The commands `deploy` and `replay`. Flower is imported only when a command needs it."""

from __future__ import annotations

import contextlib
import importlib.util
import pathlib
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import click
from rich.console import Console

from offbeat.cli.common import (
    INTERRUPTED,
    SEVERAL,
    Group,
    data_dir_option,
    modules_of,
    new_folder,
    out_option,
    read_table,
    set_option,
    stem,
    track_option,
    track_words,
)
from offbeat.errors import ConfigError, OffbeatError

if TYPE_CHECKING:
    from offbeat.runs.result import Watch


@click.group(cls=Group)
def deploy() -> None:
    """Train with real clients on Flower."""
    need_flower()


@deploy.command()
@click.argument("file")
@click.option("--clients", type=click.IntRange(min=1), help="Number of nodes (default: data.clients).")
@set_option
@out_option
@data_dir_option
@track_option
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def local(
    file: str,
    clients: int | None,
    assignments: Sequence[str],
    out: pathlib.Path | None,
    data_dir: pathlib.Path | None,
    track: Sequence[str],
    quiet: bool,
) -> None:
    """Run a whole federation on this machine: server and clients.

    FILE is a TOML file or preset:NAME. The same command with the --out of an unfinished run resumes it.
    """
    from offbeat.deploy.local import run_local
    from offbeat.deploy.submission import RunRequest
    from offbeat.flower.server import assemble, can_resume
    from offbeat.runs import config
    from offbeat.runs.folder import CHECKPOINT
    from offbeat.runs.interrupt import interruptible
    from offbeat.runs.trackers import absolute, trackers

    table = read_table(file, assignments)
    if SEVERAL & table.keys():
        raise ConfigError(f"{file} describes several runs; a deployment needs a file with a single run")
    if clients is not None:
        table.setdefault("data", {})["clients"] = clients
    experiment = config.parse(table)
    folder = out or new_folder(file, f"local-seed{experiment.seed}")
    trackers(track)  # report errors before the server app is started
    assembly = assemble(experiment, str(data_dir) if data_dir else None)
    resumed = can_resume(folder, assembly)
    request = RunRequest(config.dump(experiment), folder, data_dir, modules_of(file), track=absolute(track))
    console = Console()
    if resumed and not quiet:
        console.print(f"resuming {folder}", highlight=False)
    resume = f"offbeat deploy local {shlex.join(_arguments(file, clients, assignments, folder, data_dir, track))}"
    try:
        with _display(console, stem(file), quiet) as (watch, report), interruptible() as interrupted:
            done = run_local(request, assembly.context.data.clients, interrupted, watch, report)
    except OffbeatError as error:
        if any((folder / CHECKPOINT).glob("*")):
            raise OffbeatError(f"{error}\nresume with: {resume}") from error
        raise
    if not done:
        click.echo(f"interrupted; resume with: {resume}", err=True)
        sys.exit(INTERRUPTED)
    _conclude(console, folder, stem(file), quiet)


@deploy.command()
@click.argument("place", metavar="DIR", type=click.Path(path_type=pathlib.Path))
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Host name or address at which clients reach the server."
)
@click.option("--port", type=click.IntRange(1, 65535), default=9092, show_default=True, help="Port of the server.")
@click.option("--nodes", type=click.IntRange(min=1), default=2, show_default=True, help="Number of client nodes.")
def init(place: pathlib.Path, host: str, port: int, nodes: int) -> None:
    """Create certificates, keys and one folder per machine of a deployment."""
    from offbeat.deploy import bundle

    bundle.init(place, host, port, nodes)
    click.echo(
        f"server   {place / 'server'}: edit experiment.toml, then: offbeat deploy server {place / 'server'}\n"
        f"clients  {place / 'client-0'} …: copy each to its machine, then: offbeat deploy client DIR "
        f"--data my_module:load\n"
        f"secret   {place / 'ca.key'}: do not share it"
    )


@deploy.command()
@click.argument("place", metavar="DIR", type=click.Path(path_type=pathlib.Path))
@click.option("--listen", default="127.0.0.1:8000", show_default=True, metavar="HOST:PORT",
              help="Address of the SuperLink; anyone who can reach it controls the deployment.")  # fmt: skip
@data_dir_option
@track_option
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def server(place: pathlib.Path, listen: str, data_dir: pathlib.Path | None, track: Sequence[str], quiet: bool) -> None:
    """Run the experiment of a server's folder, and restart processes that die.

    The same command resumes an interrupted run.
    """
    from offbeat.deploy.bundle import EXPERIMENT, ServerBundle
    from offbeat.deploy.durable import run_server
    from offbeat.deploy.submission import RunRequest
    from offbeat.flower.server import assemble, can_resume
    from offbeat.runs import config
    from offbeat.runs.folder import is_finished
    from offbeat.runs.interrupt import interruptible
    from offbeat.runs.trackers import absolute, trackers

    bundle, address, console, label = ServerBundle(place), _address(listen), Console(), place.resolve().name
    if is_finished(place / "run"):  # a supervisor may start this command again
        _conclude(console, place / "run", label, quiet)
        return
    experiment = config.parse(read_table(str(place / EXPERIMENT), ()))
    trackers(track)  # report errors before the server app is started
    request = RunRequest(config.dump(experiment), place / "run", data_dir, place, track=absolute(track))
    can_resume(request.out, assemble(experiment, str(data_dir) if data_dir else None))
    with _display(console, label, quiet) as (watch, report), interruptible() as interrupted:
        done = run_server(bundle, address, request, interrupted, watch, report)
    if not done:
        arguments = shlex.join([str(place), *track_words(track)])
        click.echo(f"interrupted; resume with: offbeat deploy server {arguments}", err=True)
        sys.exit(INTERRUPTED)
    _conclude(console, request.out, label, quiet)


@deploy.command()
@click.argument("place", metavar="DIR", type=click.Path(path_type=pathlib.Path))
@click.option(
    "--data",
    metavar="MODULE:FUNCTION",
    help="Function that loads this node's data (default: its part of the experiment's data).",
)
@data_dir_option
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def client(place: pathlib.Path, data: str | None, data_dir: pathlib.Path | None, quiet: bool) -> None:
    """Join a deployment as a client, until stopped.

    DIR is the client's folder from `offbeat deploy init`.
    """
    from offbeat.deploy.bundle import ClientBundle
    from offbeat.deploy.node import run_node
    from offbeat.runs.interrupt import interruptible

    with interruptible() as interrupted:
        run_node(ClientBundle(place), data, data_dir, interrupted, lambda text: None if quiet else click.echo(text))


@click.command()
@click.argument("folder", metavar="RUN", type=click.Path(path_type=pathlib.Path))
@data_dir_option
def replay(folder: pathlib.Path, data_dir: pathlib.Path | None) -> None:
    """Replay a deployment from its log, and compare the models bit for bit.

    RUN is the run folder of the deployment.
    """
    need_flower()
    from offbeat.flower.server import replay as replay_run

    result = replay_run(folder, str(data_dir) if data_dir else None)
    verdict = "the models are identical, bit for bit" if result.same else "the models differ"
    click.echo(f"version {result.version}, {result.updates} updates: {verdict}")
    sys.exit(0 if result.same else 1)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"{text!r}: expected HOST:PORT, such as 127.0.0.1:8000", key="--listen")
    return host, int(port)


def need_flower() -> None:
    """Raise a ConfigError if Flower is not installed."""
    if importlib.util.find_spec("flwr") is None:
        raise ConfigError("a deployment needs Flower; install it with: pip install 'offbeat[flower]'")


@contextlib.contextmanager
def _display(console: Console, label: str, quiet: bool) -> Iterator[tuple[Watch, Callable[[str], None]]]:
    """Show the progress of a run in other processes; yield a watch and a function that prints messages."""
    from offbeat.runs.progress import Display

    def report(text: str) -> None:
        if not quiet:
            console.print(text, highlight=False, markup=False, soft_wrap=True)

    with Display(console, label, quiet) as display:
        yield display.watch, report


def _arguments(
    file: str,
    clients: int | None,
    assignments: Sequence[str],
    folder: pathlib.Path,
    data_dir: pathlib.Path | None,
    track: Sequence[str],
) -> list[str]:
    """Return the arguments of the command that resumes a run."""
    words = [file, "--out", str(folder)]
    words += ["--clients", str(clients)] if clients else []
    words += [word for assignment in assignments for word in ("--set", assignment)]
    words += ["--data-dir", str(data_dir)] if data_dir else []
    return words + track_words(track)


def _conclude(console: Console, folder: pathlib.Path, label: str, quiet: bool) -> None:
    from offbeat.report import tables
    from offbeat.runs.folder import read_summary

    if not quiet:
        console.print(tables.fitted(tables.results({label: [read_summary(folder)]}), console))
        click.echo(f"run  {folder}")
