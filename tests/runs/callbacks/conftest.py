"""Fixtures for trackers; those that are not installed are skipped."""

from __future__ import annotations

import importlib.util
import pathlib
import shutil
import warnings

import pytest
from tests.support.tracker_readers import READERS, Reader

from offbeat.runs.callbacks import TRACKERS, tracker


@pytest.fixture(params=TRACKERS)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Reader:
    """Return a reader that creates one of the trackers and reads what it wrote."""
    name: str = request.param
    if importlib.util.find_spec(TRACKERS[name].library) is None:
        pytest.skip(f"needs {name}: pip install 'offbeat[track]'")
    for variable in ("WANDB_MODE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(tracker, "WRITE_SECONDS", 0.0)
    return READERS[name]()


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return an empty MLflow store; creating its tables takes longer than a run."""
    from mlflow.tracking import MlflowClient

    file = tmp_path_factory.mktemp("store") / "mlflow.db"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its libraries, about each other
        MlflowClient(f"sqlite:///{file}")
    return file


@pytest.fixture
def home(kind: Reader, tmp_path: pathlib.Path, request: pytest.FixtureRequest) -> pathlib.Path:
    """Return a folder for run folders."""
    if kind.name == "mlflow":
        shutil.copy(request.getfixturevalue("store"), tmp_path)
    return tmp_path
