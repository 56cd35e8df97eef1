"""Local training rules of clients."""

from offbeat.client.rules.adagrad import Adagrad
from offbeat.client.rules.adam import Adam, AdamW
from offbeat.client.rules.base import ClientRule, Number, State, checked_initial_state, steps_per_epoch
from offbeat.client.rules.correction import Correction
from offbeat.client.rules.dyn import Dyn
from offbeat.client.rules.head_first import HEAD_STEPS, HeadFirst, head_first
from offbeat.client.rules.optimizer import LocalOptimizer
from offbeat.client.rules.prox import Prox
from offbeat.client.rules.scaffold import Scaffold
from offbeat.client.rules.sgd import SGD
from offbeat.client.rules.torch_optimizer import TorchOptimizer, as_client_rule

LOCAL_OPTIMIZERS: dict[str, type[LocalOptimizer]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW, "adagrad": Adagrad}

CLIENT_RULES: dict[str, type[ClientRule]] = LOCAL_OPTIMIZERS | {"prox": Prox, "scaffold": Scaffold, "dyn": Dyn}

__all__ = [
    "CLIENT_RULES",
    "HEAD_STEPS",
    "LOCAL_OPTIMIZERS",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "ClientRule",
    "Correction",
    "Dyn",
    "HeadFirst",
    "LocalOptimizer",
    "Number",
    "Prox",
    "Scaffold",
    "State",
    "TorchOptimizer",
    "as_client_rule",
    "checked_initial_state",
    "head_first",
    "steps_per_epoch",
]
