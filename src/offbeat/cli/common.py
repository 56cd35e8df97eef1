"""What the commands share."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from offbeat.errors import OffbeatError, nearest

SEVERAL = {"variants", "axes", "seeds"}  # keys of a file for `offbeat sweep`
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


def data_dir_option(command: Any) -> Any:
    return click.option(
        "--data-dir", type=click.Path(path_type=pathlib.Path), envvar="OFFBEAT_DATA",
        help="Where data sets lie (also: OFFBEAT_DATA).",
    )(command)  # fmt: skip


def set_option(command: Any) -> Any:
    return click.option(
        "--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Override a key; repeatable."
    )(command)  # fmt: skip


def out_option(command: Any) -> Any:
    return click.option(
        "--out", type=click.Path(path_type=pathlib.Path), help="Run folder (default: a new one under runs/)."
    )(command)  # fmt: skip


def track_option(command: Any) -> Any:
    return click.option(
        "--track", "track", multiple=True, metavar="NAME[=PLACE]",
        help="Also write the metrics for TensorBoard, MLflow or W&B (tensorboard, mlflow, wandb) or a callback of your "
        "own (MODULE:CLASS); repeatable. By default they lie beside the run folder, those of a sweep in the sweep's: "
        "tensorboard/, mlflow.db (or where MLFLOW_TRACKING_URI says), wandb/ (offline, unless WANDB_MODE=online).",
    )(command)  # fmt: skip


def track_words(track: Sequence[str]) -> list[str]:
    """As they stand in a command."""
    return [word for name in track for word in ("--track", name)]


def read_table(file: str, assignments: Sequence[str], **flags: Any) -> dict[str, Any]:
    """The experiment's table: the file or preset, then --set, then the flags that have names of their own."""
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
    """Where the user's own modules are looked for: beside the file, or where the run of a config.toml had them."""
    from offbeat.runs.folder import Origin

    if file.startswith("preset:"):
        return None
    folder = pathlib.Path(file).resolve().parent
    return pathlib.Path(Origin.of(folder).modules or folder)


def stem(file: str) -> str:
    return pathlib.Path(file.removeprefix("preset:")).stem


def new_folder(file: str, kind: str) -> pathlib.Path:
    base = pathlib.Path("runs") / f"{stem(file)}-{kind}"
    tries = (base if n == 1 else base.with_name(f"{base.name}-{n}") for n in range(1, 1_000_000))
    return next(path for path in tries if not path.exists())
