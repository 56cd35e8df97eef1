"""Federated learning in which every client keeps its own time.

    import offbeat as ob
    result = ob.run(data=…, partition=…, model=…, algorithm=ob.CA2FL(), rounds=100)

Names are imported when they are first used, so that `offbeat --help` does not wait for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from offbeat.errors import ConfigError, DataError, DivergenceError, OffbeatError, RunFolderError
from offbeat.version import __version__

if TYPE_CHECKING:
    from offbeat.algorithms import ACE as ACE
    from offbeat.algorithms import ACED as ACED
    from offbeat.algorithms import AFACD as AFACD
    from offbeat.algorithms import AFACS as AFACS
    from offbeat.algorithms import AFGA as AFGA
    from offbeat.algorithms import AREA as AREA
    from offbeat.algorithms import CA2FL as CA2FL
    from offbeat.algorithms import CAFGA as CAFGA
    from offbeat.algorithms import DSGD as DSGD
    from offbeat.algorithms import FADAS as FADAS
    from offbeat.algorithms import MFCA2FL as MFCA2FL
    from offbeat.algorithms import MIFA as MIFA
    from offbeat.algorithms import PGA as PGA
    from offbeat.algorithms import Algorithm as Algorithm
    from offbeat.algorithms import DAdam as DAdam
    from offbeat.algorithms import DuDeASGD as DuDeASGD
    from offbeat.algorithms import FedAdam as FedAdam
    from offbeat.algorithms import FedAMSGrad as FedAMSGrad
    from offbeat.algorithms import FedAsync as FedAsync
    from offbeat.algorithms import FedAvg as FedAvg
    from offbeat.algorithms import FedAvgIS as FedAvgIS
    from offbeat.algorithms import FedAvgM as FedAvgM
    from offbeat.algorithms import FedBuff as FedBuff
    from offbeat.algorithms import FedCompass as FedCompass
    from offbeat.algorithms import FedDyn as FedDyn
    from offbeat.algorithms import FedFa as FedFa
    from offbeat.algorithms import FedLuck as FedLuck
    from offbeat.algorithms import FedPer as FedPer
    from offbeat.algorithms import FedYogi as FedYogi
    from offbeat.clients import SGD as SGD
    from offbeat.clients import ClientRule as ClientRule
    from offbeat.clients import Dyn as Dyn
    from offbeat.clients import Prox as Prox
    from offbeat.clients import Scaffold as Scaffold
    from offbeat.compression import Compression as Compression
    from offbeat.data import IID as IID
    from offbeat.data import ByOwner as ByOwner
    from offbeat.data import Classes as Classes
    from offbeat.data import CropFlip as CropFlip
    from offbeat.data import Dataset as Dataset
    from offbeat.data import Dirichlet as Dirichlet
    from offbeat.data import Quantity as Quantity
    from offbeat.data import from_arrays as from_arrays
    from offbeat.data import from_datasets as from_datasets
    from offbeat.engine import Anarchic as Anarchic
    from offbeat.engine import Available as Available
    from offbeat.engine import Buffered as Buffered
    from offbeat.engine import Gate as Gate
    from offbeat.engine import KeepBusy as KeepBusy
    from offbeat.engine import PerArrival as PerArrival
    from offbeat.engine import Periodic as Periodic
    from offbeat.engine import Rounds as Rounds
    from offbeat.experiments.api import execute as execute
    from offbeat.experiments.api import resume as resume
    from offbeat.experiments.api import run as run
    from offbeat.experiments.experiment import Evaluation as Evaluation
    from offbeat.experiments.experiment import Experiment as Experiment
    from offbeat.experiments.result import Result as Result
    from offbeat.messages import Job as Job
    from offbeat.messages import Update as Update
    from offbeat.track import Callback as Callback
    from offbeat.track import Ending as Ending
    from offbeat.track import MLflow as MLflow
    from offbeat.track import RunInfo as RunInfo
    from offbeat.track import TensorBoard as TensorBoard
    from offbeat.track import WandB as WandB
    from offbeat.world import World as World

_ROOMS = {
    "offbeat.algorithms": "ACE ACED AFACD AFACS AFGA AREA CA2FL CAFGA DSGD FADAS MFCA2FL MIFA PGA Algorithm DAdam "
    "DuDeASGD FedAdam FedAMSGrad FedAsync FedAvg FedAvgIS FedAvgM FedBuff FedCompass FedDyn FedFa FedLuck "
    "FedPer FedYogi",
    "offbeat.clients": "SGD ClientRule Dyn Prox Scaffold",
    "offbeat.compression": "Compression",
    "offbeat.data": "IID ByOwner Classes CropFlip Dataset Dirichlet Quantity from_arrays from_datasets",
    "offbeat.engine": "Anarchic Available Buffered Gate KeepBusy PerArrival Periodic Rounds",
    "offbeat.experiments.api": "execute resume run",
    "offbeat.experiments.experiment": "Evaluation Experiment",
    "offbeat.experiments.result": "Result",
    "offbeat.messages": "Job Update",
    "offbeat.track": "Callback Ending MLflow RunInfo TensorBoard WandB",
    "offbeat.world": "World",
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names.split()}

__all__ = [  # the lazy names are there
    "ConfigError", "DataError", "DivergenceError", "OffbeatError", "RunFolderError", "__version__", *_HOME,
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'offbeat' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
