"""Checks for algorithms whose clients talk to each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offbeat.algorithms.network import Network
from offbeat.algorithms.optimizers import Plain
from offbeat.client.context import TrainingContext
from offbeat.client.rules import SGD
from offbeat.compression import Raw
from offbeat.environment import Forgery
from offbeat.errors import ConfigError
from offbeat.executors import why_not_stackable

if TYPE_CHECKING:
    from offbeat.runs.experiment import Experiment


def check_network(experiment: Experiment, network: Network, context: TrainingContext) -> None:
    """Check that an experiment suits clients that talk to each other and step together.

    Args:
        experiment: The experiment.
        network: Who talks to whom, and when.
        context: Model and data.

    Raises:
        ConfigError: A setting does not suit gossip.
    """
    obstacle = why_not_stackable(context)
    busy = experiment.scheduler.cohort(context.data.clients)
    plain = isinstance(experiment.client, SGD) and not experiment.client.weight_decay
    refused = [
        ("model", obstacle, f"gossip stacks all clients' models, which this one does not allow: {obstacle}"),
        (
            "executor",
            experiment.executor not in ("auto", "vectorized"),
            f"gossip stacks all clients' models: {experiment.executor!r} cannot",
        ),
        (
            "client.steps",
            experiment.client.steps is None,
            "gossip needs the same number of steps of everybody: give steps",
        ),
        (
            "client.name",
            bool(experiment.client.keeps) or bool(getattr(experiment.client, "momentum", 0)),
            "gossip takes plain steps: sgd without momentum, or prox",
        ),
        (
            "client.name",
            network.local == "adam" and not plain,
            "this rule's clients take Adam steps: sgd without decay",
        ),
        (
            "environment.local_work",
            not experiment.environment.local_work.exact,
            "gossip needs as many steps of everybody",
        ),
        (
            "environment.availability",
            not experiment.environment.availability.constant,
            "a network needs everybody awake",
        ),
        (
            "environment.attack",
            isinstance(experiment.environment.attack, Forgery),
            "attackers forge what they send to a server, and clients of a network talk to each other: "
            "label-flip alone makes sense",
        ),
        ("scheduler.deadline", experiment.scheduler.deadline, "a network trains as one: no deadline"),
        (
            "scheduler.concurrency",
            busy % network.clusters or network.clusters > context.data.clients,
            f"{busy} clients a round cannot be divided evenly among {network.clusters} clusters",
        ),
    ]
    if not network.restarts:  # x is the mean of all models, no server's doing
        rule, travels = experiment.algorithm, experiment.compression
        plain_x = rule.eta == 1.0 and isinstance(rule.optimizer, Plain)
        coded = not isinstance(travels.upload, Raw) or not isinstance(travels.download, Raw)
        refused += [
            ("algorithm.eta", not plain_x, "there is no server: eta = 1 and no optimizer"),
            ("compression", coded, "there is no server: nothing is sent to one"),
            ("environment.loss", experiment.environment.loss, "a network without a server loses no reports"),
        ]
    for where, wrong, message in refused:
        if wrong:
            raise ConfigError(message, key=where)
