"""Server algorithms, one paper per file."""

from offbeat.aggregation import AGGREGATORS, Aggregator
from offbeat.algorithms.ace import ACE, ACED
from offbeat.algorithms.afa import AFACD, AFACS
from offbeat.algorithms.afga import AFGA, CAFGA
from offbeat.algorithms.area import AREA
from offbeat.algorithms.base import Algorithm
from offbeat.algorithms.ca2fl import CA2FL
from offbeat.algorithms.decentralized import DSGD, PGA, DAdam
from offbeat.algorithms.dude import DuDeASGD
from offbeat.algorithms.fadas import FADAS
from offbeat.algorithms.fedasync import FedAsync
from offbeat.algorithms.fedavg import FedAvg
from offbeat.algorithms.fedavg_is import FedAvgIS
from offbeat.algorithms.fedbuff import FedBuff
from offbeat.algorithms.fedcompass import FedCompass
from offbeat.algorithms.feddyn import FedDyn
from offbeat.algorithms.fedfa import FedFa
from offbeat.algorithms.fedluck import FedLuck, FedLuckFixed
from offbeat.algorithms.fedopt import FedAdam, FedAMSGrad, FedAvgM, FedYogi
from offbeat.algorithms.mf_ca2fl import MFCA2FL
from offbeat.algorithms.mifa import MIFA
from offbeat.algorithms.optimizers import OPTIMIZERS, ServerOptimizer
from offbeat.algorithms.staleness import STALENESS, Staleness
from offbeat.algorithms.topology import TOPOLOGIES, Topology

ALGORITHMS: dict[str, type[Algorithm]] = {
    "fedavg": FedAvg,
    "fedavg-is": FedAvgIS,
    "fedavgm": FedAvgM,
    "fedadam": FedAdam,
    "fedyogi": FedYogi,
    "fedamsgrad": FedAMSGrad,
    "feddyn": FedDyn,
    "mifa": MIFA,
    "fedasync": FedAsync,
    "fedbuff": FedBuff,
    "fadas": FADAS,
    "ca2fl": CA2FL,
    "mf-ca2fl": MFCA2FL,
    "afa-cd": AFACD,
    "afa-cs": AFACS,
    "fedluck": FedLuck,
    "fedluck-fixed": FedLuckFixed,
    "ace": ACE,
    "aced": ACED,
    "dude-asgd": DuDeASGD,
    "area": AREA,
    "fedfa": FedFa,
    "fedcompass": FedCompass,
    "afga": AFGA,
    "cafga": CAFGA,
    "dsgd": DSGD,
    "dadam": DAdam,
    "pga": PGA,
}

__all__ = [
    "ACE",
    "ACED",
    "AFACD",
    "AFACS",
    "AFGA",
    "AGGREGATORS",
    "ALGORITHMS",
    "AREA",
    "CA2FL",
    "CAFGA",
    "DSGD",
    "FADAS",
    "MFCA2FL",
    "MIFA",
    "OPTIMIZERS",
    "PGA",
    "STALENESS",
    "TOPOLOGIES",
    "Aggregator",
    "Algorithm",
    "DAdam",
    "DuDeASGD",
    "FedAMSGrad",
    "FedAdam",
    "FedAsync",
    "FedAvg",
    "FedAvgIS",
    "FedAvgM",
    "FedBuff",
    "FedCompass",
    "FedDyn",
    "FedFa",
    "FedLuck",
    "FedLuckFixed",
    "FedYogi",
    "ServerOptimizer",
    "Staleness",
    "Topology",
]  # fmt: skip
