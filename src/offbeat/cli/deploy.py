"""The command line of deployments.  Nothing of Flower's is imported before a command needs it."""

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
    """Train with real clients, over Flower."""
    need_flower()


@deploy.command()
@click.argument("file")
@click.option("--clients", type=click.IntRange(min=1), help="How many nodes (default: data.clients).")
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
    """The whole federation on this machine: FILE.toml or preset:NAME.

    The same command with --out of an unfinished run goes on with it.
    """
    from offbeat.deploy.local import federate
    from offbeat.deploy.submission import Order
    from offbeat.flower.server import assemble, is_begun
    from offbeat.runs import config
    from offbeat.runs.interrupt import interruptible
    from offbeat.runs.trackers import absolute, trackers

    table = read_table(file, assignments)
    if SEVERAL & table.keys():
        raise ConfigError(f"{file} describes several runs: name one of them in a file of its own")
    if clients is not None:
        table.setdefault("data", {})["clients"] = clients
    experiment = config.parse(table)
    folder = out or new_folder(file, f"local-seed{experiment.seed}")
    trackers(track)  # a mistake shows here, before the server app is started
    assembly = assemble(experiment, str(data_dir) if data_dir else None)
    again = is_begun(folder, assembly)
    order = Order(config.dump(experiment), folder, data_dir, modules_of(file), track=absolute(track))
    console = Console()
    if again and not quiet:
        console.print(f"going on with {folder}", highlight=False)
    same = f"offbeat deploy local {shlex.join(_same(file, clients, assignments, folder, data_dir, track))}"
    try:
        with _display(console, stem(file), quiet) as (watch, tell), interruptible() as interrupted:
            done = federate(order, assembly.context.data.clients, interrupted, watch, tell)
    except OffbeatError as error:
        if any(folder.glob("checkpoint/*")):
            raise OffbeatError(f"{error}\ngo on with: {same}") from error
        raise
    if not done:
        click.echo(f"interrupted; go on with: {same}", err=True)
        sys.exit(INTERRUPTED)
    _conclude(console, folder, stem(file), quiet)


@deploy.command()
@click.argument("place", metavar="DIR", type=click.Path(path_type=pathlib.Path))
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Name or address under which clients find the server."
)
@click.option("--port", type=click.IntRange(1, 65535), default=9092, show_default=True, help="Port that clients call.")
@click.option("--nodes", type=click.IntRange(min=1), default=2, show_default=True)
def init(place: pathlib.Path, host: str, port: int, nodes: int) -> None:
    """Write certificates, keys and one folder for each machine of a deployment."""
    from offbeat.deploy import bundle

    bundle.init(place, host, port, nodes)
    click.echo(
        f"server   {place / 'server'}: edit experiment.toml, then: offbeat deploy server {place / 'server'}\n"
        f"clients  {place / 'client-0'} …: each on its machine: offbeat deploy client DIR --data my_module:load\n"
        f"keep     {place / 'ca.key'}: to yourself"
    )


@deploy.command()
@click.argument("place", metavar="DIR", type=click.Path(path_type=pathlib.Path))
@click.option("--listen", default="127.0.0.1:8000", show_default=True, metavar="HOST:PORT",
              help="Where the SuperLink listens; whoever reaches it rules it.")  # fmt: skip
@data_dir_option
@track_option
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def server(place: pathlib.Path, listen: str, data_dir: pathlib.Path | None, track: Sequence[str], quiet: bool) -> None:
    """Run the experiment of a server's folder to its end, whatever dies meanwhile.

    The same command goes on with a run that was interrupted.
    """
    from offbeat.deploy.bundle import EXPERIMENT, ServerBundle
    from offbeat.deploy.durable import serve_forever
    from offbeat.deploy.submission import Order
    from offbeat.flower.server import assemble, is_begun
    from offbeat.runs import config
    from offbeat.runs.interrupt import interruptible
    from offbeat.runs.trackers import absolute, trackers

    bundle, address, console, label = ServerBundle(place), _address(listen), Console(), place.resolve().name
    if (place / "run" / "summary.json").is_file():  # nothing left to do, for a supervisor that starts this again
        _conclude(console, place / "run", label, quiet)
        return
    experiment = config.parse(read_table(str(place / EXPERIMENT), ()))
    trackers(track)  # a mistake shows here, before the server app is started
    order = Order(config.dump(experiment), place / "run", data_dir, place, track=absolute(track))
    is_begun(order.out, assemble(experiment, str(data_dir) if data_dir else None))
    with _display(console, label, quiet) as (watch, tell), interruptible() as interrupted:
        done = serve_forever(bundle, address, order, interrupted, watch, tell)
    if not done:
        same = shlex.join([str(place), *track_words(track)])
        click.echo(f"interrupted; go on with: offbeat deploy server {same}", err=True)
        sys.exit(INTERRUPTED)
    _conclude(console, order.out, label, quiet)


@deploy.command()
@click.argument("place", metavar="DIR", type=click.Path(path_type=pathlib.Path))
@click.option(
    "--data", metavar="MODULE:FUNCTION", help="Makes this node's data (default: its part of the experiment's)."
)
@data_dir_option
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def client(place: pathlib.Path, data: str | None, data_dir: pathlib.Path | None, quiet: bool) -> None:
    """Take part in a deployment, with a client's folder, until stopped."""
    from offbeat.deploy.bundle import ClientBundle
    from offbeat.deploy.node import keep_node
    from offbeat.runs.interrupt import interruptible

    with interruptible() as interrupted:
        keep_node(ClientBundle(place), data, data_dir, interrupted, lambda text: None if quiet else click.echo(text))


@click.command()
@click.argument("folder", metavar="RUN", type=click.Path(path_type=pathlib.Path))
@data_dir_option
def replay(folder: pathlib.Path, data_dir: pathlib.Path | None) -> None:
    """Let a deployment happen again from its log, and compare the models bit for bit."""
    need_flower()
    from offbeat.flower.server import replay as again

    result = again(folder, str(data_dir) if data_dir else None)
    same = "the same, bit for bit" if result.same else "not the same"
    click.echo(f"version {result.version}, {result.updates} updates: x is {same}")
    sys.exit(0 if result.same else 1)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"{text!r}: expected HOST:PORT, such as 127.0.0.1:8000", key="--listen")
    return host, int(port)


def need_flower() -> None:
    if importlib.util.find_spec("flwr") is None:
        raise ConfigError("a deployment needs Flower; install it with: pip install 'offbeat[flower]'")


@contextlib.contextmanager
def _display(console: Console, label: str, quiet: bool) -> Iterator[tuple[Watch, Callable[[str], None]]]:
    """What a run that goes on in other processes shows here."""
    from offbeat.runs.progress import Display

    def tell(text: str) -> None:
        if not quiet:
            console.print(text, highlight=False, markup=False, soft_wrap=True)

    with Display(console, label, quiet) as display:
        yield display.watch, tell


def _same(
    file: str,
    clients: int | None,
    assignments: Sequence[str],
    folder: pathlib.Path,
    data_dir: pathlib.Path | None,
    track: Sequence[str],
) -> list[str]:
    """The words of a command that goes on."""
    words = [file, "--out", str(folder)]
    words += ["--clients", str(clients)] if clients else []
    words += [word for assignment in assignments for word in ("--set", assignment)]
    words += ["--data-dir", str(data_dir)] if data_dir else []
    return words + track_words(track)


def _conclude(console: Console, folder: pathlib.Path, label: str, quiet: bool) -> None:
    from offbeat.report import tables
    from offbeat.runs.folder import read_json

    if not quiet:
        console.print(tables.fitted(tables.results({label: [read_json(folder / "summary.json")]}), console))
        click.echo(f"run  {folder}")
