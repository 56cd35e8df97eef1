"""Each algorithm against a NumPy transcription of its paper's box, over 50 random arrivals.

The transcriptions keep everything (all models, all h_i) and recompute every mean: slow and plain on purpose.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.support import Arrivals, job, update

from offbeat.algorithms import CA2FL, MFCA2FL, Algorithm, FedAsync, FedAvg, FedBuff
from offbeat.algorithms.staleness import Constant, Hinge, Polynomial, Staleness
from offbeat.seeds import key, torch_stream

Vector = NDArray[np.float64]
Box = Callable[[Arrivals], Vector]
ETA = 0.7


def play(algorithm: Algorithm, history: Arrivals) -> Vector:
    """Feed a history to the real thing."""
    algorithm.start(torch.from_numpy(history.x0.copy()), history.clients, seed=5)
    versions = [algorithm.x]
    for n, client in enumerate(history.who):
        pulled = max(0, algorithm.version - history.lags[n])
        j = job(n, client, pulled, versions[pulled])
        algorithm.receive(j, update(j, torch.from_numpy(history.deltas[n]), history.examples[n]))
        if history.steps_after[n]:
            algorithm.step()
            versions.append(algorithm.x)
    return algorithm.x.numpy().astype(np.float64)


def s_constant(tau: int) -> float:
    return 1.0


def s_polynomial(tau: int) -> float:
    return float((tau + 1) ** (-0.5))


def s_hinge(tau: int) -> float:
    a, b = 10.0, 4.0
    if tau <= b:
        return 1.0
    return 1.0 / (a * (tau - b) + 1.0)


WEIGHTS: list[tuple[Staleness, Callable[[int], float]]] = [
    (Constant(), s_constant),
    (Polynomial(a=0.5), s_polynomial),
    (Hinge(a=10.0, b=4.0), s_hinge),
]


def fedavg_box(history: Arrivals, weighted: bool) -> Vector:
    """McMahan et al., Algorithm 1: the cohort's models averaged, with weights n_k / n."""
    x = history.x0.astype(np.float64)
    models, weights = [], []
    for n in range(len(history.who)):
        models.append(x + history.deltas[n].astype(np.float64))
        weights.append(float(history.examples[n]) if weighted else 1.0)
        if history.steps_after[n]:
            average = sum(w * m for w, m in zip(weights, models, strict=True)) / sum(weights)
            x = x + ETA * (average - x)
            models, weights = [], []
    return np.asarray(x)


def fedbuff_box(history: Arrivals, s: Callable[[int], float]) -> Vector:
    """Wang et al., Algorithm 2, with the mean of eq. E.1 and FedBuff's weight s(τ)."""
    x, t = history.x0.astype(np.float64), 0
    accumulated, m = np.zeros_like(x), 0
    for n in range(len(history.who)):
        tau = t - max(0, t - history.lags[n])
        accumulated = accumulated + s(tau) * history.deltas[n]
        m += 1
        if history.steps_after[n]:
            x, t = x + ETA * accumulated / m, t + 1
            accumulated, m = np.zeros_like(x), 0
    return x


def fedasync_box(history: Arrivals, s: Callable[[int], float], alpha: float) -> Vector:
    """Xie et al., Algorithm 1: x_t ← (1 − α_t) x_{t−1} + α_t x_new, at every arrival."""
    models = [history.x0.astype(np.float64)]
    for n in range(len(history.who)):
        t = len(models) - 1
        pulled = max(0, t - history.lags[n])
        x_new = models[pulled] + history.deltas[n]
        alpha_t = alpha * s(t - pulled)
        models.append((1 - alpha_t) * models[t] + alpha_t * x_new)
    return models[-1]


def ca2fl_box(history: Arrivals, cached: Callable[[Vector, int, int], Vector]) -> Vector:
    """Wang et al., Algorithm 1, lines 4–14; `cached` is what line 11 stores of a Δ."""
    x, t = history.x0.astype(np.float64), 0
    h_i = np.zeros((history.clients, history.dim))
    received: list[tuple[int, Vector]] = []
    for n, client in enumerate(history.who):
        received.append((client, history.deltas[n].astype(np.float64)))  # lines 4–6
        if not history.steps_after[n]:
            continue
        h = h_i.sum(axis=0) / history.clients
        v = h + sum(delta - h_i[i] for i, delta in received) / len(received)  # line 9
        x = x + ETA * v  # line 10
        for place, (i, delta) in enumerate(received):  # line 11
            h_i[i] = cached(delta, t, place)
        received, t = [], t + 1  # line 12
    return x


def quantised(bits: int) -> Callable[[Vector, int, int], Vector]:
    """Appendix C's unbiased quantiser, with the very noise that the server draws."""

    def cached(delta: Vector, version: int, place: int) -> Vector:
        generator = torch_stream(key(5, "store", version, place))
        noise = torch.rand(delta.shape, generator=generator).numpy().astype(np.float64)
        low, high = delta.min(), delta.max()
        u = (high - low) / (2**bits - 1)
        levels = np.minimum(np.floor((delta - low) / u + noise), 2**bits - 1)
        return np.asarray(low + u * levels)

    return cached


def close(algorithm: Algorithm, history: Arrivals, box: Box) -> None:
    np.testing.assert_allclose(play(algorithm, history), box(history), rtol=0, atol=1e-5)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("weighted", [False, True])
def test_fedavg(seed: int, weighted: bool) -> None:
    history = Arrivals(seed)
    history.lags = [0] * len(history.lags)
    close(FedAvg(eta=ETA, weighted=weighted), history, lambda h: fedavg_box(h, weighted))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("weight", "s"), WEIGHTS)
def test_fedbuff(seed: int, weight: Staleness, s: Callable[[int], float]) -> None:
    close(FedBuff(eta=ETA, staleness=weight), Arrivals(seed), lambda h: fedbuff_box(h, s))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("weight", "s"), WEIGHTS)
def test_fedasync(seed: int, weight: Staleness, s: Callable[[int], float]) -> None:
    history = Arrivals(seed, buffer=1)
    close(FedAsync(alpha=0.6, staleness=weight), history, lambda h: fedasync_box(h, s, 0.6))


@pytest.mark.parametrize("seed", range(5))
def test_ca2fl(seed: int) -> None:
    close(CA2FL(eta=ETA), Arrivals(seed), lambda h: ca2fl_box(h, lambda delta, version, place: delta))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("bits", [8, 4, 2])
def test_mf_ca2fl(seed: int, bits: int) -> None:
    close(MFCA2FL(eta=ETA, bits=bits), Arrivals(seed), lambda h: ca2fl_box(h, quantised(bits)))  # type: ignore[arg-type]
