"""Local rules compared with torch.optim, with autograd, and between single rows and stacks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from offbeat.client.rules import CLIENT_RULES, SGD, ClientRule, Dyn, Number, Prox, Scaffold, State
from offbeat.errors import ConfigError

D = 12
RULES: list[ClientRule] = [
    SGD(lr=0.05),
    SGD(lr=0.05, weight_decay=0.1),
    SGD(lr=0.05, momentum=0.9),
    SGD(lr=0.05, momentum=0.9, weight_decay=0.1),
    Prox(lr=0.05, mu=0.3),
    Prox(lr=0.05, mu=0.3, weight_decay=0.1),
    Scaffold(lr=0.05),
    Scaffold(lr=0.05, weight_decay=0.1),
    Dyn(lr=0.05, alpha=0.3),
    Dyn(lr=0.05, alpha=0.3, weight_decay=0.1),
]
EVERY = pytest.mark.parametrize("rule", RULES, ids=str)


class Quadratic:
    """f(y) = ½ yᵀAy − bᵀy with a random positive definite A."""

    def __init__(self, seed: int) -> None:
        rng = torch.Generator().manual_seed(seed)
        root = torch.randn((D, D), generator=rng, dtype=torch.float64) / D**0.5
        self.a: Tensor = root @ root.T + 0.1 * torch.eye(D, dtype=torch.float64)
        self.b = torch.randn(D, generator=rng, dtype=torch.float64)
        self.start = torch.randn(D, generator=rng, dtype=torch.float64)

    def value(self, y: Tensor) -> Tensor:
        return torch.dot(y, self.a.mv(y)) / 2 - torch.dot(self.b, y)

    def gradient(self, y: Tensor) -> Tensor:
        return self.a.mv(y).sub(self.b)


def begin(rule: ClientRule, x: Tensor) -> State:
    """Return a state with nonzero auxiliary vectors and client state; a row's does not depend on the stack."""
    kept: State = dict.fromkeys(rule.client_state, 0.3 * x - 0.1)
    return rule.begin(x, {"c": torch.linspace(-1, 1, x.shape[-1], dtype=x.dtype)}, kept)


def walk(rule: ClientRule, x: Tensor, gradients: list[Tensor], lr: Number | None = None) -> Tensor:
    """Run one job along given gradients."""
    y, state = x, begin(rule, x)
    for g in gradients:
        y, state = rule.step(y, g, x, rule.lr if lr is None else lr, state)
    return y


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_sgd_is_torch_optim_sgd_step_by_step(momentum: float, weight_decay: float) -> None:
    f = Quadratic(seed=0)
    theirs = f.start.clone().requires_grad_()
    optimizer = torch.optim.SGD([theirs], lr=0.05, momentum=momentum, weight_decay=weight_decay)
    rule = SGD(lr=0.05, momentum=momentum, weight_decay=weight_decay)
    ours, state = f.start, rule.begin(f.start, {}, {})
    for _ in range(30):
        optimizer.zero_grad()
        f.value(theirs).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        ours, state = rule.step(ours, f.gradient(ours), f.start, rule.lr, state)
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-12, atol=1e-12)


def test_momentum_starts_at_zero_with_every_job() -> None:
    """By hand, lr 0.5 and momentum 0.5 along g = 1: m = 1, 1.5 and y = −0.5, −1.25; then again from −1.25."""
    rule, g = SGD(lr=0.5, momentum=0.5), torch.ones(1)
    first = walk(rule, torch.zeros(1), [g, g])
    assert first.item() == -1.25
    assert walk(rule, first, [g]).item() == -1.75


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_prox_without_mu_is_sgd(weight_decay: float) -> None:
    f = Quadratic(seed=1)
    gradients = [f.gradient(f.start + n) for n in range(5)]
    ours = walk(Prox(lr=0.1, mu=0, weight_decay=weight_decay), f.start, gradients)
    assert torch.equal(ours, walk(SGD(lr=0.1, weight_decay=weight_decay), f.start, gradients))


def test_prox_by_hand() -> None:
    y, g, x = torch.tensor([3.0]), torch.tensor([2.0]), torch.tensor([1.0])
    assert Prox(lr=0.5, mu=0.25).step(y, g, x, 0.5, {})[0].item() == 3 - 0.5 * (2 + 0.25 * 2)
    assert Prox(lr=0.5, mu=0.25, weight_decay=0.5).step(y, g, x, 0.5, {})[0].item() == 3 - 0.5 * (2 + 1.5 + 0.25 * 2)


def test_prox_descends_the_penalized_objective() -> None:
    f, mu = Quadratic(seed=2), 0.7
    y = (f.start + 1).requires_grad_()
    (f.value(y) + mu / 2 * (y - f.start).square().sum()).backward()  # type: ignore[no-untyped-call]
    assert y.grad is not None
    ours, _ = Prox(mu=mu).step(y.detach(), f.gradient(y.detach()), f.start, 0.1, {})
    torch.testing.assert_close(ours, y.detach() - 0.1 * y.grad, rtol=1e-12, atol=1e-12)


def test_prox_converges_to_the_proximal_point() -> None:
    """(A + mu·I) y = b + mu·x."""
    f, mu = Quadratic(seed=3), 0.7
    rule, y = Prox(mu=mu), f.start
    for _ in range(500):
        y, _ = rule.step(y, f.gradient(y), f.start, 0.2, {})
    expected = torch.linalg.solve(f.a + mu * torch.eye(D, dtype=torch.float64), f.b + mu * f.start)
    torch.testing.assert_close(y, expected, rtol=1e-9, atol=1e-9)


@EVERY
def test_a_stack_is_its_rows(rule: ClientRule) -> None:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn((5, D), generator=rng)
    gradients = [torch.randn((5, D), generator=rng) for _ in range(4)]
    stacked = walk(rule, x, gradients)
    assert stacked.shape == (5, D)
    for row in range(5):
        alone = walk(rule, x[row], [g[row] for g in gradients])
        torch.testing.assert_close(stacked[row], alone, rtol=1e-6, atol=1e-6)


@EVERY
def test_every_row_of_a_stack_has_its_own_rate_and_number_of_steps(rule: ClientRule) -> None:
    """As in the vectorized executor, the first rows continue when the others have finished."""
    rng = torch.Generator().manual_seed(0)
    x, steps = torch.randn((4, D), generator=rng, dtype=torch.float64), [5, 3, 3, 1]
    gradients = [torch.randn((4, D), generator=rng, dtype=torch.float64) for _ in range(5)]
    rates = torch.tensor([[0.05], [0.1], [0.02], [0.7]], dtype=torch.float64)
    y, state = x.clone(), {name: value.clone() for name, value in begin(rule, x).items()}
    for t, g in enumerate(gradients):
        n = sum(k > t for k in steps)
        before = {name: value[:n] for name, value in state.items()}
        y[:n], after = rule.step(y[:n], g[:n].clone(), x[:n], rates[:n], before)
        for name, value in after.items():
            state[name][:n] = value
    sent, kept = rule.finish(y, x, rates, torch.tensor(steps, dtype=torch.float64)[:, None], state)
    for row, k in enumerate(steps):
        z, own, lr = x[row], begin(rule, x[row]), float(rates[row])
        for g in gradients[:k]:
            z, own = rule.step(z, g[row].clone(), x[row], lr, own)
        torch.testing.assert_close(y[row], z, rtol=1e-12, atol=1e-12)
        for stacked, alone in zip((sent, kept), rule.finish(z, x[row], lr, float(k), own), strict=True):
            assert stacked.keys() == alone.keys()
            for name, value in alone.items():
                torch.testing.assert_close(stacked[name][row], value, rtol=1e-12, atol=1e-12)


@EVERY
def test_a_rule_sends_and_keeps_what_it_declares(rule: ClientRule) -> None:
    x = torch.ones((3, D))
    sent, kept = rule.finish(x + 1, x, 0.1, 2.0, begin(rule, x))
    assert tuple(sent) == rule.sends
    assert tuple(kept) == rule.client_state
    assert all(value.shape == x.shape for value in (*sent.values(), *kept.values()))
    assert (rule.server() is not None) == isinstance(rule, Scaffold)


@pytest.mark.parametrize("kind", CLIENT_RULES.values(), ids=CLIENT_RULES)
def test_weight_decay_is_added_to_the_gradient(kind: type[ClientRule]) -> None:
    f = Quadratic(seed=5)
    y, g = f.start + 1, f.gradient(f.start)
    decayed, _ = kind(weight_decay=0.25).step(y, g, f.start, 0.1, begin(kind(), f.start))
    plain, _ = kind().step(y, g + 0.25 * y, f.start, 0.1, begin(kind(), f.start))
    torch.testing.assert_close(decayed, plain, rtol=1e-12, atol=1e-12)
    with pytest.raises(ConfigError, match="weight_decay: -1"):
        kind(weight_decay=-1)


@EVERY
def test_the_rate_comes_with_the_step(rule: ClientRule) -> None:
    """One step is −rate times a direction that does not depend on the rate."""
    x = torch.randn(D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    small, large = (walk(rule, x, [x + 1], lr) - x for lr in (0.25, 0.5))
    torch.testing.assert_close(2 * small, large, rtol=1e-12, atol=1e-12)


@EVERY
def test_a_client_that_diverges_does_not_harm_the_others(rule: ClientRule) -> None:
    x = torch.randn((3, D), generator=torch.Generator().manual_seed(0))
    gradients = [x.clone().index_fill(0, torch.tensor([1]), torch.nan)] * 3
    finite = walk(rule, x, gradients).isfinite()
    assert finite[[0, 2]].all()
    assert not finite[1].any()


@EVERY
def test_a_step_changes_none_of_its_inputs_but_the_gradient(rule: ClientRule) -> None:
    f = Quadratic(seed=4)
    y, g, x = f.start + 1, f.start + 2, f.start.clone()
    state = begin(rule, x)
    kept = {name: value.clone() for name, value in state.items()}
    rule.step(y, g, x, rule.lr, state)
    rule.finish(y, x, rule.lr, 3.0, state)
    for now, before in ((y, f.start + 1), (x, f.start)):
        assert torch.equal(now, before)
    assert all(torch.equal(state[name], value) for name, value in kept.items())


@EVERY
def test_dtype_is_kept(rule: ClientRule) -> None:
    for dtype in (torch.float32, torch.float64):
        x = torch.ones(D, dtype=dtype)
        assert walk(rule, x, [x, x]).dtype == dtype


def test_state_only_where_there_is_momentum() -> None:
    x = torch.ones((2, D))
    assert SGD().begin(x, {}, {}) == {}
    assert Prox().begin(x, {}, {}) == {}
    assert torch.equal(SGD(momentum=0.5).begin(x, {}, {})["m"], torch.zeros((2, D)))


@pytest.mark.parametrize(
    ("values", "examples", "expected"),
    [
        ({}, 32, 1),
        ({}, 33, 2),
        ({}, 1, 1),
        ({"epochs": 3}, 100, 12),  # ⌈100/32⌉ = 4 a pass, the short batch included
        ({"epochs": 2, "batch_size": 50}, 100, 4),
        ({"epochs": 2, "batch_size": 500}, 100, 2),
        ({"steps": 7}, 1, 7),
        ({"steps": 7}, 10**6, 7),
    ],
)
def test_local_steps(values: dict[str, Any], examples: int, expected: int) -> None:
    for kind in CLIENT_RULES.values():
        assert kind(**values).local_steps(examples) == expected


def test_epochs_and_steps_exclude_each_other() -> None:
    for kind in CLIENT_RULES.values():
        with pytest.raises(ConfigError) as caught:
            kind(epochs=2, steps=5)
        assert caught.value.key == "steps"
        assert str(caught.value) == "steps: 5 given with epochs = 2; set only one of the two"


def test_names_and_bounds() -> None:
    assert {"sgd": SGD, "prox": Prox, "scaffold": Scaffold, "dyn": Dyn} == CLIENT_RULES
    for kind in CLIENT_RULES.values():
        for field in ("lr", "batch_size", "epochs", "steps"):
            with pytest.raises(ConfigError, match=f"{field}: 0 is not "):
                kind(**{field: 0})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="mu: -1"):
        Prox(mu=-1)
    with pytest.raises(ConfigError, match="alpha: 0"):
        Dyn(alpha=0)
    with pytest.raises(ConfigError, match="momentum: -1"):
        SGD(momentum=-1)
