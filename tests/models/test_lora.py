"""Low-rank adapters: the mathematics, what is trained and transmitted, and runs."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.support import interrupt_after
from tests.support.transformers import hugging_face
from torch import Tensor, nn

import offbeat as ob
from offbeat.models import GPT, MLP, LoRA
from offbeat.models.lora import LowRankLinear
from offbeat.runs import api
from offbeat.runs.config import dump, parse
from offbeat.runs.experiment import Experiment
from offbeat.vectors import Layout, fixed_fingerprint


def net() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


def trained(module: nn.Module) -> set[str]:
    return {name for name, p in module.named_parameters() if p.requires_grad}


def test_the_equation() -> None:
    base = nn.Linear(6, 5)
    layer = LowRankLinear(base, rank=2, alpha=6.0, dropout=0.0)
    x = torch.randn(4, 6)
    torch.testing.assert_close(layer(x), base(x))
    assert not layer.up.weight.any()
    assert layer.down.weight.all()
    nn.init.normal_(layer.up.weight)
    delta = 6.0 / 2 * layer.up.weight @ layer.down.weight
    torch.testing.assert_close(layer(x), x @ (base.weight + delta).T + base.bias, rtol=1e-5, atol=1e-5)


def test_the_given_module_stays_as_it_is_and_shares_its_frozen_weights() -> None:
    given = net()
    before = {name: value.clone() for name, value in given.state_dict().items()}
    adapted = ob.lora(given, rank=2, targets=["0"], train=["2"])
    assert trained(given) == set(before)
    assert trained(adapted) == {"0.down.weight", "0.up.weight", "2.weight", "2.bias"}
    assert adapted.get_parameter("0.base.weight").data_ptr() == given.get_parameter("0.weight").data_ptr()
    with torch.no_grad():
        adapted.get_parameter("2.weight").zero_()
    assert all(torch.equal(value, before[name]) for name, value in given.state_dict().items())
    x = torch.randn(4, 6)
    torch.testing.assert_close(ob.lora(given)(x), given(x))
    first, again = (ob.lora(given).get_parameter("0.down.weight") for _ in range(2))
    assert torch.equal(first, again)


def test_names_select_layers() -> None:
    gpt = GPT(width=8, depth=2, heads=2).build((6,), 5, 5)
    assert trained(ob.lora(gpt, targets=["qkv"])) == {
        f"{i}.qkv.{part}.weight" for i in (2, 3) for part in ("down", "up")
    }
    assert trained(ob.lora(gpt, targets=["2.qkv"])) == {"2.qkv.down.weight", "2.qkv.up.weight"}
    every = ob.lora(gpt)
    assert sum(isinstance(layer, LowRankLinear) for layer in every.modules()) == 2 * 4 + 1
    assert every[0].weight is every[5].base.weight, "still tied"
    with pytest.raises(ob.ConfigError, match=r"targets: no layer is called 'qvk'.* Did you mean 'qkv'"):
        ob.lora(gpt, targets=["qvk"])
    with pytest.raises(ob.ConfigError, match="train: no layer is called 'head'"):
        ob.lora(gpt, train=["head"])
    with pytest.raises(ob.ConfigError, match="the model has no linear layer to adapt"):
        ob.lora(nn.Conv2d(1, 1, 1))
    with pytest.raises(ob.ConfigError, match="rank: 0"):
        ob.lora(gpt, rank=0)


def test_a_single_layer_a_shared_one_and_one_of_transformers() -> None:
    assert isinstance(ob.lora(nn.Linear(3, 4), rank=2), LowRankLinear)
    layer = nn.Linear(3, 3)
    shared = ob.lora(nn.ModuleList([layer, nn.Sequential(layer)]), rank=2)
    assert shared[0] is shared[1][0]
    gpt2 = ob.lora(hugging_face("GPT2LMHeadModel"), rank=2, targets=["c_attn"])
    adapter = gpt2.get_submodule("transformer.h.0.attn.c_attn")
    assert (adapter.down.weight.shape, adapter.up.weight.shape) == ((2, 8), (24, 2))


def test_adapters_in_encoder_layers_count_in_evaluation() -> None:
    """PyTorch's fused layers would read the weights past the adapters."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    adapted = ob.lora(nn.TransformerEncoder(layer, 2), rank=2)
    for p in adapted.parameters():
        if p.requires_grad:
            nn.init.normal_(p)
    x, padding = torch.randn(2, 3, 8), torch.tensor([[False] * 3, [False, False, True]])
    expected = adapted.train()(x, src_key_padding_mask=padding)
    with torch.no_grad():
        found = adapted.eval()(x, src_key_padding_mask=padding)
    torch.testing.assert_close(found, expected.detach())


def settings(**more: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=120)
    x = rng.standard_normal((120, 6), dtype=np.float32) + 2 * np.eye(6, dtype=np.float32)[y]
    return {
        "data": ob.from_arrays(x[:100], y[:100], x[100:], y[100:]),
        "partition": np.array_split(np.arange(100), 5),
        "algorithm": ob.CA2FL(),
        "client": ob.SGD(lr=0.05, epochs=2, batch_size=8),
        "scheduler": ob.Buffered(concurrency=4, buffer=2),
        "rounds": 20,
        "evaluation": 2,
        "executor": "vectorized",
        **more,
    }


def test_only_adapters_travel(tmp_path: pathlib.Path) -> None:
    base = net()
    result = ob.run(model=ob.lora(base, rank=2, alpha=4.0), out=tmp_path / "run", **settings())
    size = 2 * (6 + 5) + 2 * (5 + 3)
    assert result.summary["parameters"] == len(result.x) == size
    log = np.load(tmp_path / "run/updates.npy")
    assert (log["bytes"] == 4 * size).all()
    assert result.evaluations[-1]["loss"] < 0.9 * result.evaluations[0]["loss"]
    final = load_file(tmp_path / "run/model.safetensors")
    assert torch.equal(final["0.base.weight"], base.get_parameter("0.weight"))
    assert final["2.up.weight"].any()


def test_executors_agree_in_a_run() -> None:
    one, stacked = (
        ob.run(model=ob.lora(net, rank=2), **settings(executor=name)) for name in ("sequential", "vectorized")
    )
    torch.testing.assert_close(stacked.x, one.x, rtol=1e-4, atol=1e-5)


def test_a_run_is_resumed_exactly(tmp_path: pathlib.Path) -> None:
    given = settings(model=ob.lora(net, rank=2, dropout=0.2), client=ob.AdamW(lr=0.01, steps=3, batch_size=8))
    whole = ob.run(**given, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        ob.run(**given, out=tmp_path / "cut", watch=interrupt_after(6))
    again = ob.run(**given, out=tmp_path / "cut", resume=True)
    assert torch.equal(again.x, whole.x)


def test_a_run_with_another_frozen_base_is_not_resumed(tmp_path: pathlib.Path) -> None:
    base = net()
    with pytest.raises(KeyboardInterrupt):
        ob.run(**settings(model=ob.lora(base, rank=2)), out=tmp_path / "cut", watch=interrupt_after(6))
    with torch.no_grad():
        base.get_parameter("0.weight")[0, 0] += 1e-3
    with pytest.raises(ob.RunFolderError, match="the output of the model is not the same"):
        ob.run(**settings(model=ob.lora(base, rank=2)), out=tmp_path / "cut", resume=True)


def test_tied_weights_and_any_dtype_have_a_fingerprint() -> None:
    """Tied weights are part of x under both names."""
    first, other = (GPT(width=8, depth=1, heads=2).build((6,), 5, 5) for _ in range(2))
    names = Layout.of(first).names
    assert fixed_fingerprint(first, names) == fixed_fingerprint(other, names)
    halves = [ob.lora(net().to(torch.bfloat16), rank=2) for _ in range(2)]
    names = Layout.of(halves[0]).names
    assert fixed_fingerprint(halves[0], names) == fixed_fingerprint(halves[1], names)
    with torch.no_grad():
        halves[1].get_parameter("2.base.bias")[0] += 1
    assert fixed_fingerprint(halves[0], names) != fixed_fingerprint(halves[1], names)


def test_toml(tmp_path: pathlib.Path) -> None:
    table: dict[str, Any] = {
        "scheduler": {"concurrency": 4, "buffer": 2},
        "data": {"name": "synthetic", "examples": 200, "features": 12, "clients": 5},
        "model": {"name": "lora", "rank": 2, "train": ["3"], "model": {"name": "mlp", "hidden": [7]}},
        "rounds": 3,
    }
    experiment = parse(table)
    assert experiment.model == LoRA(model=MLP(hidden=(7,)), rank=2, train=("3",))
    assert isinstance(experiment, Experiment)
    result = api.execute(experiment, out=tmp_path / "run")
    classes = 10
    assert result.summary["parameters"] == 2 * (12 + 7) + 8 * classes
    assert 'name = "mlp"' in dump(experiment)
    with pytest.raises(ob.ConfigError, match=r"model\.model\.name: missing"):
        parse(table | {"model": {"name": "lora", "model": {}}})


def test_a_gpt_with_tied_weights_is_saved_under_both_names(tmp_path: pathlib.Path) -> None:
    x: Any = np.random.default_rng(0).integers(5, size=(40, 6))
    data = ob.from_arrays(x[:30], x[:30], x[30:], x[30:], vocabulary=5)
    model, parts = GPT(width=8, depth=1, heads=2), np.array_split(np.arange(30), 5)
    result = ob.run(**settings(data=data, partition=parts, model=model, task="language-modeling"), out=tmp_path / "run")
    final = load_file(tmp_path / "run/model.safetensors")
    assert torch.equal(final["0.weight"], final["4.weight"])
    module = GPT(width=8, depth=1, heads=2).build((6,), 5, 5)
    module.load_state_dict(final)
    flat: Tensor = torch.cat([p.detach().flatten() for p in module.parameters()])
    assert torch.equal(flat, result.x)
    assert result.evaluations[-1]["perplexity"] < 5
