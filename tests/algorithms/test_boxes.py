"""Each algorithm against a NumPy transcription of its paper's box, over 50 random arrivals.

The transcriptions keep everything (all models, all h_i) and recompute every mean: slow and plain on purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.support import Arrivals, job, update

from offbeat.algorithms import (
    ACE,
    ACED,
    AFACD,
    AFACS,
    AREA,
    CA2FL,
    FADAS,
    MFCA2FL,
    MIFA,
    Algorithm,
    FedAdam,
    FedAMSGrad,
    FedAsync,
    FedAvg,
    FedAvgIS,
    FedAvgM,
    FedBuff,
    FedDyn,
    FedFa,
    FedYogi,
)
from offbeat.algorithms.optimizers import AMSGrad, ServerAdam, Yogi
from offbeat.algorithms.staleness import Constant, Hinge, Polynomial, Staleness
from offbeat.random import key, torch_stream
from offbeat.schedules import ConstantRate, InverseDecay, Schedule
from offbeat.vectors import Layout

Vector = NDArray[np.float64]
Box = Callable[[Arrivals], Vector]
ETA = 0.7


def awake(client: int) -> float:
    """Return p_i of the history's clients."""
    return 0.2 + 0.1 * client


def play(algorithm: Algorithm, history: Arrivals, schedule: Schedule | None = None) -> Vector:
    """Feed a history to the algorithm in double precision, so that only the rule can differ, not the rounding."""
    x0 = torch.from_numpy(history.x0).double()
    algorithm.start(x0, history.clients, seed=5, participation=awake, local_schedule=schedule)
    versions = [algorithm.x]
    for n, client in enumerate(history.who):
        pulled = max(0, algorithm.version - history.lags[n])
        j = replace(job(n, client, pulled, versions[pulled], steps=1 + n % 4), rate=algorithm.local_rate())
        algorithm.receive(j, update(j, torch.from_numpy(history.deltas[n]).double(), history.examples[n]))
        if history.steps_after[n]:
            algorithm.step()
            versions.append(algorithm.x)
    return np.asarray(algorithm.x.numpy())


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
    x = history.x0
    models, weights = [], []
    for n in range(len(history.who)):
        models.append(x + history.deltas[n])
        weights.append(float(history.examples[n]) if weighted else 1.0)
        if history.steps_after[n]:
            average = sum(w * m for w, m in zip(weights, models, strict=True)) / sum(weights)
            x = x + ETA * (average - x)
            models, weights = [], []
    return np.asarray(x)


def fedbuff_box(history: Arrivals, s: Callable[[int], float]) -> Vector:
    """Wang et al., Algorithm 2, with the mean of eq. E.1 and FedBuff's weight s(τ)."""
    x, t = history.x0, 0
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
    models = [history.x0]
    for n in range(len(history.who)):
        t = len(models) - 1
        pulled = max(0, t - history.lags[n])
        x_new = models[pulled] + history.deltas[n]
        alpha_t = alpha * s(t - pulled)
        models.append((1 - alpha_t) * models[t] + alpha_t * x_new)
    return models[-1]


def ca2fl_box(history: Arrivals, cached: Callable[[Vector, int, int], Vector]) -> Vector:
    """Wang et al., Algorithm 1, lines 4–14; `cached` is what line 11 stores of a Δ."""
    x, t = history.x0, 0
    h_i = np.zeros((history.clients, history.dim))
    received: list[tuple[int, Vector]] = []
    for n, client in enumerate(history.who):
        received.append((client, history.deltas[n]))  # lines 4–6
        if not history.steps_after[n]:
            continue
        h = h_i.sum(axis=0) / history.clients
        v = h + sum(delta - h_i[i] for i, delta in received) / len(received)  # line 9
        x = x + ETA * v  # line 10
        for place, (i, delta) in enumerate(received):  # line 11
            h_i[i] = cached(delta, t, place)
        received, t = [], t + 1  # line 12
    return x


def quantized(levels: int, nearest: bool = False, ends: tuple[int, ...] = ()) -> Callable[[Vector, int, int], Vector]:
    """Quantize as in appendix C, with the noise that the server draws; `ends` separates the parts with own ranges."""

    def cached(delta: Vector, version: int, place: int) -> Vector:
        generator = torch_stream(key(5, "store", version, place))
        noise = torch.rand(delta.shape, generator=generator).numpy()
        parts = []
        for part, part_noise in zip(np.split(delta, ends), np.split(noise, ends), strict=True):
            grid = np.linspace(part.min(), part.max(), levels)
            if nearest:
                codes = np.abs(part[:, None] - grid).argmin(axis=1)
            else:
                u = (part.max() - part.min()) / (levels - 1)
                codes = np.minimum(np.floor((part - part.min()) / u + part_noise), levels - 1).astype(int)
            parts.append(grid[codes])
        return np.concatenate(parts)

    return cached


def close(algorithm: Algorithm, history: Arrivals, box: Box) -> None:
    np.testing.assert_allclose(play(algorithm, history), box(history), rtol=0, atol=1e-9)


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
    close(MFCA2FL(eta=ETA, bits=bits), Arrivals(seed), lambda h: ca2fl_box(h, quantized(2**bits)))  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("part", [False, True], ids=["vector", "tensor"])
@pytest.mark.parametrize("nearest", [False, True], ids=["stochastic", "nearest"])
@pytest.mark.parametrize(("bits", "levels"), [(2, 2), (2, 3), (4, 15), (8, None)])
def test_mf_ca2fl_with_other_quantizations(seed: int, bits: Any, levels: int | None, nearest: bool, part: bool) -> None:
    history = Arrivals(seed)
    algorithm = MFCA2FL(
        eta=ETA, bits=bits, levels=levels, rounding="nearest" if nearest else "stochastic",
        range="tensor" if part else "vector",
    )  # fmt: skip
    sizes = (2, 0, history.dim - 2)
    algorithm.use_layout(Layout(("weight", "empty", "bias"), tuple(torch.Size([size]) for size in sizes)))
    cached = quantized(levels or 2**bits, nearest, (2,) if part else ())
    close(algorithm, history, lambda h: ca2fl_box(h, cached))


def mean_box(history: Arrivals, apply: Callable[[Vector, Vector, int], Vector]) -> Vector:
    """x ← apply(x, mean Δ of the buffer, largest delay in it)."""
    x, t = history.x0, 0
    buffer: list[Vector] = []
    delays: list[int] = []
    for n in range(len(history.who)):
        buffer.append(history.deltas[n])
        delays.append(min(t, history.lags[n]))
        if history.steps_after[n]:
            x, t = apply(x, np.mean(buffer, axis=0), max(delays)), t + 1
            buffer, delays = [], []
    return x


class Moments:
    """Reddi et al., Algorithm 2, and Wang et al.'s AMSGrad: plain transcriptions with ε inside the root."""

    def __init__(self, kind: str, eta: float) -> None:
        self.kind, self.eta, self.m, self.v, self.v_hat = kind, eta, 0.0, 0.0, 0.0

    def __call__(self, x: Vector, delta: Vector, tau: int) -> Vector:
        beta1, beta2, epsilon = 0.9, 0.99, 1e-8
        self.m = beta1 * self.m + (1 - beta1) * delta  # type: ignore[assignment]
        if self.kind == "yogi":
            self.v = self.v - (1 - beta2) * delta**2 * np.sign(self.v - delta**2)  # type: ignore[assignment]
        else:
            self.v = beta2 * self.v + (1 - beta2) * delta**2  # type: ignore[assignment]
        self.v_hat = np.maximum(self.v_hat, self.v) if self.kind in ("amsgrad", "fadas") else self.v
        eta = self.eta / tau if self.kind == "fadas" and tau > 2 else self.eta
        return np.asarray(x + eta * self.m / np.sqrt(self.v_hat + epsilon))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("rule", "kind"),
    [(FedAdam(), "adam"), (FedYogi(), "yogi"), (FedAMSGrad(), "amsgrad"), (FADAS(tau_c=2.0), "fadas")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_adaptive_servers(seed: int, rule: Algorithm, kind: str) -> None:
    close(rule, Arrivals(seed), lambda h: mean_box(h, Moments(kind, 0.01)))


@pytest.mark.parametrize("corrected", [False, True], ids=["plain", "corrected"])
@pytest.mark.parametrize("place", ["inside", "outside"])
@pytest.mark.parametrize("epsilon", [1e-10, 1e-8, 1e-4])
@pytest.mark.parametrize("kind", [ServerAdam, Yogi, AMSGrad])
def test_epsilon_and_bias_correction(
    kind: type[ServerAdam | Yogi | AMSGrad], epsilon: float, place: Any, corrected: bool
) -> None:
    """Kingma and Ba, Algorithm 1, has ε outside the root and corrects both moments."""
    optimizer = kind(epsilon=epsilon, epsilon_place=place, bias_correction=corrected)
    x, history = np.full(9, 0.5), np.random.default_rng(0).standard_normal((6, 9))
    history[:, 0] = 0  # an entry that nobody has trained
    history[:, 1] *= 1e-5
    y = torch.from_numpy(x)
    optimizer.start(y)
    m, s, most = np.zeros((3, 9))
    for t, v in enumerate(history, start=1):
        m = 0.9 * m + 0.1 * v
        s = s - 0.01 * v**2 * np.sign(s - v**2) if kind is Yogi else 0.99 * s + 0.01 * v**2
        most = np.maximum(most, s)
        m_hat, s_hat = m, most if kind is AMSGrad else s
        if corrected:
            m_hat, s_hat = m_hat / (1 - 0.9**t), s_hat / (1 - 0.99**t)
        x = x + 0.1 * m_hat / (np.sqrt(s_hat + epsilon) if place == "inside" else np.sqrt(s_hat) + epsilon)
        y = optimizer.step(y, torch.from_numpy(v), 0.1)
        np.testing.assert_allclose(y.numpy(), x, rtol=0, atol=1e-12)
    assert y[0] == 0.5


@pytest.mark.parametrize("seed", range(3))
def test_fedavgm(seed: int) -> None:
    """Hsu et al.: v ← β v + Δ, x ← x + η v."""
    velocity: list[Vector] = [np.zeros(23)]

    def apply(x: Vector, delta: Vector, tau: int) -> Vector:
        velocity[0] = 0.9 * velocity[0] + delta
        return np.asarray(x + ETA * velocity[0])

    close(FedAvgM(eta=ETA), Arrivals(seed), lambda h: mean_box(h, apply))


def memory_box(history: Arrivals, stored: Callable[[int, Vector], Vector], wait: bool, inverse: bool) -> Vector:
    """Gu et al., Algorithm 1 (MIFA), and Yang et al., Algorithm 3 (AFA-CS): all rows are kept, the mean is over all."""
    x, t = history.x0, 1
    rows = np.zeros((history.clients, history.dim))
    heard: set[int] = set()
    for n, client in enumerate(history.who):
        rows[client] = stored(n, history.deltas[n]) * (t if inverse else 1)  # at the full rate η_0
        heard.add(client)
        if history.steps_after[n] and (len(heard) == history.clients or not wait):
            x, t = x + ETA * rows.mean(axis=0) / (t if inverse else 1), t + 1
    return x


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("schedule", [ConstantRate(), InverseDecay()], ids=["constant", "inverse"])
def test_mifa(seed: int, wait: bool, schedule: Schedule) -> None:
    inverse, history = isinstance(schedule, InverseDecay), Arrivals(seed)
    found = play(MIFA(eta=ETA, wait_for_all=wait), history, schedule)
    expected = memory_box(history, lambda n, delta: delta, wait, inverse)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("normalize", ["none", "steps"])
def test_afa(seed: int, normalize: str) -> None:
    """Yang et al., Algorithms 2 and 3; K_i = 1 + n mod 4 as `play` has it, reference K = 5."""
    history = Arrivals(seed)

    def stored(n: int, delta: Vector) -> Vector:
        return delta * 5 / (1 + n % 4) if normalize == "steps" else delta

    divided = Arrivals(seed)
    divided.deltas = np.stack([stored(n, delta) for n, delta in enumerate(history.deltas)])
    close(AFACS(eta=ETA, normalize=normalize), history, lambda h: memory_box(h, stored, False, False))  # type: ignore[arg-type]
    close(
        AFACD(eta=ETA, normalize=normalize),  # type: ignore[arg-type]
        history,
        lambda _: mean_box(divided, lambda x, v, tau: x + ETA * v),
    )


@pytest.mark.parametrize("seed", range(3))
def test_fedavg_with_importance_sampling(seed: int) -> None:
    history = Arrivals(seed)

    def box(h: Arrivals) -> Vector:
        x, total = h.x0, np.zeros(h.dim)
        for n, client in enumerate(h.who):
            total = total + h.deltas[n] / awake(client)
            if h.steps_after[n]:
                x, total = x + ETA * total / h.clients, np.zeros(h.dim)
        return x

    close(FedAvgIS(eta=ETA), history, box)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("bound", [None, 4])
def test_ace_and_aced(seed: int, bound: int | None) -> None:
    """At every arrival the mean over all latest updates; ACED over those at most `bound` versions old."""

    def box(h: Arrivals) -> Vector:
        x = h.x0
        latest: dict[int, tuple[int, Vector]] = {}
        for t, client in enumerate(h.who):  # a version an arrival
            latest[client] = max(0, t - h.lags[t]), h.deltas[t]
            if bound is None:
                x = x + ETA * sum(g for _, g in latest.values()) / h.clients
            else:
                fresh = [g for version, g in latest.values() if t - version <= bound]
                x = x + ETA * sum(fresh) / len(fresh) if fresh else x
        return x

    close(ACE(eta=ETA) if bound is None else ACED(eta=ETA, max_age=bound), Arrivals(seed, buffer=1), box)


@pytest.mark.parametrize("seed", range(3))
def test_area_is_the_mean_of_the_last_models_of_all_clients(seed: int) -> None:
    def box(h: Arrivals) -> Vector:
        models = [h.x0]
        uploaded = np.tile(models[0], (h.clients, 1))
        for n, client in enumerate(h.who):
            t = len(models) - 1
            uploaded[client] = models[max(0, t - h.lags[n])] + h.deltas[n]
            models.append(uploaded.mean(axis=0))
        return models[-1]

    close(AREA(), Arrivals(seed, buffer=1), box)


@pytest.mark.parametrize("seed", range(3))
def test_fedfa_is_the_mean_of_the_last_models(seed: int) -> None:
    def box(h: Arrivals) -> Vector:
        models, received = [h.x0], []
        for n in range(len(h.who)):
            t = len(models) - 1
            received.append(models[max(0, t - h.lags[n])] + h.deltas[n])
            models.append(np.mean(received[-6:], axis=0))
        return models[-1]

    close(FedFa(queue=6), Arrivals(seed, buffer=1), box)


def test_feddyn_with_its_clients_solves_a_heterogeneous_quadratic() -> None:
    """Acar et al., Algorithm 1, client and server in NumPy with exact local minimization, compared with
    the server rule, and converging."""
    alpha, rng = 0.5, np.random.default_rng(0)
    centers = rng.standard_normal((6, 4)) * 3
    x, h, g = np.zeros(4), np.zeros(4), np.zeros((6, 4))
    server = FedDyn(alpha=alpha)
    server.start(torch.zeros(4, dtype=torch.float64), 6)
    for n in range(200):
        cohort = [int(i) for i in rng.permutation(6)[:3]]
        # argmin ½‖y − c_i‖² − ⟨g_i, y⟩ + (α/2)‖y − x‖²
        y = {i: (centers[i] + g[i] + alpha * x) / (1 + alpha) for i in cohort}
        for i in cohort:
            g[i] = g[i] - alpha * (y[i] - x)
            j = job(n, i, server.version, server.x)
            server.receive(j, update(j, torch.from_numpy(y[i]) - server.x))
        h = h - alpha / 6 * sum(y[i] - x for i in cohort)
        x = sum(y.values()) / 3 - h / alpha
        server.step()
        np.testing.assert_allclose(server.x.numpy(), x, atol=1e-9)
    assert np.linalg.norm(x - centers.mean(axis=0)) < 1e-3
