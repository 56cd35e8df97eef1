"""Local rules."""

from offbeat.clients.base import ClientRule, State
from offbeat.clients.batches import plan
from offbeat.clients.prox import Prox
from offbeat.clients.sgd import SGD

CLIENTS: dict[str, type[ClientRule]] = {"sgd": SGD, "prox": Prox}

__all__ = ["CLIENTS", "SGD", "ClientRule", "Prox", "State", "plan"]
