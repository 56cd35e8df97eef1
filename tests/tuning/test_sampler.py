"""Optuna as a sampler, with a stand-in for its library."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
from tests.tuning.test_search import TWO, Runs, tuning

import offbeat as ob


class StandInTrial:
    """Suggests the value that is as many steps from the lower end as trials have been asked for."""

    def __init__(self, number: int) -> None:
        self.number = number

    def suggest_float(self, name: str, low: float, high: float, log: bool = False) -> float:
        assert log == (name == "client.lr")
        return low + (high - low) * self.number / 10

    def suggest_int(self, name: str, low: int, high: int) -> int:
        return min(low + self.number, high)

    def suggest_categorical(self, name: str, choices: list[int]) -> int:
        return choices[self.number % len(choices)]


class StandInStudy:
    def __init__(self, seed: int) -> None:
        self.seed, self.asked, self.log = seed, 0, list[tuple[Any, ...]]()

    def ask(self) -> StandInTrial:
        self.asked += 1
        self.log.append(("ask", self.asked - 1))
        return StandInTrial(self.asked - 1)

    def tell(self, trial: StandInTrial, value: float | None = None, state: str | None = None) -> None:
        self.log.append(("tell", trial.number, value, state))


@pytest.fixture
def studies(monkeypatch: pytest.MonkeyPatch) -> list[StandInStudy]:
    made: list[StandInStudy] = []

    def create_study(direction: str, sampler: int) -> StandInStudy:
        assert direction == "minimize"
        made.append(StandInStudy(sampler))
        return made[-1]

    optuna: Any = types.ModuleType("optuna")
    optuna.logging = types.SimpleNamespace(WARNING=30, set_verbosity=lambda level: None)
    optuna.trial = types.SimpleNamespace(TrialState=types.SimpleNamespace(FAIL="failed"))
    optuna.samplers = types.SimpleNamespace(TPESampler=lambda seed: seed)
    optuna.create_study = create_study
    monkeypatch.setitem(sys.modules, "optuna", optuna)
    return made


def test_every_rule_has_a_study_that_is_told_all_results(studies: list[StandInStudy]) -> None:
    space = {"client.lr": ob.log_uniform(0.01, 1), "client.steps": ob.integers(1, 3), "algorithm.eta": [0.3, 1.0]}
    runs = Runs()
    found = tuning(TWO, space, method="optuna", trials=6).run(runs)
    assert [len(plan.cells) for plan in runs.plans] == [8, 4], "four trials of each rule at once"
    assert len(studies) == 2
    assert studies[0].seed != studies[1].seed
    for study, label in zip(studies, ("plain", "prox"), strict=True):
        assert [entry[:2] for entry in study.log] == [
            *(("ask", n) for n in range(4)), *(("tell", n) for n in range(4)),
            ("ask", 4), ("ask", 5), ("tell", 4), ("tell", 5),
        ]  # fmt: skip
        told = {entry[1]: entry[2:] for entry in study.log if entry[0] == "tell"}
        for trial in (t for t in found if t.rule == label):
            assert trial.params["client.steps"] == min(1 + trial.number, 3)
            assert trial.params["algorithm.eta"] == (0.3, 1.0)[trial.number % 2]
            assert told[trial.number] == ((None, "failed") if trial.value is None else (-trial.value, None))
    assert {trial.value is None for trial in found} == {True, False}


def test_the_seed_is_that_of_the_search(studies: list[StandInStudy]) -> None:
    for seed in (0, 0, 1):
        tuning(method="optuna", trials=1, sampler_seed=seed).run(Runs())
    first, same, other = (study.seed for study in studies)
    assert first == same != other


def test_without_optuna_a_sentence_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ob.OffbeatError, match=r"pip install 'offbeat\[tune\]'. Without it, use random, grid or asha"):
        tuning(method="optuna").run(Runs())
