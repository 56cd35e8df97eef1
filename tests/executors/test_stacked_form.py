"""Stacks of transformers, of models with frozen parts, and of models with parameters of their own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.support.executors import built
from tests.support.executors import work as plain_work
from tests.support.programs import run
from tests.support.transformers import MODULES, VMAPPED, jobs, module, work
from torch import Tensor, nn

from offbeat.client.evaluation import Evaluator
from offbeat.client.rules import SGD, AdamW, ClientRule
from offbeat.client.runtime import ClientRuntime
from offbeat.data import PartitionedDataset, from_arrays
from offbeat.executors import EXECUTORS, probe
from offbeat.executors.stacked import Stack
from offbeat.executors.stacked_form import LARGEST_LOOSE, per_example
from offbeat.messages import Job
from offbeat.models import MLP
from offbeat.random import key
from offbeat.tasks.base import scores
from offbeat.trees import call
from offbeat.vectors import copied

RULES = [SGD(lr=0.1, epochs=2, batch_size=4), AdamW(lr=0.01, epochs=2, batch_size=4)]


def deltas(executor: str, w: ClientRuntime) -> Tensor:
    with_executor = EXECUTORS[executor](w)
    try:
        return torch.stack([u.delta for u in with_executor.train(jobs(w))])
    finally:
        with_executor.close()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@pytest.mark.parametrize("name", MODULES)
def test_a_stack_trains_each_model_as_alone(name: str, rule: ClientRule) -> None:
    """In double precision, where a wrong mask or parameter could not hide behind rounding."""
    w = work(name, rule)
    assert probe.why_not_stackable(w.context) is None
    assert (Stack(w.context).form is None) == (name in VMAPPED)
    plain, stacked = deltas("sequential", w), deltas("vectorized", w)
    assert (plain.norm(dim=1) > 1e-4).all(), "every client has moved"
    # Adam turns the rounding of zeros into steps.
    torch.testing.assert_close(stacked, plain, rtol=1e-7, atol=1e-10 if isinstance(rule, SGD) else 1e-6)


@pytest.mark.parametrize("name", ["gpt, tied", "bert", "gpt, lora"])
def test_a_program_trains_them_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dicts of inputs, integers, and labels per position, on memory that does not move."""
    monkeypatch.setattr("tests.support.programs.jobs", jobs)
    w = work(name, RULES[0])
    _, moved = run(None, w)
    torch.testing.assert_close(moved, deltas("sequential", w), rtol=1e-7, atol=1e-10)


def test_tied_weights_are_one_parameter() -> None:
    w = work("gpt, tied", RULES[0])
    assert "0.weight" in w.context.layout.names
    assert not any(name.startswith("5.") for name in w.context.layout.names), "the output layer's weight"


def test_frozen_layers_are_neither_copied_nor_stacked() -> None:
    w = work("vit, lora and head", RULES[0])
    own, form = w.context.module, Stack(w.context).form
    assert form is not None
    frozen = {name: p for name, p in own.named_parameters() if not p.requires_grad}
    assert len(frozen) > 20
    for other in (form.module, Evaluator(w.context, 8).module, copied(own)):
        theirs = dict(other.named_parameters())
        assert all(theirs[name] is p for name, p in frozen.items())
        assert all(theirs[name] is not p for name, p in own.named_parameters() if p.requires_grad)
    kinds = {name: type(layer) for name, layer in form.module.named_modules()}
    assert kinds["2.qkv.base"] is kinds["2.hidden"] is nn.Linear
    assert kinds["2.qkv.down"] is not nn.Linear


def test_frozen_layers_see_one_batch() -> None:
    """The merged batch of all clients passes through a frozen layer at once, by its own weight."""
    shapes: list[tuple[torch.Size, torch.Size]] = []
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 4))
    net[1].requires_grad_(False)
    w = plain_work(net, SGD(lr=0.1, epochs=1, batch_size=8))
    stack = Stack(w.context)
    assert stack.form is not None
    layer = stack.form.module.get_submodule("1")
    layer.register_forward_hook(lambda layer, _, out: shapes.append((layer.weight.shape, out.shape)))
    x = w.context.layout.read(w.context.module)
    stack.gradient(x.repeat(3, 1), torch.arange(12).view(3, 4), torch.full((3, 4), 0.25))
    assert shapes == [((8, 64), (12, 8))]


class Shift(nn.Module):
    """A parameter whose first dimension is not that of the examples, although it would do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.shift = nn.Linear(6, 6), nn.Parameter(torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * (1 + self.shift[0])  # type: ignore[no-any-return]


def small(module: nn.Module, features: int = 6) -> ClientRuntime:
    rng = np.random.default_rng(0)
    data = from_arrays(rng.standard_normal((20, features), dtype=np.float32), rng.integers(6, size=20), classes=6)
    return plain_work(module, RULES[0], PartitionedDataset.of(data, [range(9), range(9, 20)]))


def test_a_parameter_that_is_zero_does_not_hide_a_wrong_form() -> None:
    """As long as it is zero, that of the first example is as good as any other."""
    w = small(Shift())
    assert Stack(w.context).form is None
    torch.testing.assert_close(deltas_of(w, "vectorized"), deltas_of(w, "sequential"), rtol=1e-4, atol=1e-6)


def deltas_of(w: ClientRuntime, executor: str) -> Tensor:
    from tests.support.executors import jobs as others

    return torch.stack([u.delta for u in EXECUTORS[executor](w).train(others(w))])


def test_a_large_matrix_is_not_presented_per_example() -> None:
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.matrix = nn.Parameter(torch.randn(6, LARGEST_LOOSE // 6 + 1) / 3)

        def forward(self, x: Tensor) -> Tensor:
            return (x[:, None] @ self.matrix)[:, 0, :6]

    w = small(Product())
    assert Stack(w.context).form is None
    w.context.module.matrix = nn.Parameter(torch.randn(6, 8) / 3)
    assert Stack(small(w.context.module).context).form is not None, "a small one is"


@pytest.mark.parametrize(
    ("shape", "dimensions", "expected"),
    [((3, 1, 5, 2), 3, (12, 5, 2)), ((3, 2), 2, (12, 2)), ((3, 2), 4, (12, 1, 1, 2)), ((3,), 2, (12, 1))],
)
def test_parameters_per_example(shape: tuple[int, ...], dimensions: int, expected: tuple[int, ...]) -> None:
    value = torch.randn(shape)
    found = per_example(value, 4, dimensions)
    assert found.shape == expected
    assert all(torch.equal(found[4 * i + k].flatten(), value[i].flatten()) for i in range(3) for k in range(4))


def test_the_check_leaves_fused_attention_as_it_was() -> None:
    before = torch.backends.mha.get_fastpath_enabled()
    assert before
    Stack(work("encoder", RULES[0]).context)
    assert torch.backends.mha.get_fastpath_enabled() == before


def test_dropout_differs_by_example_and_is_repeatable() -> None:
    """Two clients with the same data and model differ by their dropout only."""
    rng = np.random.default_rng(0)
    x = np.tile(rng.standard_normal((4, 1, 8, 8), dtype=np.float32), (2, 1, 1, 1))
    data = PartitionedDataset.of(from_arrays(x, np.tile(np.arange(4), 2), classes=4), [range(4), range(4, 8)])
    dropout = nn.Dropout(0.5)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), dropout, nn.Linear(16, 4))
    w = plain_work(net, SGD(lr=0.1, steps=1, batch_size=4), data)
    same = [Job(i, i, 0, w.context.layout.read(net), 1, key(i)) for i in range(2)]
    (first, other), (again, _) = ([u.delta for u in EXECUTORS["vectorized"](w).train(same)] for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other, rtol=1e-2)
    dropout.p = 0.0
    first, other = (u.delta for u in EXECUTORS["vectorized"](w).train(same))
    torch.testing.assert_close(first, other, rtol=1e-4, atol=1e-6)


def test_dropout_inside_of_attention_is_repeatable() -> None:
    w = work("attention", RULES[0])
    w.context.module.own.dropout = 0.5  # type: ignore[union-attr]
    assert Stack(w.context).form is not None, "the check turns it off"
    first, again = (deltas("vectorized", w) for _ in range(2))
    assert torch.equal(first, again)
    w.context.module.own.dropout = 0.0  # type: ignore[union-attr]
    assert not torch.allclose(first, deltas("vectorized", w), rtol=1e-2)


def test_a_mixed_layer_trains_its_bias_only() -> None:
    net = built(MLP(hidden=(6,)))
    weight = net.get_parameter("1.weight").requires_grad_(False)
    w, before = plain_work(net, RULES[0]), weight.clone()
    assert w.context.layout.names == ("1.bias", "3.weight", "3.bias")
    torch.testing.assert_close(deltas_of(w, "vectorized"), deltas_of(w, "sequential"), rtol=1e-4, atol=1e-6)
    assert torch.equal(weight, before)


def test_modules_are_the_same_each_time() -> None:
    first, again = (torch.cat([p.flatten() for p in module("gpt, lora").parameters()]) for _ in range(2))
    assert torch.equal(first, again)


@pytest.mark.parametrize("name", ["gpt, lora", "attention", "gpt2"])
def test_autocast_computes_layers_in_low_precision(name: str) -> None:
    """As torch's own layers do: a bias in full precision must not raise the precision of what follows."""
    w = work(name, RULES[0])
    w.context.module.float()
    stack = Stack(w.context)
    assert stack.form is not None
    found: dict[str, list[torch.dtype]] = {}
    for own, root in (("alone", w.context.module), ("stacked", stack.form.module)):
        for kind, layer in root.named_modules():
            if kind.endswith(("down", "qkv.base", "hidden_out", "across", "own", "c_attn", "c_proj")):
                layer.register_forward_hook(
                    lambda _, given, out, own=own: found.setdefault(own, []).append(
                        (out[0] if isinstance(out, tuple) else out).dtype
                    )
                )
    x, inputs = w.context.layout.read(w.context.module), w.context.first_inputs(4)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        alone = call(w.context.module, inputs)
        stack.valid.set(torch.ones(2, 2))
        stacked = stack.form(w.context.layout.unflatten(x.repeat(2, 1)), inputs)
    assert found["stacked"] == found["alone"]
    assert set(found["alone"]) == {torch.bfloat16}
    torch.testing.assert_close(scores(stacked).float(), scores(alone).float(), rtol=0.05, atol=0.02)  # 8 bits
