"""What a run with noised updates guarantees: what would break the guarantee is refused, and ε is told.

ε comes from Google's dp-accounting (the extra `privacy`): the exact ε of one Gaussian mechanism, which is what a
client's noised steps are together (`offbeat.aggregation.private`).
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import math
from typing import TYPE_CHECKING, Any

from offbeat.aggregation import Private
from offbeat.algorithms import Algorithm
from offbeat.environment import ByLabel
from offbeat.errors import ConfigError
from offbeat.scheduling.schedulers import Scheduler
from offbeat.server.validation import UpdateValidator

if TYPE_CHECKING:
    from offbeat.runs.experiment import Experiment

INSTALL = "ε is not told: that needs dp-accounting; install it with: pip install 'offbeat[privacy]'"

_LOG = logging.getLogger("offbeat")


def private(algorithm: Algorithm) -> Private | None:
    """What the rule hides its clients' updates behind, if it does."""
    aggregator = getattr(algorithm, "aggregator", None)
    return aggregator if isinstance(aggregator, Private) else None


def check_step(algorithm: Algorithm, scheduler: Scheduler, validation: UpdateValidator) -> None:
    """Reject an aggregator that does not fit the scheduler's steps or the validation of updates."""
    try:
        if aggregator := getattr(algorithm, "aggregator", None):
            aggregator.check(scheduler.updates)
    except ConfigError as error:
        raise error.within("algorithm.aggregator") from None
    if private(algorithm) is not None and validation.max_norm is not None and validation.beyond_norm == "refuse":
        raise ConfigError(
            "whether an update is refused for its length tells of it what private noise is to hide: use clip",
            key="validation.beyond_norm",
        )


def check(experiment: Experiment) -> None:
    """The same for an experiment, and what else goes past the noise."""
    check_step(experiment.algorithm, experiment.scheduler, experiment.validation)
    if private(experiment.algorithm) is None:
        return
    if experiment.client.sends:
        beside = ", ".join(experiment.client.sends)
        raise ConfigError(f"its clients send {beside} beside Δ, which private noise does not hide", key="client.name")
    if isinstance(experiment.environment.availability, ByLabel):
        raise ConfigError(
            "who is awake depends on the clients' labels, which private noise does not hide",
            key="environment.availability",
        )


def check_statistics(algorithm: Algorithm, any_statistics: bool) -> None:
    """Refuse a model whose layers gather statistics of the clients' data."""
    if any_statistics and private(algorithm) is not None:
        raise ConfigError(
            "its layers' running statistics travel beside Δ, and private noise does not hide them: use layers that "
            "have none, such as GroupNorm",
            key="model",
        )


def epsilon(noise_multiplier: float, spent: float, delta: float) -> float | None:
    """ε of a client whose Σ n_t² is `spent`; None where there is none, or nobody here who can say it."""
    if not noise_multiplier or not _accountant():
        return None
    if not spent:
        return 0.0
    from dp_accounting import get_epsilon_gaussian

    found = float(get_epsilon_gaussian(noise_multiplier / math.sqrt(spent), delta))
    return found if math.isfinite(found) else None


def so_far(algorithm: Algorithm) -> dict[str, float]:
    """For a line of metrics: ε of what was made public up to now."""
    hidden = private(algorithm)
    found = epsilon(hidden.noise_multiplier, hidden.spent, hidden.delta) if hidden is not None else None
    return {} if found is None else {"epsilon": found}


def in_all(algorithm: Algorithm) -> dict[str, Any]:
    """For a summary."""
    hidden = private(algorithm)
    if hidden is None:
        return {}
    return {"epsilon": None} | so_far(algorithm) | {"delta": hidden.delta, "spent": hidden.spent}


def words(algorithm: Algorithm) -> str:
    """ε in a line of a log; nothing where nothing is hidden."""
    hidden, found = private(algorithm), so_far(algorithm).get("epsilon")
    return f"ε = {found:.3g} at δ = {hidden.delta:g}" if hidden is not None and found is not None else ""


@functools.cache
def _accountant() -> bool:
    """Whether there is one; said once where there is none."""
    there = importlib.util.find_spec("dp_accounting") is not None
    if not there:
        _LOG.warning(INSTALL)
    return there
