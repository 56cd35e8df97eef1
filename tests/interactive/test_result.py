"""What `ob.run` returns: the model, data frames and figures."""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import numpy as np
import pytest
import torch
from tests.support import interrupt_after
from tests.support.experiments import experiment
from torch import nn

import offbeat as ob
from offbeat.client.personalization import Personalization
from offbeat.interactive.run import load
from offbeat.report import read
from offbeat.scheduling import PerArrival


def run(**more: Any) -> ob.Result:
    out = more.pop("out", None)
    return ob.execute(experiment(**more), out=out)


def both(tmp_path: pathlib.Path, **more: Any) -> tuple[ob.Result, ob.Result, ob.Result]:
    """Return the result of a run without a folder, of the same run with one, and what that folder holds."""
    stored = load(tmp_path / "run") if run(**more, out=tmp_path / "run") else None
    assert isinstance(stored, ob.Result)
    return run(**more), run(**more, out=tmp_path / "other"), stored


def test_the_model_has_the_final_weights(tmp_path: pathlib.Path) -> None:
    for result in both(tmp_path):
        assert isinstance(result.model, nn.Module)
        assert not result.model.training
        flat = torch.cat([p.detach().flatten() for p in result.model.parameters()])
        assert torch.equal(flat, result.x)
        assert result.state_dict().keys() == result.model.state_dict().keys()
        assert all(torch.equal(value, result.model.state_dict()[name]) for name, value in result.state_dict().items())
        assert result.model is result.model


def test_a_later_run_with_the_same_module_does_not_change_an_earlier_result() -> None:
    module = nn.Linear(12, 3)
    first = ob.run(**settings(model=module))
    before = first.x.clone()
    ob.run(**settings(model=module, seed=1))
    assert torch.equal(torch.cat([p.detach().flatten() for p in first.model.parameters()]), before)


def settings(**more: Any) -> dict[str, Any]:
    base = experiment()
    return {
        "data": base.data, "model": base.model, "algorithm": ob.CA2FL(), "scheduler": base.scheduler, "rounds": 6,
    } | more  # fmt: skip


def test_memory_and_folder_agree(tmp_path: pathlib.Path) -> None:
    memory, written, stored = both(tmp_path, evaluation=ob.Evaluation(every=5, per_client=True, per_label=True))
    for result in (written, stored):
        assert torch.equal(memory.x, result.x)
        for name in ("evaluations", "client_evaluations", "label_evaluations"):
            assert [_timeless(line) for line in getattr(memory, name)] == [
                _timeless(line) for line in getattr(result, name)
            ], name
        assert (memory.log() == result.log()).all()
        assert memory.accuracy == result.accuracy
        assert (result.label, result.seed, result.interrupted) == ("ca2fl", 0, False)
        assert _timeless(memory.summary) == _timeless(result.summary)
    assert len(memory.client_evaluations) > 20
    assert len(memory.label_evaluations) == 3 * len(memory.evaluations)


def _timeless(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if "wall" not in name and "per_second" not in name}


def test_logs_are_data_frames(tmp_path: pathlib.Path) -> None:
    pd = pytest.importorskip("pandas")
    for result in both(tmp_path, evaluation=ob.Evaluation(every=5, per_client=True, per_label=True)):
        assert isinstance(result.metrics, pd.DataFrame)
        assert result.metrics["accuracy"].tolist() == [line["accuracy"] for line in result.evaluations]
        axes = result.metrics.plot(x="virtual_seconds", y="accuracy")
        assert list(axes.lines[0].get_xdata()) == [line["virtual_seconds"] for line in result.evaluations]
        sizes = result.updates.groupby("client").size()
        assert sizes.to_dict() == {c: n for c, n in enumerate(np.bincount(result.log()["client"])) if n}
        assert set(result.updates["status"]) == {"aggregated"}
        assert result.updates["loss"].dtype == np.float32
        assert len(result.client_metrics) == len(result.client_evaluations)
        assert set(result.label_metrics["label"]) == {0, 1, 2}


def test_without_pandas_rows_remain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    result = run(rounds=2)
    assert result.evaluations[-1]["version"] == 2
    for name, instead in (("metrics", "evaluations"), ("updates", "log()"), ("client_metrics", "client_evaluations")):
        with pytest.raises(ob.OffbeatError) as caught:
            getattr(result, name)
        assert "pip install 'offbeat[notebook]'" in str(caught.value)
        assert f"result.{instead}" in str(caught.value)


def test_lost_updates_are_named() -> None:
    pytest.importorskip("pandas")
    result = run(environment=ob.Environment(loss=0.3, trip_timeout=50.0))
    counts = result.updates["status"].value_counts()
    assert counts["lost"] == result.summary["lost"] > 0
    assert counts["aggregated"] == result.summary["updates"]


def test_a_long_log_in_memory_is_complete() -> None:
    result = run(
        rounds=2100,
        algorithm=ob.FedAsync(),
        scheduler=PerArrival(concurrency=2),
        evaluation=ob.Evaluation(every=2100),
    )
    assert len(result.log()) == result.summary["updates"] == 2100
    assert (np.diff(result.log()["time"]) >= 0).all()


def test_a_figure_shows_itself_in_a_notebook(tmp_path: pathlib.Path) -> None:
    for result in both(tmp_path):
        assert result.plot()._repr_png_().startswith(b"\x89PNG")
        (line,) = result.plot(x="version").axes[0].lines
        assert np.asarray(line.get_xdata())[-1] == 20
        assert np.asarray(line.get_ydata())[-1] == pytest.approx(100 * result.accuracy)
        assert result.plot("staleness").axes[0].get_xlabel().startswith("staleness")
        with pytest.raises(ob.OffbeatError, match=r"no figure 'stalenes'.*staleness"):
            result.plot("stalenes")
        with pytest.raises(ob.OffbeatError, match="no axis 'time'"):
            result.plot(x="time")


def test_a_report_is_written(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    memory, written, stored = both(tmp_path)
    assert memory.report() == pathlib.Path("report.html")
    assert written.report() == tmp_path / "other/report.html"
    assert stored.report(str(tmp_path / "mine.html")) == tmp_path / "mine.html"
    for place in ("report.html", "other/report.html", "mine.html"):
        text = (tmp_path / place).read_text()
        assert '"label":"ca2fl"' in text
        assert f":{memory.accuracy}" in text
    with pytest.raises(ob.RunFolderError, match="cannot write the report"):
        memory.report(tmp_path / "nowhere/report.html")


def test_a_result_is_short_in_a_console_and_a_table_in_a_notebook(tmp_path: pathlib.Path) -> None:
    memory, _, stored = both(tmp_path)
    value = f"{100 * memory.accuracy:.1f} %"
    assert repr(memory) == f"<Result ca2fl, seed 0: accuracy {value} after 20 rounds>"
    assert repr(stored) == f"<Result ca2fl, seed 0: accuracy {value} after 20 rounds, {tmp_path / 'run'}>"
    page = stored._repr_html_()
    assert f"<th>accuracy</th><td>{value}</td>" in page
    assert f"<th>updates</th><td>{memory.summary['updates']}</td>" in page


def test_names_in_a_notebook_are_escaped() -> None:
    result = ob.Result(run(rounds=1).run, experiment(), name="<script>")
    assert "<script>" not in result._repr_html_()
    assert "&lt;script&gt;" in result._repr_html_()


def test_an_unfinished_run_can_be_loaded(tmp_path: pathlib.Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        ob.run(**settings(rounds=30, evaluation=5), out=tmp_path / "run", watch=interrupt_after(11))
    result = ob.load(tmp_path / "run")
    assert isinstance(result, ob.Result)
    assert result.interrupted
    assert result.summary == {}
    assert [line["version"] for line in result.evaluations] == [0, 5, 10, 15][: len(result.evaluations)]
    assert len(result.evaluations) >= 3
    assert "interrupted" in repr(result)
    with pytest.raises(ob.OffbeatError, match="has no model yet"):
        _ = result.model


def test_a_stored_module_from_python_is_not_guessed(tmp_path: pathlib.Path) -> None:
    own = settings(model=lambda: nn.Linear(12, 3))
    first = ob.run(**own, out=tmp_path / "run")
    stored = ob.load(str(tmp_path / "run"))
    assert isinstance(stored, ob.Result)
    with pytest.raises(ob.OffbeatError, match=r"call ob\.run with the same objects.*state_dict"):
        _ = stored.model
    module = nn.Linear(12, 3)
    module.load_state_dict(stored.state_dict())
    assert torch.equal(module.weight, first.state_dict()["weight"])


def test_personal_parts_are_loaded(tmp_path: pathlib.Path) -> None:
    more = {"personalization": Personalization(parameters=("*bias",))}
    memory, written, stored = both(tmp_path, **more)
    assert memory.personal.keys() == stored.personal.keys() == written.personal.keys() != set()
    assert all(torch.equal(value, stored.personal[name]) for name, value in memory.personal.items())
    assert torch.equal(memory.x, stored.x)


def test_a_folder_that_is_no_run_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ob.RunFolderError, match="not the folder of a run or of a sweep"):
        ob.load(tmp_path)


def test_a_record_in_memory_is_that_of_the_folder(tmp_path: pathlib.Path) -> None:
    memory, written, _ = both(tmp_path)
    one, other = memory.record, read.read(tmp_path / "other")
    assert written.record.label == other.label == one.label
    assert (one.seed, one.state, one.clients, one.target) == (other.seed, other.state, other.clients, other.target)
    assert one.task_metrics == other.task_metrics
    assert (one.log() == other.log()).all()
    assert one.config["algorithm"] == other.config["algorithm"]
