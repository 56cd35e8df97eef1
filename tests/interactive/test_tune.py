"""The search for hyperparameters from Python."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
from tests.support import interrupt_after
from tests.support.experiments import experiment

import offbeat as ob
from offbeat.runs import api, drive, sweep

SPACE = {"client.lr": ob.log_uniform(1e-3, 1), "algorithm.eta": [0.3, 1.0]}


def settings(**more: Any) -> dict[str, Any]:
    base = experiment()
    own = {"data": base.data, "model": base.model, "algorithm": ob.FedBuff(), "scheduler": base.scheduler}
    return {**own, "rounds": 9, "evaluation": 3, "executor": "vectorized", "space": SPACE, "trials": 4} | more


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> ob.TuneResult:
    return ob.tune(**settings(algorithm=[ob.FedBuff(), ob.CA2FL()]), out=tmp_path_factory.mktemp("tune") / "t")


def test_the_best_has_the_highest_metric_of_all_trials(tuned: ob.TuneResult) -> None:
    assert set(tuned.best) == {"fedbuff", "ca2fl"}
    assert len(tuned.trials) == 8
    assert tuned.trial.value == max(trial.value for trial in tuned.trials if trial.value is not None)
    assert tuned.params == tuned.trial.params
    assert tuned.experiment.client.lr == tuned.params["client.lr"]
    assert tuned.experiment.seed == 1
    assert f"client.lr = {tuned.params['client.lr']:.4g}" in repr(tuned)
    assert tuned._repr_html_().count("<tr>") == 9


def test_a_trial_is_the_run_with_its_parameters(tuned: ob.TuneResult) -> None:
    trial = next(trial for trial in tuned.trials if trial.rule == "fedbuff")
    more = settings(
        algorithm=ob.FedBuff(eta=trial.params["algorithm.eta"]), client=ob.SGD(lr=trial.params["client.lr"])
    )
    alone = ob.run(**{name: value for name, value in more.items() if name not in ("space", "trials")})
    assert alone.accuracy == trial.value
    stored = ob.load(tuned.folder)
    assert isinstance(stored, ob.SweepResult)
    assert stored[f"fedbuff trial-{trial.number:03}"][0].accuracy == trial.value


def test_tables_and_figures(tuned: ob.TuneResult) -> None:
    pytest.importorskip("pandas")
    assert list(tuned.table.columns) == [
        "rule", "trial", "budget", "client.lr", "algorithm.eta", "accuracy", "target_seconds",
    ]  # fmt: skip
    assert len(tuned.plot().axes) == 2


def test_the_comparison_runs_the_best_of_each_rule_with_other_seeds(tuned: ob.TuneResult) -> None:
    compared = tuned.run(seeds=[1, 2])
    assert [(r.label, r.seed) for r in compared] == [("fedbuff", 1), ("fedbuff", 2), ("ca2fl", 1), ("ca2fl", 2)]
    assert compared.folder == tuned.folder / "comparison"
    with pytest.raises(ob.ConfigError, match="the search used seed 0"):
        tuned.run(seeds=range(3))


def test_the_same_call_runs_nothing_again_and_more_trials_add_to_it(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools: list[int] = []

    def together(runs: Any) -> Any:
        pools.append(len(runs))
        return drive.together(runs)

    monkeypatch.setattr(sweep, "together", together)
    first = ob.tune(**settings(), out=tmp_path / "t")
    again = ob.tune(**settings(), out=tmp_path / "t")
    assert pools == [4], "trained together, and once"
    assert again.trials == first.trials
    more = ob.tune(**settings(trials=6), out=tmp_path / "t")
    assert pools == [4, 2]
    assert {t.number for t in more.trials} == set(range(6))
    with pytest.raises(ob.RunFolderError, match="contains another experiment"):
        ob.tune(**settings(sampler_seed=1), out=tmp_path / "t")


def test_an_interrupted_search_continues(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ob.tune(**settings(method="asha", rungs=2), out=tmp_path / "whole")
    begin = api.begin
    watch = interrupt_after(5)

    def watched(*arguments: Any, **more: Any) -> Any:
        return begin(*arguments, **more | {"watch": watch})

    with monkeypatch.context() as patch:
        patch.setattr(api, "begin", watched)
        with pytest.raises(KeyboardInterrupt, match="the same call resumes them"):
            ob.tune(**settings(method="asha", rungs=2), out=tmp_path / "t")
    assert not (tmp_path / "t" / "best").exists()
    assert ob.tune(**settings(method="asha", rungs=2), out=tmp_path / "t").trials == whole.trials


def test_a_seed_is_ambiguous() -> None:
    with pytest.raises(ob.ConfigError, match=r"seeds=\[0\], and that of the search as sampler_seed"):
        ob.tune(**settings(seed=1), out="never")
