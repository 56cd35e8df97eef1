"""A run as its folder has it, with the same attributes as `RunResult`."""

from __future__ import annotations

import functools
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn

from offbeat.client.context import TrainingContext
from offbeat.data import data_dir as data_folder
from offbeat.errors import ConfigError, OffbeatError
from offbeat.runs.api import stored
from offbeat.runs.custom import PYTHON
from offbeat.runs.experiment import Experiment
from offbeat.runs.fairness import client_rows, columns, label_rows
from offbeat.runs.folder import (
    CONFIG,
    MODEL,
    PERSONAL,
    SETTING,
    Origin,
    UpdateRows,
    is_finished,
    read_client_metrics,
    read_label_metrics,
    read_metrics,
    read_setting,
    read_status,
    read_summary,
    read_text,
    read_updates,
)


class StoredRun:
    """A run as its folder has it; every part is read when it is first used.

    Args:
        folder: The run folder.
        experiment: The experiment, if it is at hand; otherwise it is built from `config.toml` for the module.
        data_dir: Where data sets are stored; by default where the run found them.
    """

    def __init__(
        self, folder: pathlib.Path, experiment: Experiment | None = None, data_dir: str | os.PathLike[str] | None = None
    ) -> None:
        self.folder = folder
        self._experiment, self._data_dir = experiment, data_dir or Origin.of(folder).data_dir

    @property
    def interrupted(self) -> bool:
        """Whether the run was interrupted and can be resumed."""
        return not is_finished(self.folder) and read_status(self.folder).get("state") == "interrupted"

    @functools.cached_property
    def summary(self) -> dict[str, Any]:
        """The result in figures; empty if the run is not finished."""
        return read_summary(self.folder) if is_finished(self.folder) else {}

    @functools.cached_property
    def evaluations(self) -> list[dict[str, Any]]:
        """The evaluations, oldest first."""
        return read_metrics(self.folder, in_progress=not is_finished(self.folder))

    @functools.cached_property
    def client_evaluations(self) -> list[dict[str, Any]]:
        """One row per client and evaluation, if the run recorded them."""
        sizes = np.array(self.setting.get("sizes", ()), dtype=np.int64)
        lines = read_client_metrics(self.folder)
        return [row for line in lines for row in client_rows(line, columns(line), sizes)]

    @functools.cached_property
    def label_evaluations(self) -> list[dict[str, Any]]:
        """One row per class label and evaluation, if the run recorded them."""
        return [row for line in read_label_metrics(self.folder) for row in label_rows(line, columns(line))]

    @functools.cached_property
    def setting(self) -> Mapping[str, Any]:
        """The facts about the run that its config does not state."""
        return read_setting(self.folder) if (self.folder / SETTING).is_file() else {}

    def log(self) -> UpdateRows:
        """Return the log of completed jobs."""
        return read_updates(self.folder)

    @property
    def x(self) -> Tensor:
        """The final model as a flat vector."""
        return self._context.split.shared.read(self.module())

    @functools.cached_property
    def personal(self) -> dict[str, Tensor]:
        """What stays on the clients, as "client.name"."""
        return _tensors(self.folder / PERSONAL) if (self.folder / PERSONAL).is_file() else {}

    def state_dict(self) -> dict[str, Tensor]:
        """Return the weights of `model.safetensors`."""
        if not (self.folder / MODEL).is_file():
            raise OffbeatError(f"{self.folder} has no model yet: only a finished run has one")
        return _tensors(self.folder / MODEL)

    def module(self) -> nn.Module:
        """Return a new module with the final weights."""
        weights = self.state_dict()
        module = self._context.module
        module.load_state_dict(weights)
        return module.eval()

    @functools.cached_property
    def _context(self) -> TrainingContext:
        experiment = self._experiment
        try:
            experiment = experiment or stored(self.folder)
        except ConfigError as error:
            if PYTHON not in read_text(self.folder / CONFIG):
                raise
            raise OffbeatError(
                f"{self.folder} was run with objects from Python, which cannot be built again from its files: call "
                "ob.run with the same objects and the same out, or load result.state_dict() into your own module"
            ) from error
        return experiment.context(experiment.data.load(data_folder(self._data_dir), experiment.seed))


def _tensors(path: pathlib.Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(path)
