"""FedDyn's client against a plain transcription of the paper's box and against its theory."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from offbeat.client.rules import Dyn, Prox

Array = NDArray[np.float64]
N, D = 5, 4


class Clients:
    """f_i(y) = ½ Σ_j a_ij (y_j − b_ij)²."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.a, self.b = rng.uniform(0.5, 2.0, (N, D)), 3 * rng.standard_normal((N, D))

    def gradient(self, i: int, y: Array) -> Array:
        return np.asarray(self.a[i] * (y - self.b[i]))

    @property
    def optimum(self) -> Array:
        return np.asarray((self.a * self.b).sum(axis=0) / self.a.sum(axis=0))


def train(clients: Clients, i: int, x: Array, g_i: Array, rule: Dyn, k: int) -> tuple[Array, Array]:
    """Return y_K and g_i after a job of the rule."""
    start = torch.from_numpy(x)
    y, state = start, rule.begin(start, {}, {"g_i": torch.from_numpy(g_i)})
    for _ in range(k):
        y, state = rule.step(y, torch.from_numpy(clients.gradient(i, y.numpy())), start, rule.lr, state)
    sent, kept = rule.finish(y, start, rule.lr, float(k), state)
    assert sent == {}
    return y.numpy(), kept["g_i"].numpy()


def server(x: Array, h: Array, models: list[Array], alpha: float) -> tuple[Array, Array]:
    h = h - alpha / N * np.sum([y - x for y in models], axis=0)
    return np.mean(models, axis=0) - h / alpha, h


@pytest.mark.parametrize("seed", range(3))
def test_the_box(seed: int) -> None:
    """Acar et al., ICLR 2021, Algorithm 1, with K gradient steps as the inner minimization."""
    clients, rng, alpha, lr = Clients(seed), np.random.default_rng(seed), 0.4, 0.05
    theirs, ours = (np.zeros(D), np.zeros(D)), (np.zeros(D), np.zeros(D))  # θ and h
    grads, kept = np.zeros((N, D)), np.zeros((N, D))
    for _ in range(15):
        sampled = [int(i) for i in rng.permutation(N)[: int(rng.integers(1, N + 1))]]
        k = int(rng.integers(1, 6))
        models, our_models = [], []
        for i in sampled:
            theta = theirs[0].copy()
            for _ in range(k):  # ∇ of L_i(θ) − ⟨∇L_i(θ_i), θ⟩ + α/2 ‖θ − θ^(t−1)‖²
                theta = theta - lr * (clients.gradient(i, theta) - grads[i] + alpha * (theta - theirs[0]))
            grads[i] = grads[i] - alpha * (theta - theirs[0])
            models.append(theta)
            end, kept[i] = train(clients, i, ours[0], kept[i], Dyn(lr=lr, alpha=alpha), k)
            our_models.append(end)
        theirs, ours = server(*theirs, models, alpha), server(*ours, our_models, alpha)
        np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(kept, grads, rtol=1e-10, atol=1e-12)


def test_by_hand() -> None:
    """y = x − ½(2 − 1 + 0) = 0.5; then 0.5 − ½(2 − 1 + ¼·(−0.5)) = 0.0625; g_i = 1 − ¼·(−0.9375)."""
    rule, x, g = Dyn(alpha=0.25), torch.ones(1), torch.full((1,), 2.0)
    state = rule.begin(x, {}, {"g_i": torch.ones(1)})
    y, state = rule.step(x, g, x, 0.5, state)
    assert y.item() == 0.5
    y, state = rule.step(y, g, x, 0.5, state)
    assert y.item() == 0.0625
    assert rule.finish(y, x, 0.5, 2.0, state)[1]["g_i"].item() == 1 + 0.25 * 0.9375


def test_the_first_job_is_fedprox() -> None:
    """This is FedProx with g_i = 0 and μ = α."""
    rng = torch.Generator().manual_seed(0)
    x, *gradients = torch.randn((5, D), generator=rng, dtype=torch.float64)
    dyn, prox = Dyn(alpha=0.3), Prox(mu=0.3)
    y, z, state = x, x, dyn.begin(x, {}, {"g_i": torch.zeros_like(x)})
    for g in gradients:
        y, state = dyn.step(y, g, x, 0.1, state)
        z, _ = prox.step(z, g, x, 0.1, {})
    torch.testing.assert_close(y, z, rtol=1e-12, atol=1e-12)


def test_g_i_is_the_gradient_where_the_client_has_stopped() -> None:
    """This is the first-order condition of the exact inner minimization, in every round and from any x."""
    clients, rng, g_i = Clients(3), np.random.default_rng(3), np.zeros(D)
    for _ in range(4):
        y, g_i = train(clients, 2, rng.standard_normal(D), g_i, Dyn(lr=0.3, alpha=0.5), 400)
        np.testing.assert_allclose(g_i, clients.gradient(2, y), rtol=1e-8, atol=1e-8)


def test_with_its_server_it_reaches_the_optimum() -> None:
    clients, x, h, kept = Clients(1), np.zeros(D), np.zeros(D), np.zeros((N, D))
    for _ in range(80):
        models = []
        for i in range(N):
            y, kept[i] = train(clients, i, x, kept[i], Dyn(lr=0.2, alpha=0.5), 50)
            models.append(y)
        x, h = server(x, h, models, 0.5)
    np.testing.assert_allclose(x, clients.optimum, rtol=1e-6, atol=1e-6)
