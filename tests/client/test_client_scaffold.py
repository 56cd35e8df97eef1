"""SCAFFOLD's client and server compared with a plain transcription of the paper's box and with its theory."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from offbeat.client.rules import SGD, Scaffold
from offbeat.messages import Update
from offbeat.server.extensions import ServerExtension

Array = NDArray[np.float64]
N, D = 6, 5


class Clients:
    """f_i(y) = ½ Σ_j a_ij (y_j − b_ij)²; the spread of a_i and b_i is the heterogeneity."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.a, self.b = rng.uniform(0.5, 2.0, (N, D)), 3 * rng.standard_normal((N, D))

    def gradient(self, i: int, y: Array) -> Array:
        return np.asarray(self.a[i] * (y - self.b[i]))

    @property
    def optimum(self) -> Array:
        return np.asarray((self.a * self.b).sum(axis=0) / self.a.sum(axis=0))


class Box:
    """Karimireddy et al., ICML 2020, Algorithm 1 with option II, line by line."""

    def __init__(self, clients: Clients, eta_g: float, eta_l: float) -> None:
        self.clients, self.eta_g, self.eta_l = clients, eta_g, eta_l
        self.x, self.c, self.c_i = np.zeros(D), np.zeros(D), np.zeros((N, D))

    def round(self, sampled: list[int], k: dict[int, int]) -> None:
        dy, dc = [], []
        for i in sampled:  # 3: communicate (x, c) to all clients i ∈ S
            y = self.x.copy()
            for _ in range(k[i]):
                g = self.clients.gradient(i, y)
                y = y - self.eta_l * (g - self.c_i[i] + self.c)  # 10
            c_plus = self.c_i[i] - self.c + (self.x - y) / (k[i] * self.eta_l)  # 12 (ii)
            dy.append(y - self.x)
            dc.append(c_plus - self.c_i[i])  # 13
            self.c_i[i] = c_plus  # 14
        self.x = self.x + self.eta_g * np.mean(dy, axis=0)  # 16, 17
        self.c = self.c + len(sampled) / N * np.mean(dc, axis=0)


class Ours:
    """The rule and its server extension, with averaging as the server rule."""

    def __init__(self, clients: Clients, eta_g: float, rule: Scaffold) -> None:
        self.clients, self.eta_g, self.rule = clients, eta_g, rule
        self.extension = started(rule)
        self.x = torch.zeros(D, dtype=torch.float64)
        self.c_i = {i: torch.zeros(D, dtype=torch.float64) for i in range(N)}

    @property
    def c(self) -> Array:
        return np.asarray(self.extension.extra()["c"].numpy())

    def train(self, i: int, k: int) -> Update:
        x, rule = self.x, self.rule
        y, state = x, rule.begin(x, self.extension.extra(), {"c_i": self.c_i[i]})
        for _ in range(k):
            g = torch.from_numpy(self.clients.gradient(i, y.numpy()))
            y, state = rule.step(y, g, x, rule.lr, state)
        sent, kept = rule.finish(y, x, rule.lr, float(k), state)
        self.c_i[i] = kept["c_i"]
        return message(i, y - x, sent)

    def round(self, sampled: list[int], k: dict[int, int]) -> None:
        updates = [self.train(i, k[i]) for i in sampled]
        self.x = self.x + self.eta_g * torch.stack([u.delta for u in updates]).mean(dim=0)
        for u in updates:
            self.extension.receive(u)


def started(rule: Scaffold) -> ServerExtension:
    extension = rule.server()
    extension.start(torch.zeros(D, dtype=torch.float64), N)
    return extension


def message(client: int, delta: torch.Tensor, sent: dict[str, torch.Tensor]) -> Update:
    return Update(job=0, client=client, version=0, delta=delta, steps=1, examples=1, wire_bytes=0, extra=sent)


@pytest.mark.parametrize("size", [1, 3, N])
@pytest.mark.parametrize("seed", range(3))
def test_the_box(seed: int, size: int) -> None:
    clients, rng = Clients(seed), np.random.default_rng(seed)
    box, ours = Box(clients, 0.8, 0.05), Ours(clients, 0.8, Scaffold(lr=0.05))
    for _ in range(20):
        sampled = [int(i) for i in rng.permutation(N)[:size]]
        k = {i: int(rng.integers(1, 6)) for i in sampled}
        box.round(sampled, k)
        ours.round(sampled, k)
        np.testing.assert_allclose(ours.x.numpy(), box.x, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(ours.c, box.c, rtol=1e-10, atol=1e-12)
        for i in range(N):
            np.testing.assert_allclose(ours.c_i[i].numpy(), box.c_i[i], rtol=1e-10, atol=1e-12)


def test_the_first_job_by_hand() -> None:
    """c = c_i = 0: two steps of SGD, and c_i⁺ is the mean of the two gradients, all of which is sent."""
    rule, x = Scaffold(lr=0.5), torch.tensor([1.0, 2.0])
    y, state = x, rule.begin(x, {"c": torch.zeros(2)}, {"c_i": torch.zeros(2)})
    for g in ([4.0, -2.0], [2.0, 0.0]):
        y, state = rule.step(y, torch.tensor(g), x, 0.5, state)
    assert y.tolist() == [-2.0, 3.0]
    sent, kept = rule.finish(y, x, 0.5, 2.0, state)
    assert sent["change"].tolist() == kept["c_i"].tolist() == [3.0, -1.0]


def test_a_control_variate_is_the_mean_gradient_along_the_path() -> None:
    """Whatever c and c_i are: c_i⁺ = (1/K) Σ g, since they cancel in option II."""
    rng = torch.Generator().manual_seed(0)
    x, c, c_i, *gradients = torch.randn((7, D), generator=rng, dtype=torch.float64)
    rule = Scaffold(lr=0.1)
    y, state = x, rule.begin(x, {"c": c}, {"c_i": c_i})
    for g in gradients:
        y, state = rule.step(y, g, x, 0.1, state)
    _, kept = rule.finish(y, x, 0.1, 4.0, state)
    torch.testing.assert_close(kept["c_i"], torch.stack(gradients).mean(dim=0), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_c_is_the_mean_of_all_c_i(seed: int) -> None:
    """This also holds before every client has participated: c_i of the others is zero."""
    rng, ours = np.random.default_rng(seed), Ours(Clients(seed), 1.0, Scaffold(lr=0.05))
    seen: set[int] = set()
    for _ in range(30):
        sampled = [int(i) for i in rng.permutation(N)[: int(rng.integers(1, 4))]]
        ours.round(sampled, {i: 1 + i for i in sampled})
        seen |= set(sampled)
        np.testing.assert_allclose(ours.c, torch.stack(list(ours.c_i.values())).mean(dim=0).numpy(), atol=1e-10)
    assert seen == set(range(N))


def test_c_is_the_mean_of_all_c_i_also_when_updates_come_late_and_out_of_order() -> None:
    rng, ours = np.random.default_rng(0), Ours(Clients(0), 1.0, Scaffold(lr=0.05))
    flying: dict[int, Update] = {}
    for _ in range(200):
        i = int(rng.integers(N))
        if i not in flying:
            flying[i] = ours.train(i, 1 + i)
            continue
        u = flying.pop(i)
        ours.x = ours.x + 0.3 * u.delta
        ours.extension.receive(u)
    for u in flying.values():
        ours.extension.receive(u)
    np.testing.assert_allclose(ours.c, torch.stack(list(ours.c_i.values())).mean(dim=0).numpy(), atol=1e-10)


def test_there_is_no_client_drift() -> None:
    """With heterogeneous clients and many local steps SCAFFOLD reaches the optimum; averaged SGD does not."""
    clients, everybody = Clients(1), list(range(N))
    ours = Ours(clients, 1.0, Scaffold(lr=0.05))
    for _ in range(300):
        ours.round(everybody, dict.fromkeys(everybody, 10))
    np.testing.assert_allclose(ours.x.numpy(), clients.optimum, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(ours.c, 0, atol=1e-6)
    x, sgd = torch.zeros(D, dtype=torch.float64), SGD()
    for _ in range(300):
        ends = []
        for i in everybody:
            y = x
            for _ in range(10):
                y, _ = sgd.step(y, torch.from_numpy(clients.gradient(i, y.numpy())), x, 0.05, {})
            ends.append(y)
        x = torch.stack(ends).mean(dim=0)
    assert np.abs(x.numpy() - clients.optimum).max() > 0.05


def test_a_control_variate_in_flight_is_not_changed() -> None:
    extension = started(Scaffold())
    on_its_way = extension.extra()["c"]
    change = torch.ones(D, dtype=torch.float64)
    extension.receive(message(0, change, {"change": change}))
    assert not on_its_way.any()
    assert extension.extra()["c"].tolist() == pytest.approx([1 / N] * D)
    assert change.tolist() == [1.0] * D


def test_a_loaded_extension_continues_identically() -> None:
    extension, other = started(Scaffold()), started(Scaffold())
    extension.receive(message(0, torch.zeros(D), {"change": torch.arange(D, dtype=torch.float64)}))
    other.load_state_dict(copy.deepcopy(extension.state_dict()))
    for h in (extension, other):
        h.receive(message(1, torch.zeros(D), {"change": torch.ones(D, dtype=torch.float64)}))
    assert torch.equal(extension.extra()["c"], other.extra()["c"])
