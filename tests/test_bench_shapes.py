"""The benchmark of models by shape, with tiny models."""

from __future__ import annotations

import re
import sys

import pytest

from offbeat_bench import shapes


def test_each_case_prints_a_line_per_executor() -> None:
    found = list(shapes.lines(["lora", "convmixer"], ["sequential", "vectorized"], "cpu", "tf32", 0.0, 1, small=True))
    assert len(found) == 6
    assert found[0] == (
        "lora: 5,360 parameters, 512 trained, 16 clients × batch 8, cpu, tf32; "
        "0 MiB frozen, 0.0 MiB trained by all clients"
    )
    for line in (found[1], found[2], found[4], found[5]):
        assert re.match(r"  (sequential|vectorized) +[\d,.]+ client-steps/s \([\d,.]+ – [\d,.]+\), [\d.]+ × the", line)


def test_the_sizes_are_those_that_the_cases_stand_for() -> None:
    sizes = {}
    for name, case in shapes.CASES.items():
        if name.startswith(("vit", "gpt", "lora")):
            shape = (3, 32, 32) if case.length is None else (case.length,)
            words = None if case.length is None else case.vocabulary
            module = case.model.build(shape, words or 10, words)
            sizes[name] = sum(p.numel() for p in module.parameters()) / 1e6
            trained = sum(p.numel() for p in module.parameters() if p.requires_grad) / 1e6
            assert (trained < 0.02 * sizes[name]) == name.startswith("lora")
    assert sizes == pytest.approx({"vit": 5, "gpt": 10, "lora": 100, "lora-all": 100}, rel=0.06)


def test_an_unknown_case(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["shapes", "bert"])
    with pytest.raises(SystemExit):
        shapes.main()
    assert "unknown case 'bert'; valid: vit, gpt" in capsys.readouterr().err
