"""Sweeps over Python objects, their tables and comparisons."""

from __future__ import annotations

import pathlib
import statistics
from typing import Any

import numpy as np
import pytest
import torch
from tests.support import interrupt_after
from tests.support.experiments import experiment
from torch import nn

import offbeat as ob
from offbeat.interactive.sweep import cells_of
from offbeat.runs import drive, sweep
from offbeat.scheduling import PerArrival


def settings(**more: Any) -> dict[str, Any]:
    base = experiment()
    own = {"data": base.data, "model": base.model, "algorithm": ob.CA2FL(), "scheduler": base.scheduler}
    return {**own, "rounds": 6, "evaluation": 3, "executor": "vectorized"} | more


def labels(**more: Any) -> list[str]:
    return [cell.label for cell in cells_of(settings(**more), [0])]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> ob.SweepResult:
    algorithms = [ob.FedBuff(), ob.CA2FL()]
    return ob.sweep(**settings(algorithm=algorithms), seeds=range(3), out=tmp_path_factory.mktemp("sweep") / "s")


def test_every_combination_is_run_with_every_seed(swept: ob.SweepResult) -> None:
    assert [(r.label, r.seed) for r in swept] == [(name, seed) for name in ("fedbuff", "ca2fl") for seed in range(3)]
    assert swept.labels == ["fedbuff", "ca2fl"]
    assert [r.seed for r in swept["ca2fl"]] == [0, 1, 2]
    assert len(swept) == len(swept.results) == 6
    with pytest.raises(KeyError, match="fedbuff, ca2fl"):
        swept["ca4fl"]
    assert repr(swept) == f"<SweepResult {swept.folder}: 6 runs; fedbuff, ca2fl>"


def test_the_results_are_those_of_single_runs(swept: ob.SweepResult) -> None:
    alone = ob.run(**settings(algorithm=ob.FedBuff(), seed=2))
    together = swept["fedbuff"][2]
    assert torch.allclose(alone.x, together.x, rtol=1e-4, atol=1e-6)
    assert alone.log()["client"].tolist() == together.log()["client"].tolist()
    assert torch.equal(next(iter(together.model.parameters())).flatten(), together.x[: 3 * 12])


def test_runs_are_pooled(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pools: list[int] = []

    def together(runs: Any) -> Any:
        pools.append(len(runs))
        return drive.together(runs)

    monkeypatch.setattr(sweep, "together", together)
    module = nn.Linear(12, 3)
    algorithms = [ob.FedBuff(), ob.CA2FL()]
    for name, data in {
        "offbeat": settings()["data"],
        "arrays": ob.from_arrays(np.ones((60, 12), np.float32), np.arange(60) % 3),
    }.items():
        ob.sweep(
            **settings(algorithm=algorithms, model=module, data=data, clients=6), seeds=(0, 1), out=tmp_path / name
        )
    assert pools == [4, 4]


def test_the_same_call_runs_nothing_again(swept: ob.SweepResult, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "together", None)
    again = ob.sweep(**settings(algorithm=[ob.FedBuff(), ob.CA2FL()]), seeds=range(3), out=str(swept.folder))
    assert [r.accuracy for r in again] == [r.accuracy for r in swept]
    loaded = ob.load(swept.folder)
    assert isinstance(loaded, ob.SweepResult)
    assert [(r.label, r.seed, r.accuracy) for r in loaded] == [(r.label, r.seed, r.accuracy) for r in swept]


def test_another_experiment_in_the_folder_is_named(swept: ob.SweepResult) -> None:
    with pytest.raises(ob.RunFolderError, match=r"another experiment \(rounds is 6 there and 7 here\)"):
        ob.sweep(**settings(algorithm=[ob.FedBuff(), ob.CA2FL()], rounds=7), seeds=range(3), out=swept.folder)


def test_an_interrupted_sweep_of_nameless_objects_is_resumed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = settings(model=lambda: nn.Linear(12, 3), algorithm=[ob.FedBuff(), ob.CA2FL()], rounds=20)
    whole = ob.sweep(**own, out=tmp_path / "whole")
    with monkeypatch.context() as patched:
        patched.setattr("offbeat.runs.progress.SweepDisplay.begin", lambda self, labels: [interrupt_after(7)] * 2)
        with pytest.raises(KeyboardInterrupt, match="interrupted after 0 of 2 runs"):
            ob.sweep(**own, out=tmp_path / "cut")
    again = ob.sweep(**own, out=tmp_path / "cut")
    assert [r.x.tolist() for r in again] == [r.x.tolist() for r in whole]


def test_runs_share_no_state(tmp_path: pathlib.Path) -> None:
    algorithm = ob.FedBuff()
    ob.sweep(**settings(algorithm=[algorithm]), seeds=(0, 1), out=tmp_path / "s")
    assert not hasattr(algorithm, "x"), "each run has a copy"


def test_labels_are_names_and_the_options_that_differ() -> None:
    assert labels(algorithm=[ob.FedBuff(), ob.CA2FL()]) == ["fedbuff", "ca2fl"]
    assert labels(algorithm=[ob.FedBuff(eta=0.5), ob.FedBuff(eta=1.0)]) == ["eta=0.5", "eta=1.0"]
    assert labels(algorithm=[ob.FedBuff(), ob.CA2FL(), ob.CA2FL(eta=0.5)]) == [
        "fedbuff",
        "ca2fl eta=1.0",
        "ca2fl eta=0.5",
    ]
    assert labels(rounds=[3, 5]) == ["rounds=3", "rounds=5"]
    assert labels(client=[ob.SGD(lr=0.1), ob.SGD(lr=0.3)], rounds=[3, 5])[-1] == "rounds=5 lr=0.3"
    assert labels(client={"slow": ob.SGD(lr=0.1), "fast": ob.SGD(lr=0.3)}) == ["slow", "fast"]
    assert labels(model=[nn.Linear(12, 3), nn.Sequential(nn.Linear(12, 3))]) == ["Linear", "Sequential"]
    assert labels(algorithm=[ob.FedBuff()]) == ["fedbuff"]
    assert labels() == ["run"]
    delays = [ob.Environment(delay=ob.delays.LogNormal()), ob.Environment(delay=ob.delays.Constant())]
    assert ["lognormal" in label or "log-normal" in label for label in labels(environment=delays)] == [True, False]


def test_a_list_of_indices_is_a_partition_and_no_axis() -> None:
    parts = [np.arange(150), np.arange(150, 300)]
    source = experiment().data.source
    assert len(list(cells_of(settings(data=source, partition=parts), [0]))) == 1
    two = [ob.partitions.IID(), ob.partitions.Dirichlet(alpha=0.3)]
    assert labels(data=source, clients=5, partition=two) == ["iid", "dirichlet"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"seed": 3}, "seed: seeds are not an axis: use seeds="),
        ({"seeds": ()}, "seeds: give at least one seed"),
        ({"rounds": []}, "rounds: an axis of a sweep needs at least one value"),
        ({"rounds": [3, 3]}, "share the folder 'rounds=3/seed-0'"),
        ({"rounds": [3, "x"]}, "rounds: 'x' is not"),
        ({"model": [lambda: nn.Linear(12, 3), lambda: nn.Linear(12, 3)]}, "different labels"),
        ({"rundes": [3]}, "rundes: unknown setting"),
    ],
)
def test_mistakes_are_reported_before_the_first_run(
    change: dict[str, Any], expected: str, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(ob.ConfigError, match=expected):
        ob.sweep(**settings(**change), out=tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_a_run_that_diverges_is_left_out_and_named(tmp_path: pathlib.Path) -> None:
    rules = {"fine": ob.SGD(lr=0.1), "wild": ob.SGD(lr=1e38)}
    found = ob.sweep(**settings(client=rules), out=tmp_path / "s")
    assert found.labels == ["fine"]
    assert found.diverged == [("wild", 0)]
    assert "1 diverged" in repr(found)


def test_tables_of_all_runs(swept: ob.SweepResult) -> None:
    pytest.importorskip("pandas")
    best = swept.metrics.groupby(["label", "seed"])["accuracy"].last()
    assert best["ca2fl", 1] == swept["ca2fl"][1].accuracy
    assert len(swept.updates) == sum(len(result.log()) for result in swept)


def test_variants_are_compared(swept: ob.SweepResult) -> None:
    found = swept.compare()
    assert [row.label for row in found.rows] == ["fedbuff", "ca2fl"]
    values = [result.accuracy for result in swept["ca2fl"]]
    assert (found.rows[1].mean, found.rows[1].std) == (statistics.fmean(values), statistics.stdev(values))
    assert "accuracy of the last evaluation, ± over the seeds" in repr(found)
    assert f"{100 * found.rows[1].mean:.1f} ± " in found._repr_html_()
    assert f"{100 * found.rows[1].mean:.1f} ± " in swept._repr_html_()
    at = swept.compare(metric="loss", at={"version": 4})
    losses = [result.evaluations[1]["loss"] for result in swept["fedbuff"]]
    assert at.rows[0].values == tuple(losses)
    assert [line["version"] for line in swept.results[0].evaluations] == [0, 3, 6]
    assert "loss of the last evaluation up to version = 4" in repr(at)
    with pytest.raises(ob.OffbeatError, match="no 'acuracy'; valid: accuracy, loss"):
        swept.compare(metric="acuracy")
    with pytest.raises(ob.OffbeatError, match=r"at: there is no axis 'seconds'.*Did you mean 'virtual_seconds'"):
        swept.compare(at={"seconds": 3})


def test_results_and_folders_are_compared(swept: ob.SweepResult, tmp_path: pathlib.Path) -> None:
    memory = ob.run(**settings(algorithm=ob.FedAsync(), scheduler=PerArrival(concurrency=4)))
    found = ob.compare(memory, str(swept.folder), swept.results[0])
    assert {row.label: len(row.values) for row in found.rows} == {"fedasync": 1, "fedbuff": 3, "ca2fl": 3}
    assert any("budgets" in note for note in found.notes), "FedAsync steps at every arrival"
    with pytest.raises(ob.RunFolderError, match="no runs found"):
        ob.compare(tmp_path)


def test_models_without_names_are_not_taken_for_the_same(tmp_path: pathlib.Path) -> None:
    """Two lambdas have equal configs, but are neither twins nor seeds of one experiment."""
    models = {"one": lambda: nn.Linear(12, 3), "two": lambda: nn.Linear(12, 3, bias=False)}
    found = ob.sweep(**settings(model=models), out=tmp_path / "s").compare()
    assert [row.label for row in found.rows] == ["one", "two"]
    in_memory = [ob.run(**settings(model=model)) for model in models.values()]
    assert len(ob.compare(*in_memory).rows) == 2
    again = ob.compare(*[ob.run(**settings(model=models["one"])) for _ in range(2)])
    assert len(again.rows) == len(again.rows[0].values) == 1, "the same run twice counts once"


def test_seeds_of_one_object_are_one_experiment(tmp_path: pathlib.Path) -> None:
    own = settings(model=lambda: nn.Linear(12, 3), partition=ob.partitions.Dirichlet(alpha=0.5), clients=5)
    own["data"] = own["data"].source
    ob.sweep(**own, seeds=(0, 1), out=tmp_path / "s")
    (row,) = ob.compare(*(tmp_path / "s").glob("run/seed-*")).rows
    assert row.seeds == (0, 1)


def test_a_figure_and_a_report_of_a_sweep(swept: ob.SweepResult) -> None:
    assert [line.get_label() for line in swept.plot().axes[0].lines] == ["fedbuff", "ca2fl"]
    assert swept.report() == swept.folder / "report.html"
    assert '"label":"fedbuff"' in (swept.folder / "report.html").read_text()
