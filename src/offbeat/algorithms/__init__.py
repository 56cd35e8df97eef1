"""Server rules, one paper's algorithm a file."""

from offbeat.algorithms.base import Algorithm
from offbeat.algorithms.ca2fl import CA2FL
from offbeat.algorithms.fedasync import FedAsync
from offbeat.algorithms.fedavg import FedAvg
from offbeat.algorithms.fedbuff import FedBuff
from offbeat.algorithms.mf_ca2fl import MFCA2FL
from offbeat.algorithms.staleness import STALENESS, Staleness

ALGORITHMS: dict[str, type[Algorithm]] = {
    "fedavg": FedAvg,
    "fedasync": FedAsync,
    "fedbuff": FedBuff,
    "ca2fl": CA2FL,
    "mf-ca2fl": MFCA2FL,
}

__all__ = [
    "ALGORITHMS",
    "CA2FL",
    "MFCA2FL",
    "STALENESS",
    "Algorithm",
    "FedAsync",
    "FedAvg",
    "FedBuff",
    "Staleness",
]
