"""What a run is made of that its config does not say, for those who draw it.

The partition, the attackers, the network and the workload of each device; written once into the run folder.
"""

from __future__ import annotations

from typing import Any

from offbeat.runs.assembly import Assembly

CLIENTS = 20_000  # beyond this only the number of clients is written
LABELS = 400_000  # most entries of a table of clients and labels
NODES = 1_000  # most nodes of a network, or devices of a plan


def setting(assembly: Assembly) -> dict[str, Any]:
    """Return what the config of a run does not say."""
    data, experiment = assembly.context.data, assembly.experiment
    content: dict[str, Any] = {"clients": data.clients}
    if data.clients <= CLIENTS:
        content["sizes"] = data.sizes.tolist()
        if data.clients * data.dataset.classes <= LABELS:
            content["partition"] = data.label_counts().tolist()
    if assembly.attackers and data.clients <= CLIENTS:
        content["attackers"] = sorted(assembly.attackers)
    if data.clients <= NODES:
        devices = (assembly.device(client) for client in range(data.clients))
        content |= experiment.algorithm.describe_plan(list(devices)) if experiment.algorithm.plans else {}
        content |= assembly.executor.description(experiment.scheduler.cohort(data.clients))
    return content
