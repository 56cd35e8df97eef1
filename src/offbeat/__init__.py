"""Federated learning in which every client keeps its own time.

import offbeat as ob
result = ob.run(data=…, partition=…, model=…, algorithm=ob.CA2FL(), rounds=100)
"""

from offbeat.algorithms import CA2FL, MFCA2FL, Algorithm, FedAsync, FedAvg, FedBuff
from offbeat.clients import SGD, ClientRule, Prox
from offbeat.data import IID, Classes, Dataset, Dirichlet, Quantity, from_arrays, from_datasets
from offbeat.engine import Buffered, KeepBusy, PerArrival, Rounds
from offbeat.errors import ConfigError, DataError, DivergenceError, OffbeatError, RunFolderError
from offbeat.experiments.api import execute, resume, run
from offbeat.experiments.experiment import Evaluation, Experiment
from offbeat.experiments.run import Result
from offbeat.messages import Job, Update
from offbeat.version import __version__
from offbeat.world import World

__all__ = [
    "CA2FL",
    "IID",
    "MFCA2FL",
    "SGD",
    "Algorithm",
    "Buffered",
    "Classes",
    "ClientRule",
    "ConfigError",
    "DataError",
    "Dataset",
    "Dirichlet",
    "DivergenceError",
    "Evaluation",
    "Experiment",
    "FedAsync",
    "FedAvg",
    "FedBuff",
    "Job",
    "KeepBusy",
    "OffbeatError",
    "PerArrival",
    "Prox",
    "Quantity",
    "Result",
    "Rounds",
    "RunFolderError",
    "Update",
    "World",
    "__version__",
    "execute",
    "from_arrays",
    "from_datasets",
    "resume",
    "run",
]
