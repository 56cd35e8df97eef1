"""What a run is made of that its config does not say: who has what, who attacks, who talks to whom, what each
device chose.

Written once into the run folder, for those who draw it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from offbeat.algorithms import FedLuck
from offbeat.engine import Periodic, Rounds
from offbeat.engine.executors.gossip import Gossip
from offbeat.experiments.experiment import Assembly

CLIENTS = 20_000  # of more only the number is told
LABELS = 400_000  # numbers in a table of clients and labels, at most
NODES = 1_000  # of a network whose edges are told


def setting(assembly: Assembly) -> dict[str, Any]:
    data, algorithm, executor = assembly.work.data, assembly.experiment.algorithm, assembly.executor
    found: dict[str, Any] = {"clients": data.clients}
    if data.clients <= CLIENTS:
        found["sizes"] = data.sizes.tolist()
        if data.clients * data.dataset.classes <= LABELS:
            found["partition"] = data.label_counts().tolist()
    if assembly.attackers and data.clients <= CLIENTS:
        found["attackers"] = sorted(assembly.attackers)
    dispatch = assembly.experiment.dispatch
    if isinstance(algorithm, FedLuck) and isinstance(dispatch, Periodic) and data.clients <= NODES:
        found["period"], found["exponent"] = dispatch.period, algorithm.exponent
        found["plan"] = [_device(assembly, client) for client in range(data.clients)]
    if isinstance(executor, Gossip) and data.clients <= NODES:
        found["network"] = _network(executor, dispatch.places if isinstance(dispatch, Rounds) else data.clients)
    return found


def _device(assembly: Assembly, client: int) -> list[float]:
    """k, δ, α and β."""
    terms = assembly.terms(client)
    return [terms.steps, terms.compression_rate or 1.0, assembly.profile(client, 0), assembly.profile(client, 1)]


def _network(executor: Gossip, places: int) -> dict[str, Any]:
    joined = np.argwhere(np.triu(executor.matrix.numpy() + executor.matrix.numpy().T, k=1) > 0)
    return {"nodes": executor.clients, "edges": joined.tolist(), "rho": executor.rho(places)}
