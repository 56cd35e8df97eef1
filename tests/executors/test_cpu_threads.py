"""Stacks in parallel threads, against one stack."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from tests.support.executors import RULES, built, deltas, federated, jobs, work
from torch import Tensor, nn

from offbeat.client.rules import ClientRule
from offbeat.executors import Vectorized, cpu_threads, vectorized
from offbeat.models import MLP


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use two threads, however small the model is and however many cores there are."""
    monkeypatch.setattr(cpu_threads, "cores", lambda: 2)
    monkeypatch.setattr(vectorized, "cores", lambda: 2)
    monkeypatch.setattr(cpu_threads, "LONG_STEP", 1)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("rule", RULES, ids=lambda r: type(r).__name__)
def test_stacks_in_parallel(rule: ClientRule) -> None:
    """With more stacks than threads and clients of unequal size, results and client state equal those of one stack."""
    data = federated()
    exact = replace(data, dataset=replace(data.dataset, x=data.dataset.x.double()))
    works = [work(built(MLP(hidden=(12, 7))).double(), rule, exact) for _ in range(3)]
    plain, *spread = (Vectorized(w) for w in works)
    for executor in spread:
        executor.rows = 2
    for _ in range(2):
        alone, *found = ([u.delta for u in executor.train(jobs(works[0]))] for executor in (plain, *spread))
        torch.testing.assert_close(found[0], alone, rtol=1e-9, atol=1e-11)
        assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    assert [executor.cpu_threads([(w, j) for j in jobs(w)]) for executor, w in zip(spread, works, strict=False)] == [
        2,
        2,
    ]
    for name in rule.client_state:
        torch.testing.assert_close(works[1].state.rows[name], works[0].state.rows[name], rtol=1e-9, atol=1e-11)
    for executor in (plain, *spread):
        executor.close()


@pytest.mark.usefixtures("two_threads")
def test_a_random_model_uses_one_thread() -> None:
    """All threads would draw from one generator, in an unknown order."""
    dropping = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.5), nn.Linear(8, 4))
    found = []
    for _ in range(2):
        w = work(copy.deepcopy(dropping), RULES[0])
        executor = Vectorized(w)
        assert executor.cpu_threads([(w, j) for j in jobs(w)]) == 1
        found.append(deltas("vectorized", w, jobs(w)))
    assert torch.equal(*found)


class Touchy(nn.Module):
    """Fails in the backward pass on demand."""

    fails = False

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            x.register_hook(self.slope)  # type: ignore[no-untyped-call]
        return x

    def slope(self, g: Tensor) -> None:
        if Touchy.fails:
            raise ArithmeticError("on demand")


@pytest.mark.usefixtures("two_threads")
def test_an_error_in_a_thread_is_raised_and_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of the failed step must not be added to those of the next one."""
    torch.manual_seed(0)
    w = work(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), Touchy(), nn.Linear(8, 4)), RULES[0])
    executor = Vectorized(w)
    before = executor.train(jobs(w))
    monkeypatch.setattr(Touchy, "fails", True)
    with pytest.raises(ArithmeticError, match="on demand"):
        executor.train(jobs(w))
    monkeypatch.setattr(Touchy, "fails", False)
    assert all(torch.equal(u.delta, v.delta) for u, v in zip(executor.train(jobs(w)), before, strict=True))
