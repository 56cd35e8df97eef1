"""Local training rules of clients."""

from offbeat.client.rules.base import ClientRule, Number, State
from offbeat.client.rules.dyn import Dyn
from offbeat.client.rules.prox import Prox
from offbeat.client.rules.scaffold import Scaffold
from offbeat.client.rules.sgd import SGD

CLIENT_RULES: dict[str, type[ClientRule]] = {"sgd": SGD, "prox": Prox, "scaffold": Scaffold, "dyn": Dyn}

__all__ = ["CLIENT_RULES", "SGD", "ClientRule", "Dyn", "Number", "Prox", "Scaffold", "State"]
