"""The program that a GPU replays, run step by step on a CPU: padding, masks and memory at fixed addresses."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.support.executors import RULES, built, jobs, work
from tests.support.programs import run
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from offbeat.client.rules import SGD, ClientRule
from offbeat.executors import Sequential, probe
from offbeat.executors.flops import forward_flops
from offbeat.executors.gpu.program import SIZES, Compiled, Program, Programs, _advance, padded
from offbeat.executors.stacked import Stack
from offbeat.messages import Update
from offbeat.models import MLP


@pytest.mark.parametrize("rule", RULES, ids=lambda r: type(r).__name__)
def test_a_program_does_what_the_plain_executor_does(rule: ClientRule) -> None:
    """Twice on the same memory, which still holds the first run."""
    w = work(built(MLP(hidden=(9,))).double(), rule)
    w.context.x = w.context.x.double()
    program = None
    x = w.context.layout.read(w.context.module)
    for _ in range(2):
        program, moved = run(program, w)
    plain = [u.delta for u in Sequential(w).train_all([(w, j) for j in jobs(w)]) if isinstance(u, Update)]
    torch.testing.assert_close(moved, torch.stack(plain), rtol=1e-9, atol=1e-11)
    assert torch.equal(w.context.layout.read(w.context.module), x), "the module itself stays as it is"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_a_step_is_compiled_as_a_whole(rule: ClientRule) -> None:
    """In parts, the sizes of what the first part computes would be constants for the second."""
    w = work(built(MLP(hidden=(5,))), rule)
    x = torch.randn(6, w.context.layout.dim)
    own = {name: torch.zeros_like(x) for name in ("c", "c_i", "g_i")}
    state = {name: value.clone() for name, value in rule.begin(x, own, own).items()}
    given = (x.clone(), torch.randn_like(x), x, x.new_full((6, 1), 0.1), torch.ones(6, 1, dtype=torch.bool))
    found = torch._dynamo.explain(_advance(rule.without_rate(), tuple(state)))(*given, list(state.values()))
    assert (found.graph_count, found.graph_break_count) == (1, 0)


def test_padded_sizes() -> None:
    assert [padded(n) for n in (1, 2, 3, 9, 10, 11, 98, 256, 257)] == [1, 2, 3, 10, 10, 12, 100, 256, 257]
    assert all(b - a <= 1 + a / 4 for a, b in itertools.pairwise(SIZES)), "a fifth of the rows is wasted, or less"


def test_what_fits() -> None:
    w = work(built(MLP(hidden=(9,))), SGD(lr=0.1, epochs=1, batch_size=8))
    program, _ = run(None, w)
    x = torch.zeros((6, w.context.layout.dim))
    batches = np.zeros((3, 6, 8), dtype=np.int64)
    assert program.fits(SGD(lr=0.5, epochs=1, batch_size=8), x, batches, {}), "the rate is each row's own"
    assert not program.fits(SGD(lr=0.1, epochs=1, batch_size=8, weight_decay=0.1), x, batches, {})
    assert not program.fits(w.context.rule, torch.zeros((7, w.context.layout.dim)), batches, {})
    assert not program.fits(w.context.rule, x, np.zeros((9, 6, 8), dtype=np.int64), {})
    assert not program.fits(w.context.rule, x, batches, {"m": x})


def test_rules_by_turns_keep_their_programs() -> None:
    w = work(built(MLP(hidden=(9,))), SGD(lr=0.1, batch_size=8))
    programs, x, batches = Programs(), torch.zeros((6, w.context.layout.dim)), np.zeros((3, 6, 8), dtype=np.int64)

    def get(decay: float, lr: float = 0.1, n: int = 6) -> Program:
        rule = SGD(lr=lr, batch_size=8, weight_decay=decay)
        losses = Stack(w.context).losses
        return programs.get(losses, w.context.layout, rule, x[:n], batches[:, :n], {}, None, None, False)

    first, second = get(0.0), get(0.1)
    assert first is not second
    assert get(0.0, lr=0.7, n=4) is first
    assert get(0.1) is second
    for decay in (0.2, 0.3):
        get(decay)
    assert get(0.0) is first
    get(0.4)  # the fifth: the one that was not used for longest goes
    assert get(0.0) is first
    assert get(0.1) is not second


@pytest.mark.parametrize("when", ["forward", "backward"])
def test_steps_run_uncompiled_where_the_compiler_fails(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backward pass is compiled when it is first used, so its failure comes later."""
    tried = []

    def broken(function: Callable[..., Tensor], **options: object) -> Callable[..., Tensor]:
        def fail(*_: object) -> Tensor:
            tried.append(options)
            raise RuntimeError("no such kernel\nand a long trace")

        def call(*arguments: Tensor) -> Tensor:
            if when == "forward":
                return fail()
            loss = function(*arguments)
            loss.register_hook(fail)  # type: ignore[no-untyped-call]
            return loss

        return call

    monkeypatch.setattr(torch, "compile", broken)
    gradient = Compiled(
        lambda y, a: (a * y**2).sum(), lambda f: lambda *given: torch.autograd.grad(f(*given), given[0])
    )
    y, a = torch.arange(4.0, requires_grad=True), torch.full((4,), 0.5)
    with pytest.warns(RuntimeWarning, match="steps run uncompiled: no such kernel$"):
        (g,) = gradient(y, a)
    assert torch.equal(g, y.detach())
    assert tried == [{}]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(gradient(y, a)[0], g), "and says so once"


def test_only_much_work_is_worth_compiling() -> None:
    """A pass has 2·(12·7 + …) operations per example of a batch."""
    w = work(built(MLP(hidden=(12, 7))), SGD(lr=0.1, batch_size=8))
    products = [(p.shape[0], p.shape[1]) for p in w.context.module.parameters() if p.ndim == 2]
    batch = len(w.context.plans([jobs(w)[0]])[0][0, 0])
    each = 2 * batch * sum(a * b for a, b in products)
    enough = int(probe.WORTH_COMPILING / each) + 1
    assert probe.worth_compiling(w.context, enough)
    assert not probe.worth_compiling(w.context, enough - 2)


def test_flops_are_those_that_torch_counts() -> None:
    """However the functions are called."""
    a, b, weight, kernel = torch.randn(3, 4), torch.randn(4, 5), torch.randn(6, 4), torch.randn(2, 1, 3, 3)
    images = torch.randn(2, 1, 5, 5)

    class Products(nn.Module):
        def forward(self, a: Tensor) -> None:
            torch.matmul(input=a, other=b)
            _ = a @ b
            torch.addmm(torch.randn(5), a, b)
            torch.bmm(a[None], mat2=b[None])
            nn.functional.linear(a, weight=weight)
            nn.functional.conv2d(images, weight=kernel, padding=1)

    with FlopCounterMode(display=False) as counter:
        Products()(a)
    assert forward_flops(Products(), a) == counter.get_total_flops() > 0
