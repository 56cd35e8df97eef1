"""Ages of cached updates and inactive rounds, against sums over all clients at every step of the update log."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.support.experiments import experiment

import offbeat as ob
from offbeat.data import Synthetic
from offbeat.environment import Bernoulli, Constant, HalfNormal
from offbeat.runs import api
from offbeat.runs.data import Data
from offbeat.runs.delays import CACHED
from offbeat.runs.folder import STATUS, UpdateRows

SLOW = ob.Environment(delay=HalfNormal())
SLEEPY = ob.Environment(delay=Constant(value=1.0), availability=Bernoulli(probability=0.4, slot=1.0))
RUNS: dict[str, dict[str, Any]] = {
    "a buffer": {"algorithm": ob.CA2FL(), "environment": SLOW},
    "a client twice in a step": {
        "algorithm": ob.CA2FL(), "scheduler": ob.Continuous(concurrency=2, buffer=6), "environment": SLOW,
    },
    "rounds with the available": {
        "algorithm": ob.MIFA(), "scheduler": ob.schedulers.Available(), "environment": SLEEPY,
    },
    "every arrival": {
        "algorithm": ob.algorithms.ACE(), "scheduler": ob.schedulers.PerArrival(concurrency=4), "environment": SLOW,
    },
    "entries that are dropped": {
        "algorithm": ob.algorithms.ACED(max_age=3), "scheduler": ob.schedulers.PerArrival(concurrency=4),
        "environment": SLOW, "rounds": 60,
    },
    "late updates": {
        "algorithm": ob.MIFA(), "scheduler": ob.Rounds(concurrency=4, deadline=4.0), "environment": SLOW,
    },
    "steps without arrivals": {
        "algorithm": ob.algorithms.AFACS(), "scheduler": ob.Periodic(concurrency=3, period=0.4), "environment": SLOW,
    },
}  # fmt: skip


def by_definition(log: UpdateRows, clients: int, versions: int, max_age: float = np.inf) -> dict[str, float]:
    """Return the figures as they are defined: a loop over all versions and clients."""
    log = log[log["status"] == STATUS.index("aggregated")]
    at = log["version"] + log["staleness"]
    pulled, active, longest = (np.full(clients, -1) for _ in range(3))
    means, mosts, ages, inactive = [], [], [], []
    for t in range(versions):
        now = log[at == t]
        if len(now):
            means.append(now["staleness"].mean())
            mosts.append(now["staleness"].max())
        present = np.zeros(clients, bool)
        present[now["client"]] = True
        for row in now:
            pulled[row["client"]], active[row["client"]] = row["version"], t
        dropped = (pulled >= 0) & (t - pulled > max_age)
        if len(now):
            pulled[dropped], active[dropped] = -1, -1
        cached = pulled >= 0
        ages += (t - pulled)[cached & ~present].tolist()
        inactive += (t - active)[cached].tolist()
        longest[cached] = np.maximum(longest, t - active)[cached]
    known = longest[longest >= 0]
    return {
        "staleness_step_mean": float(np.mean(means)),
        "staleness_step_max": float(np.mean(mosts)),
        "cache_age_mean": float(np.mean(ages or [0])),
        "cache_age_max": max(ages, default=0),
        "inactive_mean": float(np.mean(inactive)),
        "inactive_max": max(inactive),
        "inactive_max_square": float(np.mean(known.astype(float) ** 2)),
    }


@pytest.mark.parametrize("name", RUNS)
def test_figures_are_those_of_the_definitions(name: str, tmp_path: Any) -> None:
    described = experiment(**({"rounds": 25} | RUNS[name]))
    summary = api.execute(described, out=tmp_path / "run").summary
    log = np.load(tmp_path / "run/updates.npy")
    max_age = getattr(described.algorithm, "max_age", np.inf)
    expected = by_definition(log, summary["clients"], summary["rounds"], max_age)
    assert {each: summary[each] for each in expected} == pytest.approx(expected, rel=1e-12)
    assert summary["cache_age_max"] > 0, "the comparison covers absent clients"


def test_updates_of_present_clients_have_staleness_and_no_age() -> None:
    described = experiment(algorithm=ob.MIFA(), scheduler=ob.Rounds(concurrency=6, last_models=5))
    summary = api.execute(described).summary
    assert summary["staleness_max"] > 0
    assert [summary[name] for name in CACHED] == [0] * len(CACHED), "every client is in every round"


def test_inactive_rounds_follow_from_the_availability() -> None:
    """Gu et al.: a device that is available with probability p is inactive for (1 − p)/p rounds in the mean."""
    described = experiment(
        data=Data(source=Synthetic(examples=300, test_examples=60, features=12, classes=3), clients=20),
        algorithm=ob.MIFA(), scheduler=ob.schedulers.Available(), environment=SLEEPY, rounds=600,
        evaluation=ob.Evaluation(every=600),
    )  # fmt: skip
    summary = api.execute(described).summary
    assert summary["staleness_mean"] == 0
    assert summary["inactive_mean"] == pytest.approx(0.6 / 0.4, rel=0.05)
    assert summary["cache_age_mean"] == pytest.approx(1 / 0.4, rel=0.05), "of absent devices"


def test_a_run_without_a_cache_has_no_ages() -> None:
    summary = api.execute(experiment(algorithm=ob.FedBuff(), environment=SLOW)).summary
    assert [summary[name] for name in CACHED] == [None] * len(CACHED)
    assert summary["staleness_step_mean"] == pytest.approx(summary["staleness_mean"]), "every step has two updates"
    assert summary["staleness_step_max"] > summary["staleness_step_mean"]
