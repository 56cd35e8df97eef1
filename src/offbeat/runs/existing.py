"""What a run folder already contains, compared with an experiment that is about to be run there."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from offbeat.errors import ConfigError, RunFolderError
from offbeat.runs import config
from offbeat.runs.custom import PYTHON
from offbeat.runs.experiment import Experiment
from offbeat.runs.folder import CONFIG, in_use, read_config, read_setting
from offbeat.runs.objects import OBJECTS, objects

SHOWN = 4  # differences in a message
MISSING = object()
WORDS = {"forward": "output of the model", "task": "loss"}


def adopted(experiment: Experiment, folder: pathlib.Path) -> Experiment:
    """Return an experiment with the choices that the run in a folder has made itself: its executor and compiling."""
    table = read_config(folder)
    if experiment.executor == "auto" and "executor" in table:
        experiment = replace(experiment, executor=table["executor"])
    if experiment.compile is None and "compile" in table:
        experiment = replace(experiment, compile=table["compile"])
    return experiment


def differences(experiment: Experiment, folder: pathlib.Path) -> list[str]:
    """Return in which keys an experiment differs from the one of a run folder, with both values."""
    here = _complete(config.describe(adopted(experiment, folder)))
    there = _complete(read_config(folder))
    keys = dict.fromkeys([*_flat(there), *_flat(here)])
    values = [(key, _flat(there).get(key, MISSING), _flat(here).get(key, MISSING)) for key in keys]
    return [f"{key} is {_shown(old)} there and {_shown(new)} here" for key, old, new in values if old != new]


def object_differences(
    experiment: Experiment, folder: pathlib.Path, data_dir: str | os.PathLike[str] | None = None
) -> list[str]:
    """Return which objects without a name differ from those of a run folder; this loads the data."""
    text = config.dump(experiment)
    known = read_setting(folder).get(OBJECTS) if f'"{PYTHON}' in text else None
    if known is None:
        return []
    found = objects(text, adopted(experiment, folder).assemble(data_dir))[OBJECTS]
    return [f"the {WORDS.get(name, name)} is not the same" for name in found if found[name] != known.get(name)]


def check_same(found: list[str], folder: pathlib.Path, remedy: str) -> None:
    """Raise an error that lists the differences, if there are any."""
    if not found:
        return
    more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    raise RunFolderError(f"{folder} contains another experiment ({'; '.join(found[:SHOWN])}{more}); {remedy}")


def remove(folder: pathlib.Path) -> None:
    """Delete a run folder, so that the run can start over.

    Raises:
        RunFolderError: The folder is not one of a simulated run, or is in use.
    """
    if not (folder / CONFIG).is_file() or (folder / "events.jsonl").is_file():
        raise RunFolderError(f"{folder} is not overwritten: it is not the folder of a simulated run")
    if in_use(folder):
        raise RunFolderError(f"another process is writing to {folder}")
    try:
        (folder / CONFIG).unlink()  # what is left, should this be interrupted, is no run
        shutil.rmtree(folder)
    except OSError as error:
        raise RunFolderError(f"cannot delete {folder}: {error.strerror}") from error


def _complete(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with the defaults of this version, as far as its objects can be found by name."""
    with contextlib.suppress(ConfigError):  # an object from Python
        table = config.describe(config.parse(dict(table)))
    return tomllib.loads(config.dumps(dict(table)))


def _flat(table: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    return dict(_entries(table, path))


def _entries(table: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _entries(value, f"{path}{name}.")
        else:
            yield path + name, value


def _shown(value: object) -> str:
    return "not set" if value is MISSING else repr(value).replace(PYTHON, "")
