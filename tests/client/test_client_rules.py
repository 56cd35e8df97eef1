"""Local rules compared with torch.optim, with autograd, and between single rows and stacks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from offbeat.client.local_step import clipped
from offbeat.client.rules import (
    CLIENT_RULES,
    LOCAL_OPTIMIZERS,
    SGD,
    Adagrad,
    Adam,
    AdamW,
    ClientRule,
    Dyn,
    LocalOptimizer,
    Number,
    Prox,
    Scaffold,
    State,
)
from offbeat.errors import ConfigError
from offbeat.runs import config

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
    SGD(lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1),
    Adam(lr=0.05, weight_decay=0.1),
    AdamW(lr=0.05),
    Adagrad(lr=0.05, weight_decay=0.1),
    Prox(lr=0.05, mu=0.3, weight_decay=0.1, optimizer=SGD(momentum=0.9)),
    Scaffold(lr=0.05, weight_decay=0.1, optimizer=AdamW()),
    Dyn(lr=0.05, alpha=0.3, optimizer=Adagrad()),
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


THEIRS: list[tuple[LocalOptimizer, type[torch.optim.Optimizer], dict[str, Any]]] = [
    (SGD(lr=0.05), torch.optim.SGD, {}),
    (SGD(lr=0.05, momentum=0.9), torch.optim.SGD, {"momentum": 0.9}),
    (SGD(lr=0.05, weight_decay=0.1), torch.optim.SGD, {"weight_decay": 0.1}),
    (SGD(lr=0.05, momentum=0.9, weight_decay=0.1), torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}),
    (SGD(lr=0.05, momentum=0.9, nesterov=True), torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    (Adam(), torch.optim.Adam, {}),
    (Adam(beta1=0.8, beta2=0.95, epsilon=1e-3), torch.optim.Adam, {"betas": (0.8, 0.95), "eps": 1e-3}),
    (Adam(lr=0.05, weight_decay=0.1), torch.optim.Adam, {"weight_decay": 0.1}),
    (AdamW(), torch.optim.AdamW, {}),
    (AdamW(lr=0.05, weight_decay=0.2), torch.optim.AdamW, {"weight_decay": 0.2}),
    (Adagrad(), torch.optim.Adagrad, {}),
    (Adagrad(lr=0.05, weight_decay=0.1, epsilon=1e-3), torch.optim.Adagrad, {"weight_decay": 0.1, "eps": 1e-3}),
]


@pytest.mark.parametrize(("rule", "kind", "options"), THEIRS, ids=lambda value: str(value)[:60])
def test_an_optimizer_is_that_of_torch_step_by_step(
    rule: LocalOptimizer, kind: type[torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    """With the options that are left out, the defaults are the same as well."""
    f = Quadratic(seed=0)
    theirs = f.start.clone().requires_grad_()
    rate: dict[str, Any] = {} if rule.lr == type(rule)().lr and not isinstance(rule, SGD) else {"lr": rule.lr}
    optimizer: Any = kind([theirs], **rate, **options)
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


@pytest.mark.parametrize("kind", [kind for kind in CLIENT_RULES.values() if kind is not AdamW], ids=lambda k: k.name)
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
    assert list(CLIENT_RULES) == ["sgd", "adam", "adamw", "adagrad", "prox", "scaffold", "dyn"]
    assert all(kind.name == name for name, kind in CLIENT_RULES.items())
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


@pytest.mark.parametrize("optimizer", [SGD(momentum=0.9), Adam(), AdamW(), Adagrad()], ids=lambda rule: rule.name)
def test_a_correction_is_its_optimizer_on_another_gradient(optimizer: LocalOptimizer) -> None:
    """Prox equals the optimizer alone on the gradients g + μ(y − x), which are recorded on the way."""
    f, mu = Quadratic(seed=1), 0.3
    rule, alone = Prox(lr=0.05, mu=mu, optimizer=optimizer), replace(optimizer, lr=0.05, weight_decay=0.0)
    y, state = f.start, rule.begin(f.start, {}, {})
    z, own = f.start, alone.begin(f.start, {}, {})
    for _ in range(6):
        g = f.gradient(y)
        z, own = alone.step(z, g + mu * (y - f.start), f.start, 0.05, own)
        y, state = rule.step(y, g, f.start, 0.05, state)
        torch.testing.assert_close(y, z, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("optimizer", LOCAL_OPTIMIZERS.values(), ids=LOCAL_OPTIMIZERS)
def test_scaffolds_control_variate_is_the_mean_local_gradient(optimizer: type[LocalOptimizer]) -> None:
    f, rule = Quadratic(seed=2), Scaffold(lr=0.05, weight_decay=0.1, optimizer=optimizer())
    y, state, seen = f.start, begin(rule, f.start), []
    for _ in range(5):
        g = f.gradient(y)
        seen.append(g if rule.optimizer.decoupled else g + 0.1 * y)
        y, state = rule.step(y, g.clone(), f.start, 0.05, state)
    sent, kept = rule.finish(y, f.start, 0.05, 5.0, state)
    torch.testing.assert_close(kept["c_i"], torch.stack(seen).mean(dim=0), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(sent["change"], kept["c_i"] - state["c_i"], rtol=1e-10, atol=1e-10)


def test_scaffold_at_a_rate_of_zero_keeps_its_control_variate() -> None:
    """A schedule may end at zero; then y = x tells nothing about the gradient."""
    x = torch.ones((2, D))
    rule = Scaffold()
    state = begin(rule, x)
    for lr, rows in ((0.0, slice(None)), (torch.tensor([[0.0], [0.1]]), slice(0, 1))):
        sent, kept = rule.finish(x, x, lr, 3.0, state)
        assert torch.equal(sent["change"][rows], torch.zeros_like(x[rows]))
        assert torch.equal(kept["c_i"][rows], state["c_i"][rows])


def test_shared_options_belong_to_the_rule_not_to_its_optimizer() -> None:
    with pytest.raises(ConfigError, match=r"optimizer\.lr: it is an option of the rule.*set client\.lr"):
        Prox(optimizer=Adam(lr=0.5))
    with pytest.raises(ConfigError, match=r"optimizer\.batch_size"):
        Scaffold(optimizer=SGD(batch_size=8))
    with pytest.raises(ConfigError, match="nesterov: true, but there is no momentum"):
        SGD(nesterov=True)
    table = {"client": {"name": "prox", "mu": 0.2, "lr": 0.01, "optimizer": {"name": "adamw", "beta2": 0.9}}}
    rule = config.parse(table).client
    assert rule == Prox(mu=0.2, lr=0.01, optimizer=AdamW(beta2=0.9))
    described = config.describe(config.parse(table))["client"]
    assert described["optimizer"] == {"name": "adamw", "beta1": 0.9, "beta2": 0.9, "epsilon": 1e-08}
    assert config.parse({"client": described}).client == rule


def test_clipping_scales_a_gradient_to_the_norm() -> None:
    rng = torch.Generator().manual_seed(0)
    parts = [torch.randn((3, 4, 2), generator=rng), None, torch.randn((3, 5), generator=rng)]
    parts[0][2] *= 1e-3  # type: ignore[index]
    parts[2][2] *= 1e-3  # type: ignore[index]
    scaled = clipped(parts, 0.5)
    assert scaled[1] is None
    for row in range(3):
        own = [p[row].clone().requires_grad_() for p in parts if p is not None]
        for leaf, p in zip(own, [p for p in parts if p is not None], strict=True):
            leaf.grad = p[row].clone()
        torch.nn.utils.clip_grad_norm_(own, 0.5)
        for leaf, found in zip(own, [p for p in scaled if p is not None], strict=True):
            torch.testing.assert_close(found[row], leaf.grad)
    assert torch.equal(scaled[2][2], parts[2][2]), "shorter gradients stay as they are"  # type: ignore[index]


@pytest.mark.parametrize(
    ("values", "examples", "expected"),
    [
        ({"epochs": 2, "batch_size": 8, "drop_last": True}, 20, 4),
        ({"epochs": 2, "batch_size": 8, "drop_last": True}, 5, 2),  # its only batch
        ({"epochs": 1, "batch_size": 4, "accumulate": 2}, 20, 3),
        ({"epochs": 1, "batch_size": 4, "accumulate": 2, "drop_last": True}, 20, 2),
    ],
)
def test_steps_with_dropped_and_accumulated_batches(values: dict[str, Any], examples: int, expected: int) -> None:
    assert SGD(**values).local_steps(examples) == expected
