"""Local rules."""

from offbeat.clients.base import ClientRule, Number, ServerHalf, State
from offbeat.clients.batches import plan, plans
from offbeat.clients.dyn import Dyn
from offbeat.clients.prox import Prox
from offbeat.clients.scaffold import Scaffold
from offbeat.clients.sgd import SGD
from offbeat.clients.statistics import BUFFERS, Halves, Statistics

CLIENTS: dict[str, type[ClientRule]] = {"sgd": SGD, "prox": Prox, "scaffold": Scaffold, "dyn": Dyn}

__all__ = [
    "BUFFERS",
    "CLIENTS",
    "SGD",
    "ClientRule",
    "Dyn",
    "Halves",
    "Number",
    "Prox",
    "Scaffold",
    "ServerHalf",
    "State",
    "Statistics",
    "plan",
    "plans",
]
