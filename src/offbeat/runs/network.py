"""Checks for decentralized algorithms, whose clients communicate with each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offbeat.algorithms.network import Network
from offbeat.client.context import TrainingContext
from offbeat.errors import ConfigError
from offbeat.executors import why_not_stackable

if TYPE_CHECKING:
    from offbeat.runs.experiment import Experiment


def check_network(experiment: Experiment, network: Network, context: TrainingContext) -> None:
    """Check that an experiment suits a decentralized algorithm.

    Args:
        experiment: The experiment.
        network: How the clients communicate.
        context: The model and the data.

    Raises:
        ConfigError: A setting does not suit gossip.
    """
    obstacle = why_not_stackable(context)
    busy = experiment.scheduler.cohort(context.data.clients)
    problems = [
        ("model", obstacle, f"gossip stacks the models of all clients, which this model does not support: {obstacle}"),
        (
            "executor",
            experiment.executor not in ("auto", "vectorized"),
            f"gossip stacks the models of all clients, which {experiment.executor!r} does not support: use 'auto'",
        ),
        (
            "client.steps",
            experiment.client.steps is None,
            "gossip needs the same number of steps from every client: set steps",
        ),
        (
            "client.name",
            experiment.client.client_state or experiment.client.sends,
            "gossip has no server with which this rule could exchange vectors: use an optimizer, or prox",
        ),
        (
            "personalization",
            experiment.personalization.tests_clients,
            "the clients of a gossip network exchange and average whole models: remove personalization",
        ),
        (
            "environment.local_work",
            not experiment.environment.local_work.exact,
            "gossip needs the same number of steps from every client: remove local_work",
        ),
        (
            "environment.availability",
            not experiment.environment.availability.constant,
            "gossip needs clients that are always available: remove availability",
        ),
        (
            "environment.attack",
            experiment.environment.attack is not None and experiment.environment.attack.forges_updates,
            "this attack forges updates to a server, and these clients communicate with each other: use label-flip",
        ),
        ("scheduler.deadline", experiment.scheduler.deadline, "gossip trains all clients in step: remove deadline"),
        (
            "scheduler.concurrency",
            busy % network.clusters or network.clusters > context.data.clients,
            f"{busy} clients per round cannot be divided evenly among {network.clusters} clusters",
        ),
    ]
    if not network.restarts:  # x is the mean of all models; there is no server
        rule, travels = experiment.algorithm, experiment.compression
        plain_x = rule.eta == 1.0 and rule.optimizer.plain
        coded = not travels.upload.lossless or not travels.download.lossless
        problems += [
            ("algorithm.eta", not plain_x, "there is no server: set eta = 1 and remove the optimizer"),
            ("compression", coded, "there is no server to send to: remove compression"),
            ("environment.loss", experiment.environment.loss, "there is no server to send to: remove loss"),
        ]
    for where, wrong, message in problems:
        if wrong:
            raise ConfigError(message, key=where)
