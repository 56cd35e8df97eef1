"""Options and helpers that several commands share."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from offbeat.errors import ConfigError, OffbeatError, nearest

SEVERAL = {"variants", "axes", "seeds"}  # keys of a file for `offbeat sweep`
SEARCH = {"tune"}  # key of a file for `offbeat tune`
INTERRUPTED = 130


class Group(click.Group):
    """A group that prints errors of offbeat in one line with exit status 2, and suggests commands for typos."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Find a command; suggest another one if there is none."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            _fail(f"unknown command {args[0]!r}; {nearest(args[0], self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command and turn its errors into messages."""
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


def file_argument(command: Any) -> Any:
    """Add the argument FILE: a TOML file or preset:NAME."""
    return click.argument("file", shell_complete=_complete_file)(command)


def _complete_file(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete preset:NAME, and otherwise files."""
    from offbeat.runs.presets import PRESETS

    names = [f"preset:{name}" for name in PRESETS if f"preset:{name}".startswith(incomplete)]
    files = [str(path) for path in pathlib.Path().glob("*.toml")] if not incomplete else []
    if not names:
        return [CompletionItem(incomplete, type="file")]
    return [CompletionItem(name) for name in (*files, *names)]


def data_dir_option(command: Any) -> Any:
    """Add the option --data-dir."""
    return click.option(
        "--data-dir", type=click.Path(path_type=pathlib.Path), envvar="OFFBEAT_DATA",
        help="Folder of the data sets (also: OFFBEAT_DATA).",
    )(command)  # fmt: skip


def set_option(command: Any) -> Any:
    """Add the option --set."""
    return click.option(
        "--set", "assignments", multiple=True, metavar="KEY=VALUE",
        help="Override a key of the experiment, such as algorithm.eta=0.5; repeatable.",
    )(command)  # fmt: skip


def settings_options(command: Any) -> Any:
    """Add the options that change an experiment."""
    for option in (
        click.option("--device", type=click.Choice(["cpu", "cuda"]), help="Where to train."),
        click.option(
            "--executor",
            type=click.Choice(["auto", "sequential", "vectorized", "graphs", "processes", "ray"]),
            help="How to train the clients.",
        ),
    ):
        command = option(command)
    return data_dir_option(set_option(command))


def out_option(command: Any) -> Any:
    """Add the option --out."""
    return click.option(
        "--out", type=click.Path(path_type=pathlib.Path), help="Run folder (default: a new one under runs/)."
    )(command)  # fmt: skip


def track_option(command: Any) -> Any:
    """Add the option --track."""
    return click.option(
        "--track", "track", multiple=True, metavar="NAME[=PLACE]",
        help="Also write the metrics to tensorboard, mlflow, wandb or your own callback (MODULE:CLASS); repeatable. "
        "The default place is the folder that contains the run folder, or the folder of the sweep: tensorboard/, "
        "mlflow.db (unless MLFLOW_TRACKING_URI is set) or wandb/ (offline, unless WANDB_MODE=online).",
    )(command)  # fmt: skip


def track_words(track: Sequence[str]) -> list[str]:
    """Return the options --track as words of a command."""
    return [word for name in track for word in ("--track", name)]


def read_table(file: str, assignments: Sequence[str], **flags: Any) -> dict[str, Any]:
    """Return the table of an experiment.

    Args:
        file: A TOML file, or preset:NAME.
        assignments: Values of --set, applied to the file.
        flags: Values of dedicated options, which take precedence over --set; None leaves a key as it is.
    """
    import tomllib

    from offbeat.runs import config
    from offbeat.runs.presets import text

    if file.startswith("preset:"):
        table = tomllib.loads(text(file.removeprefix("preset:")))
    else:
        table = config.read(pathlib.Path(file))
        sys.path.insert(0, str(modules_of(file)))
    for assignment in assignments:
        config.override(table, assignment)
    return table | {name: value for name, value in flags.items() if value is not None}


def modules_of(file: str) -> pathlib.Path | None:
    """Return the folder in which custom modules are searched.

    It is the folder of the file; for the config.toml of a run, it is the folder that the run used.
    """
    from offbeat.runs.folder import Origin

    if file.startswith("preset:"):
        return None
    folder = pathlib.Path(file).resolve().parent
    return pathlib.Path(Origin.of(folder).modules or folder)


def stem(file: str) -> str:
    """Return the name of an experiment file or preset."""
    return pathlib.Path(file.removeprefix("preset:")).stem


def new_folder(file: str, kind: str) -> pathlib.Path:
    """Return a folder under runs/ that does not exist yet, or holds a run that failed before it got anywhere."""
    from offbeat.runs.folder import failed_early

    base = pathlib.Path("runs") / f"{stem(file)}-{kind}"
    tries = (base if n == 1 else base.with_name(f"{base.name}-{n}") for n in range(1, 1_000_000))
    return next(path for path in tries if not path.exists() or failed_early(path))


def seeds_of(text: str) -> list[int]:
    """Return the seeds of the option --seeds: integers and ranges that include both ends."""
    seeds: list[int] = []
    for part in filter(None, map(str.strip, text.split(","))):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise ConfigError(f"{part!r}: expected integers or ranges, such as 0,1,2 or 0-9", key="--seeds")
        seeds += range(int(first), int(last or first) + 1)
    return seeds
