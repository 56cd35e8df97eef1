"""Budgets: a run ends when the first amount is used up, also after an interruption."""

from __future__ import annotations

import logging
import pathlib
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from tests.support import interrupt_after
from tests.support.experiments import experiment

import offbeat as ob
from offbeat.cli import main
from offbeat.report import notes, read
from offbeat.runs import api, config
from offbeat.runs.progress import done
from offbeat.runs.result import ProgressSnapshot, RunCounters, RunResult


def run(budget: ob.Budget | None, **more: Any) -> RunResult:
    return api.execute(experiment(rounds=10_000, budget=budget, **more))


@pytest.mark.parametrize("name", ["client_steps", "updates", "bytes_up"])
@pytest.mark.parametrize("algorithm", [ob.FedAsync(), ob.FedAvg()])
def test_a_run_ends_with_the_update_that_uses_up_its_budget(name: str, algorithm: ob.Algorithm) -> None:
    kind: Any = ob.schedulers.SCHEDULERS[algorithm.schedulers[0]]
    more = {"algorithm": algorithm, "scheduler": kind(concurrency=4), "client": ob.SGD(steps=3)}
    one_update = run(ob.Budget(updates=1), **more).summary[name]
    amount = 20 * one_update - one_update // 2
    summary = run(ob.Budget(**{name: amount}), **more).summary
    assert summary[name] == 20 * one_update
    assert summary["budget"] == {name: amount}
    assert summary["stopped"] == f"the budget of {amount:,} {name} is used up"


def test_the_first_amount_that_is_used_up_ends_the_run() -> None:
    short = run(ob.Budget(updates=10_000, virtual_seconds=3.0)).summary
    assert short["virtual_seconds"] == 3.0
    assert short["updates"] < 10_000
    assert run(ob.Budget(updates=4, virtual_seconds=1e6)).summary["updates"] == 4
    assert run(ob.Budget(virtual_seconds=30.0), virtual_seconds=3.0).summary["virtual_seconds"] == 3.0


def test_the_last_version_is_evaluated_once() -> None:
    result = run(ob.Budget(updates=7))  # three server steps of two updates, and one update in the buffer
    assert result.evaluations[-1]["version"] == result.summary["rounds"] == 3
    assert [line["version"] for line in result.evaluations] == [0, 3]


def test_an_interrupted_run_ends_at_the_same_update(tmp_path: pathlib.Path) -> None:
    whole = experiment(rounds=10_000, budget=ob.Budget(client_steps=400), device="cpu", executor="sequential")
    plain = api.execute(whole, out=tmp_path / "plain")
    assert api.execute(whole, out=tmp_path / "cut", watch=interrupt_after(5)).interrupted
    resumed = api.resume(tmp_path / "cut")
    assert torch.equal(resumed.x, plain.x)
    assert (tmp_path / "cut/updates.npy").read_bytes() == (tmp_path / "plain/updates.npy").read_bytes()
    assert resumed.summary["stopped"] == plain.summary["stopped"]


def test_rounds_that_end_a_run_long_before_its_budget_give_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "offbeat"):
        api.execute(experiment(rounds=2, budget=ob.Budget(updates=100)))
    assert "all 2 rounds are done with 4 % of the budget; raise rounds" in caplog.text


def test_a_budget_is_an_object_or_a_dict_or_a_table() -> None:
    assert ob.Budget.of({"updates": 3}) == ob.Budget(updates=3)
    parsed = config.parse({"budget": {"client_steps": 500, "virtual_seconds": 2.5}})
    assert parsed.budget == ob.Budget(client_steps=500, virtual_seconds=2.5)
    assert config.dump(config.parse(config.describe(parsed))) == config.dump(parsed)
    assert "budget" not in config.describe(config.parse({}))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"step": 3}, "budget.step: unknown key; valid: client_steps, updates, bytes_up, virtual_seconds."),
        ({"updates": 0}, "budget.updates: 0 is not an integer ≥ 1"),
        ({}, "budget: empty; give at least one of"),
    ],
)
def test_a_budget_that_cannot_work_has_one_message(given: dict[str, Any], message: str) -> None:
    for make in (ob.Budget.of, lambda table: config.parse({"budget": table})):
        with pytest.raises(ob.ConfigError) as error:
            make(given)
        assert str(error.value).startswith(message)
    with pytest.raises(ob.ConfigError, match=r"budget: 500 is not a budget, such as Budget\(client_steps=10_000\)"):
        ob.Budget.of(500)  # type: ignore[arg-type]


def test_progress_counts_the_budget() -> None:
    counters = RunCounters(version=1, updates=30)
    used = ob.Budget(updates=40, client_steps=10_000).share(counters)
    assert done(ProgressSnapshot(counters, 1000, None, [], used=used)) == 0.75


def test_comparisons_state_the_budget(tmp_path: pathlib.Path) -> None:
    (tmp_path / "study.toml").write_text(
        'rounds = 1000\nbudget = { updates = 24 }\n[data]\nname = "synthetic"\nclients = 8\n[evaluation]\nevery = 50\n'
        "[scheduler]\nconcurrency = 4\nbuffer = 4\n"
    )
    command = ["sweep", str(tmp_path / "study.toml"), "--grid", "algorithm.name=fedbuff,fedasync"]
    found = CliRunner().invoke(main, [*command, "--out", str(tmp_path / "runs"), "--quiet"])
    assert found.exit_code == 0, found.output
    assert "each run ends after 24 updates" in found.output
    records = read.records([tmp_path / "runs"])
    assert notes.differences(records)[0] == "each run ends after 24 updates"
    records[0].config["budget"]["updates"] = 25
    assert notes.differences(records)[0] == "the runs differ in [budget]"
