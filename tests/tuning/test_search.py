"""The methods of a search, with results that are made up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

import offbeat as ob
from offbeat.runs.sweep import Cell, Sweep
from offbeat.tuning.search import Search, Trial, Tuning
from offbeat.tuning.space import space_of

BASE: dict[str, Any] = {
    "rounds": 90,
    "data": {"name": "digits", "clients": 10},
    "scheduler": {"concurrency": 6, "buffer": 3},
}
SPACE = {"client.lr": ob.log_uniform(1e-3, 1), "algorithm.eta": [0.3, 1.0]}


def rule(label: str, **changes: Any) -> Cell:
    return Cell(label, 0, BASE | {"algorithm": "fedbuff", "seed": 0} | changes)


TWO = [rule("plain"), rule("prox", client="prox")]


class Runs:
    """Stands for the machine: the closer the learning rate is to 0.1, the better, and above 0.5 runs diverge."""

    def __init__(self) -> None:
        self.plans: list[Sweep] = []

    def __call__(self, plan: Sweep) -> Mapping[str, Mapping[str, Any]]:
        self.plans.append(plan)
        return {cell.folder: self.summary(cell) for cell in plan.cells}

    def summary(self, cell: Cell) -> dict[str, Any]:
        experiment = cell.experiment()
        lr = experiment.client.lr
        assert isinstance(lr, float)
        if lr > 0.5:
            return {}
        accuracy = 1 / (1 + abs(math.log10(lr) + 1)) + 0.001 * cell.seed
        return {"accuracy": accuracy, "loss": 1 - accuracy, "target_seconds": 100 * lr if lr > 0.01 else None}


def tuning(rules: list[Cell] | None = None, space: Any = None, **search: Any) -> Tuning:
    return Tuning(rules or [rule("run")], space_of(space or SPACE), Search(**search))


def test_the_same_search_makes_the_same_trials_and_more_trials_continue_it() -> None:
    few, same, more = (tuning(trials=n).run(Runs()) for n in (5, 5, 9))
    assert few == same
    assert {t.number: t.params for t in few}.items() <= {t.number: t.params for t in more}.items()
    assert {t.number: t.params for t in tuning(trials=5, sampler_seed=1).run(Runs())} != {
        t.number: t.params for t in few
    }
    assert len({t.params["client.lr"] for t in more}) == 9


def test_trials_are_sorted_and_those_that_diverged_come_last() -> None:
    found = tuning(trials=30).run(Runs())
    known = [t.value for t in found if t.value is not None]
    assert known == sorted(known, reverse=True)
    assert 0 < len(known) < 30
    assert all(t.value is None for t in found[len(known) :])
    lowest = tuning(trials=30, metric="loss").run(Runs())
    assert lowest[0].params == found[0].params
    assert lowest[0].value == pytest.approx(1 - found[0].value)  # type: ignore[operator]


def test_rules_get_equal_numbers_of_trials_and_agree_in_shared_keys() -> None:
    search = tuning(TWO, SPACE | {"client.mu": [0.1, 1.0]}, trials=4)
    runs = Runs()
    found = search.run(runs)
    assert len(runs.plans) == 1, "all are run together"
    by_rule = {label: {t.number: t.params for t in found if t.rule == label} for label in ("plain", "prox")}
    assert [len(each) for each in by_rule.values()] == [4, 4]
    for number, params in by_rule["plain"].items():
        assert "client.mu" not in params
        assert by_rule["prox"][number] == params | {"client.mu": by_rule["prox"][number]["client.mu"]}
    assert [cell.label for cell in runs.plans[0].cells[:2]] == ["plain trial-000", "plain trial-001"]
    assert set(search.best(found)) == {"plain", "prox"}


def test_a_grid_has_all_combinations() -> None:
    found = tuning(space={"client.lr": [0.01, 0.1], "client.steps": ob.integers(1, 3)}, method="grid").run(Runs())
    assert len(found) == 6
    assert found[0].params["client.lr"] == 0.1
    assert {tuple(t.params.values()) for t in found} == {(lr, n) for lr in (0.01, 0.1) for n in (1, 2, 3)}


def test_asha_promotes_the_best_of_each_rule_to_more_rounds() -> None:
    search, runs = tuning(TWO, method="asha", trials=9), Runs()
    found = search.run(runs)
    assert [len(plan.cells) for plan in runs.plans] == [18, 6, 2]
    assert [{c.experiment().rounds for c in plan.cells} for plan in runs.plans] == [{10}, {30}, {90}]
    for label in ("plain", "prox"):
        first = [t for t in found if t.rule == label and t.rung == 0]
        second = [t for t in found if t.rule == label and t.rung == 1]
        last = [t for t in found if t.rule == label and t.rung == 2]
        assert [t.number for t in second] == [t.number for t in first[:3]]
        assert [t.number for t in last] == [first[0].number]
        assert search.best(found)[label] == last[0]
    assert found[0].share == 1, "those with all rounds come first"


def test_asha_never_promotes_a_trial_that_diverged() -> None:
    search, runs = tuning(space={"client.lr": [0.9]}, method="asha", trials=9), Runs()
    assert search.best(search.run(runs)) == {}
    assert [len(plan.cells) for plan in runs.plans] == [9]


def test_several_seeds_are_averaged() -> None:
    search, runs = tuning(trials=2, space={"client.lr": [0.1]}, seeds=(4, 8)), Runs()
    found = search.run(runs)
    assert [cell.seed for cell in runs.plans[0].cells] == [4, 8, 4, 8]
    assert found[0].values == pytest.approx((1.004, 1.008))
    assert found[0].value == pytest.approx(1.006)


def test_the_time_to_the_target_counts_if_runs_stop_there() -> None:
    stops = rule("run", evaluation={"target": 0.5, "stop_at_target": True})
    lrs = [0.1, 0.05, 0.009, 0.002]
    found = tuning([stops], {"client.lr": lrs}, method="grid").run(Runs())
    assert [t.params["client.lr"] for t in found] == [0.05, 0.1, 0.009, 0.002]


def test_the_seeds_of_the_comparison_are_new() -> None:
    search = tuning(TWO, trials=3, seeds=(0, 2))
    found = search.run(Runs())
    assert search.fresh() == [1, 3, 4, 5, 6]
    assert [(c.label, c.seed) for c in search.comparison(found, [7, 8]).cells] == [
        ("plain", 7), ("plain", 8), ("prox", 7), ("prox", 8),
    ]  # fmt: skip
    best = search.best(found)["prox"]
    cell = search.comparison(found, []).cells[-1]
    assert cell.seed == 6
    assert cell.experiment().client.lr == best.params["client.lr"]
    with pytest.raises(ob.ConfigError, match=r"seeds: the search used seeds 0, 2: .* such as 1, 3, 4, 5, 6"):
        search.comparison(found, [0, 1, 2])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "grid"}, r"client\.lr: a grid needs a list"),
        ({"method": "grid", "space": {"client.lr": [0.1]}, "trials": 2}, "trials: the grid has 1 points, not 2"),
        ({"space": {"client.lrr": [0.1]}}, r"client\.lrr: unknown key; .*Did you mean 'lr'"),
        ({"space": {"client.lr": [-0.1]}}, r"client\.lr: -0\.1"),
        ({"method": "asha", "rungs": 9}, "rungs: 9 rungs are too many for 90 rounds"),
        ({"reduction": 1}, "reduction: 1 would promote every trial"),
        ({"seeds": ()}, "seeds: give at least one"),
        ({"metric": "acuracy"}, "metric: unknown metric 'acuracy'; .*Did you mean 'accuracy'"),
        ({"method": "bayes"}, "method: "),
    ],
)
def test_mistakes(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ob.ConfigError, match=message):
        tuning(**arguments)


def test_a_grid_with_unequal_numbers_of_trials_is_refused() -> None:
    with pytest.raises(ob.ConfigError, match=r"method: .*unequal numbers of trials \(plain 1, prox 3\)"):
        tuning(TWO, {"client.lr": [0.1], "client.mu": [0.1, 0.2, 0.3]}, method="grid")


def test_a_rule_without_any_key_is_refused() -> None:
    with pytest.raises(ob.ConfigError, match=r"space: .*plain has none of client\.mu"):
        tuning(TWO, {"client.mu": [0.1]})


def test_labels_name_the_rule_only_if_there_are_several() -> None:
    trial = Trial("FedBuff", 7, {}, rung=1)
    assert trial.label(single=True, rungs=1) == "trial-007"
    assert trial.label(single=False, rungs=3) == "FedBuff trial-007 rung-2"
