"""Facts about a run that its config does not state, for reports: `setting.json`.

These are the partition, the attackers, the network and the workload of each device.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from offbeat.runs.assembly import Assembly

MAX_CLIENTS = 20_000  # for more, only the number of clients is written
MAX_LABELS = 400_000  # entries of the table of clients and labels
MAX_NODES = 1_000  # nodes of a network, or devices of a plan


CONTENTS = {
    "clients": "number of clients",
    "metrics": "the task's metrics: name, whether higher is better, unit",
    "sizes": "training examples of each client",
    "partition": "training examples of each client (rows) and class label (columns)",
    "attackers": "the clients that attack",
    "plan": "FedLuck: k, δ, seconds per step α and seconds per full upload β of each device",
    "period": "FedLuck: seconds T̃ between two server steps",
    "exponent": "FedLuck: exponent e of the objective φ",
    "upload_shares": "FedLuck: size of an upload as a share of the full one, by compression rate",
    "network": "gossip network: nodes, edges, and ρ of its mixing matrix",
}
"""What the entries mean; the file begins with the explanation of those that it has."""


def setting(assembly: Assembly) -> dict[str, Any]:
    """Return the content of `setting.json`."""
    data, experiment = assembly.context.data, assembly.experiment
    metrics = [asdict(info) for info in experiment.task.metric_infos()]
    content: dict[str, Any] = {"clients": data.clients, "metrics": metrics}
    if data.clients <= MAX_CLIENTS:
        content["sizes"] = data.sizes.tolist()
        if data.dataset.has_class_labels and data.clients * data.dataset.outputs <= MAX_LABELS:
            content["partition"] = data.label_counts().tolist()
    if assembly.attackers and data.clients <= MAX_CLIENTS:
        content["attackers"] = sorted(assembly.attackers)
    if data.clients <= MAX_NODES:
        devices = (assembly.device(client) for client in range(data.clients))
        content |= experiment.algorithm.describe_plan(list(devices)) if experiment.algorithm.plans else {}
        content |= assembly.executor.description()
    return {"contents": {name: CONTENTS[name] for name in content if name in CONTENTS}} | content
