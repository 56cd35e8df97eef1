# %% [markdown]
# # A custom algorithm and delay model
#
# Some updates are much longer than others: the client has unusual data, does many steps, or is broken. A server that
# averages lets such updates dominate. This algorithm limits their influence, in an environment in which it matters.

# %%
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

import offbeat as ob
from offbeat.environment import Delay, Trip
from offbeat.options import NonNegative, Positive
from offbeat.random import normal, uniform

# %% [markdown]
# ## The algorithm
#
# `accumulate` receives one update; `pseudo_gradient` returns the direction of the step and clears the buffer. State
# that must survive between two arrivals is listed in `state_names`, so that checkpoints include it. Options are
# annotated fields: `Positive` rejects a 0, whether it comes from Python or from a TOML file. This algorithm clips
# every update to the median norm of the buffer and gives stale updates less weight.


# %%
@dataclass(kw_only=True)
class MedianBuff(ob.Algorithm):
    """v = (1/M) Σ s(τ_i)·Δ_i·min(1, slack·median‖Δ‖/‖Δ_i‖)."""

    slack: Positive = 1.0
    """Largest norm of an update, in multiples of the median norm."""
    a: NonNegative = 0.5
    """s(τ) = (1 + τ)^−a."""

    schedulers: ClassVar[tuple[str, ...]] = ("buffered", "continuous", "rounds")
    state_names: ClassVar[tuple[str, ...]] = ("deltas", "weights")

    def reset(self) -> None:
        self.deltas: list[torch.Tensor] = []
        self.weights: list[float] = []

    def accumulate(self, job: ob.Job, update: ob.Update) -> None:
        self.deltas.append(update.delta)
        self.weights.append((1 + self.tau(job)) ** -self.a)

    def pseudo_gradient(self) -> torch.Tensor:
        stacked = torch.stack(self.deltas)
        norms = stacked.norm(dim=1)
        factors = (self.slack * norms.median() / norms).clamp(max=1.0)
        v = (factors * norms.new_tensor(self.weights)) @ stacked / len(self.deltas)
        self.reset()
        return v


# %% [markdown]
# ## The delay model
#
# A delay model returns the duration of one trip. Properties of the client are derived from `client_key`, properties
# of the trip from `trip_key`: `offbeat.random` turns both into random numbers. A delay model therefore has no state,
# and every algorithm sees the same delays. Here each client has a speed, and occasionally a trip takes very long (a
# Pareto tail).


# %%
@dataclass(kw_only=True, frozen=True)
class HeavyTail(Delay):
    """steps · speed_i · (1 − u)^(−1/shape)."""

    median: Positive = 0.1
    """Median seconds per step over the clients."""
    shape: Positive = 1.5
    """Shape of the Pareto tail; smaller values make the longest trips longer."""

    def seconds(self, trip: Trip) -> float:
        speed = self.median * math.exp(0.5 * normal(trip.client_key))
        return trip.steps * speed * (1 - uniform(trip.trip_key)) ** (-1 / self.shape)


# %% [markdown]
# ## The data
#
# Four classes on 40 clients, one or two labels each. Two of the clients are broken: their inputs are a hundred times
# too large, and their labels are wrong.

# %%
rng = np.random.default_rng(0)
y = rng.integers(4, size=2400)
x = rng.normal(size=(2400, 20)).astype(np.float32) + 3 * np.eye(20, dtype=np.float32)[y]
train, parts = 2000, np.array_split(np.argsort(y[:2000], kind="stable"), 40)
for broken in (3, 17):
    x[parts[broken]] *= 100
    y[parts[broken]] = rng.integers(4, size=len(parts[broken]))
data = ob.from_arrays(x[:train], y[:train], x[train:], y[train:])


def run(algorithm):
    """Run one experiment."""
    return ob.run(
        data=data,
        partition=parts,
        model=lambda: torch.nn.Linear(20, 4),
        algorithm=algorithm,
        client=ob.SGD(lr=0.05, epochs=2, batch_size=10),
        scheduler=ob.Buffered(concurrency=15, buffer=5),
        environment=ob.Environment(delay=HeavyTail(shape=1.2)),
        rounds=80,
        evaluation=4,
    )


# %% [markdown]
# ## Does it help?

# %%
for algorithm in (ob.FedBuff(), MedianBuff()):
    result = run(algorithm)
    worst = min(line["accuracy"] for line in result.evaluations[5:])
    summary = result.summary
    print(
        f"{type(algorithm).__name__:10} accuracy {result.accuracy:6.1%}, lowest {worst:6.1%}; "
        f"staleness mean {summary['staleness_mean']:.1f}, max {summary['staleness_max']}"
    )

# %% [markdown]
# An update of a broken client throws the mean off; the median of five norms hardly changes. In a TOML file in the
# same folder, refer to the classes by module and name: `algorithm = { name = "custom_algorithm:MedianBuff", slack =
# 2.0 }`, `delay = { name = "custom_algorithm:HeavyTail", shape = 1.2 }`.
