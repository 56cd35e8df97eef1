"""Guarantees of runs with private aggregation: checks of settings that would break them, and the accounting of ε.

ε comes from Google's dp-accounting (the extra `privacy`): the exact ε of one Gaussian mechanism, to which a client's
noised steps are equivalent (`offbeat.aggregation.private`).
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import math
from typing import TYPE_CHECKING, Any

from offbeat.aggregation import Aggregator, Private
from offbeat.algorithms import Algorithm
from offbeat.errors import ConfigError
from offbeat.scheduling import Scheduler
from offbeat.server.validation import UpdateValidator

if TYPE_CHECKING:
    from offbeat.runs.experiment import Experiment

INSTALL = "ε is not reported: it needs dp-accounting; install it with: pip install 'offbeat[privacy]'"

_LOG = logging.getLogger("offbeat")


def private(algorithm: Algorithm) -> Private | None:
    """Return the private aggregator of an algorithm, if it has one."""
    aggregator: Private | None = algorithm.component(Private)
    return aggregator


def check_step(algorithm: Algorithm, scheduler: Scheduler, validation: UpdateValidator) -> None:
    """Check that the aggregator fits the scheduler and the validation of updates.

    Raises:
        ConfigError: It does not.
    """
    aggregator: Aggregator | None = algorithm.component(Aggregator)
    try:
        if aggregator is not None:
            aggregator.check(scheduler.updates)
    except ConfigError as error:
        raise error.within("algorithm.aggregator") from None
    if private(algorithm) is not None and validation.max_norm is not None and validation.beyond_norm == "refuse":
        raise ConfigError(
            "rejecting an update for its norm reveals information that private noise should hide: use 'clip'",
            key="validation.beyond_norm",
        )


def check(experiment: Experiment) -> None:
    """Check that nothing in an experiment bypasses the noise of a private aggregator.

    Raises:
        ConfigError: A setting reveals information about clients that the noise does not hide.
    """
    check_step(experiment.algorithm, experiment.scheduler, experiment.validation)
    if private(experiment.algorithm) is None:
        return
    if experiment.client.sends:
        auxiliary = ", ".join(experiment.client.sends)
        raise ConfigError(
            f"its clients send {auxiliary} in addition to Δ, which private noise does not hide", key="client.name"
        )
    if experiment.evaluation.gradient_clients is not None:
        raise ConfigError(
            "figures on the clients' training data are not protected by private noise: remove it",
            key="evaluation.gradient_clients",
        )
    if experiment.environment.availability.depends_on_labels:
        raise ConfigError(
            "availability depends on the clients' labels, which private noise does not hide",
            key="environment.availability",
        )


def check_statistics(algorithm: Algorithm, any_statistics: bool) -> None:
    """Reject a model whose layers collect running statistics of the clients' data."""
    if any_statistics and private(algorithm) is not None:
        raise ConfigError(
            "clients also send the running statistics of its layers, which private noise does not hide: use layers "
            "without them, such as GroupNorm",
            key="model",
        )


def epsilon(noise_multiplier: float, spent: float, delta: float) -> float | None:
    """Return the privacy loss ε of a client.

    Args:
        noise_multiplier: Standard deviation of the noise, in multiples of the clipping norm.
        spent: Σ n_t² of the client.
        delta: The δ at which ε holds.

    Returns:
        ε, or None if there is no finite one or dp-accounting is not installed.
    """
    if not noise_multiplier or not _has_accountant():
        return None
    if not spent:
        return 0.0
    from dp_accounting import get_epsilon_gaussian

    found = float(get_epsilon_gaussian(noise_multiplier / math.sqrt(spent), delta))
    return found if math.isfinite(found) else None


def metrics(algorithm: Algorithm) -> dict[str, float]:
    """Return the entries of an evaluation: ε of all versions so far."""
    aggregator = private(algorithm)
    if aggregator is None:
        return {}
    found = epsilon(aggregator.noise_multiplier, aggregator.spent, aggregator.delta)
    return {} if found is None else {"epsilon": found}


def summary(algorithm: Algorithm) -> dict[str, Any]:
    """Return the entries of a summary."""
    aggregator = private(algorithm)
    if aggregator is None:
        return {}
    return {"epsilon": None} | metrics(algorithm) | {"delta": aggregator.delta, "spent": aggregator.spent}


def describe(algorithm: Algorithm) -> str:
    """Return ε as text for a log; empty without a private aggregator."""
    aggregator, found = private(algorithm), metrics(algorithm).get("epsilon")
    return f"ε = {found:.3g} at δ = {aggregator.delta:g}" if aggregator is not None and found is not None else ""


@functools.cache
def _has_accountant() -> bool:
    """Return whether dp-accounting is installed; warn once if it is not."""
    installed = importlib.util.find_spec("dp_accounting") is not None
    if not installed:
        _LOG.warning(INSTALL)
    return installed
