"""Local rules."""

from offbeat.clients.base import ClientRule, Number, ServerHalf, State
from offbeat.clients.batches import plan, plans
from offbeat.clients.dyn import Dyn
from offbeat.clients.prox import Prox
from offbeat.clients.scaffold import Scaffold
from offbeat.clients.sgd import SGD

CLIENTS: dict[str, type[ClientRule]] = {"sgd": SGD, "prox": Prox, "scaffold": Scaffold, "dyn": Dyn}

__all__ = ["CLIENTS", "SGD", "ClientRule", "Dyn", "Number", "Prox", "Scaffold", "ServerHalf", "State", "plan", "plans"]
