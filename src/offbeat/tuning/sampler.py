"""Optuna as a sampler, which is optional."""

from __future__ import annotations

import math
from typing import Any

from offbeat.errors import OffbeatError
from offbeat.tuning.space import Space


class Sampler:
    """Suggests trials that depend on the results of earlier ones.

    Args:
        space: What each key may be.
        seed: The seed of Optuna's sampler.

    Raises:
        OffbeatError: Optuna is not installed.
    """

    def __init__(self, space: Space, seed: int) -> None:
        try:
            import optuna
        except ImportError as error:
            raise OffbeatError(
                "method 'optuna' needs Optuna; install it with: pip install 'offbeat[tune]'. "
                "Without it, use random, grid or asha"
            ) from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.space, self._failed = space, optuna.trial.TrialState.FAIL
        sampler = optuna.samplers.TPESampler(seed=seed % 2**32)
        self.study = optuna.create_study(direction="minimize", sampler=sampler)

    def ask(self) -> tuple[Any, dict[str, Any]]:
        """Return a trial of Optuna and its hyperparameters."""
        trial = self.study.ask()
        return trial, {key: each.suggest(trial, key) for key, each in self.space.items()}

    def tell(self, trial: Any, order: float) -> None:
        """Tell the result of a trial: lower is better, and infinity is a failure."""
        if math.isinf(order):
            self.study.tell(trial, state=self._failed)
        else:
            self.study.tell(trial, order)
