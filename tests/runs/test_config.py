"""From TOML to an experiment, and the error for every mistake."""

from __future__ import annotations

import pathlib
import tomllib
from typing import Any

import pytest
from torch import nn

import offbeat as ob
from offbeat.algorithms import ALGORITHMS
from offbeat.algorithms.staleness import Polynomial
from offbeat.environment import DELAYS, HalfNormal
from offbeat.runs import config
from offbeat.runs.presets import PRESETS, text
from offbeat.scheduling import SCHEDULERS

BASE: dict[str, Any] = {
    "rounds": 5,
    "algorithm": {"name": "ca2fl", "eta": 0.5},
    "client": {"name": "sgd", "lr": 0.1},
    "scheduler": {"concurrency": 8, "buffer": 4},
    "data": {"name": "digits", "clients": 20, "partition": {"name": "dirichlet", "alpha": 0.1}},
    "model": {"name": "lr"},
}


def with_(*assignments: str) -> dict[str, Any]:
    import copy

    table = copy.deepcopy(BASE)
    for assignment in assignments:
        config.override(table, assignment)
    return table


def message(*assignments: str, assemble: bool = False) -> str:
    def attempt() -> None:
        experiment = config.parse(with_(*assignments))
        if assemble:
            experiment.assemble()

    with pytest.raises(ob.OffbeatError) as caught:
        attempt()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_table_becomes_objects() -> None:
    experiment = config.parse(with_("algorithm.name=fedbuff", "algorithm.staleness.name=polynomial", "seed=3"))
    assert experiment.algorithm == ob.FedBuff(eta=0.5, staleness=Polynomial(a=0.5))
    assert experiment.client == ob.SGD(lr=0.1)
    assert experiment.scheduler == ob.Buffered(concurrency=8, buffer=4)
    assert experiment.environment == ob.Environment(delay=HalfNormal())
    assert experiment.seed == 3


@pytest.mark.parametrize("preset", PRESETS)
def test_describing_and_parsing_again_changes_nothing(preset: str) -> None:
    table = tomllib.loads(text(preset))
    table.pop("variants", None)
    experiment = config.parse(table)
    written = config.dump(experiment)
    again = config.parse(tomllib.loads(written))
    assert config.dump(again) == written
    assert again.algorithm == experiment.algorithm
    assert again.data == experiment.data
    assert again.environment == experiment.environment


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_scheduler_without_a_name_is_the_algorithms_default(name: str) -> None:
    """One file can then serve a grid over all algorithms."""
    rule = ALGORITHMS[name]
    client = f"client={{name='{rule.client_rule or 'sgd'}',steps=1}}"
    experiment = config.parse(with_(f"algorithm.name={name}", client, "compression.upload=top-k"))
    assert isinstance(experiment.scheduler, SCHEDULERS[rule.schedulers[0]])
    assert (experiment.scheduler.concurrency or 8) == 8


@pytest.mark.parametrize("name", [name for name in DELAYS if name not in ("fedscale", "flash")])  # these need a file
def test_every_delay_by_its_name(name: str) -> None:
    assert isinstance(config.parse(with_(f"environment.delay={name}")).environment.delay, DELAYS[name])


def test_names_are_forgiving_about_case_and_underscores() -> None:
    experiment = config.parse(with_("algorithm.name=MF_CA2FL", "environment.delay=half_normal"))
    assert experiment.algorithm == ob.algorithms.MFCA2FL(eta=0.5)


@pytest.mark.parametrize(
    ("assignments", "expected"),
    [
        (["algoritm.name=ca2fl"], ["algoritm: unknown key", "Did you mean 'algorithm'?", "rounds"]),
        (["algorithm.name=ca3fl"], ["algorithm.name: unknown name 'ca3fl'", "fedbuff", "Did you mean 'ca2fl'?"]),
        (["algorithm.etta=1"], ["algorithm.etta: unknown key", "Did you mean 'eta'?"]),
        (["algorithm.eta=-1"], ["algorithm.eta: -1 is not a number > 0"]),
        (["algorithm.eta=nan"], ["algorithm.eta: nan is not"]),
        (["algorithm.eta=fast"], ["algorithm.eta: 'fast'", "number"]),
        (["algorithm.name=mf-ca2fl", "algorithm.bits=3"], ["algorithm.bits: 3", "8, 4, 2"]),
        (["algorithm.cache.name=dens"], ["algorithm.cache.name: unknown name 'dens'", "'dense'"]),
        (["client.epochs=2", "client.steps=3"], ["client.steps: 3 given with epochs = 2"]),
        (["client.batch_size=0"], ["client.batch_size: 0 is not an integer ≥ 1"]),
        (["client.batch_size=2.5"], ["client.batch_size: 2.5 is not an integer ≥ 1"]),
        (["scheduler.buffer=9"], ["scheduler.buffer: 9 updates", "at most 8"]),
        (["scheduler.bufer=2"], ["scheduler.bufer: unknown key", "Did you mean 'buffer'?"]),
        (["algorithm.name=fedasync", "scheduler=rounds"], ["scheduler.name: FedAsync does not support 'rounds'"]),
        (["scheduler.name=rounds", "scheduler.deadline=2.0"], ["scheduler.buffer: unknown key"]),
        (["environment.loss=0.1"], ["environment.trip_timeout: required with loss = 0.1"]),
        (["environment.loss=1.5", "environment.trip_timeout=1"], ["environment.loss: 1.5 is not a number ≥ 0 and < 1"]),
        (["environment.delay.name=gamma"], ["environment.delay.name: unknown name 'gamma'", "log-normal"]),
        (["environment=3"], ["environment: 3 is not a table"]),
        (["data.name=digit"], ["data.name: unknown name 'digit'", "Did you mean 'digits'?"]),
        (["data.partition.alfa=1"], ["data.partition.alfa: unknown key", "Did you mean 'alpha'?"]),
        (["data.cliens=3"], ["data.cliens: unknown key", "Did you mean 'clients'?"]),
        (["model.hidden=[3]"], ["model.hidden: unknown key"]),
        (["rounds=0"], ["rounds: 0 is not an integer ≥ 1"]),
        (["rounds=1.5"], ["rounds: 1.5 is not an integer ≥ 1"]),
        (["seed=-1"], ["seed: -1 is not an integer ≥ 0"]),
        (["device=tpu"], ["device: 'tpu'", "'cpu', 'cuda'"]),
        (["evaluation.evry=1"], ["evaluation.evry: unknown key", "Did you mean 'every'?"]),
    ],
)  # fmt: skip
def test_errors_name_the_key_and_the_valid_values(assignments: list[str], expected: list[str]) -> None:
    said = message(*assignments)
    for part in expected:
        assert part in said


@pytest.mark.parametrize(
    ("assignments", "expected"),
    [
        (["scheduler.concurrency=21"], ["scheduler.concurrency: 21 busy clients of 20"]),
        (["data.partition={name='label-shards',classes=11}"], ["data.partition.classes: 11", "only 10"]),
        (["client.batch_size=5000"], ["client.batch_size: 5000", "1437 training examples"]),
        (["data.clients=5000"], ["data.clients: 5000 clients for 1437 examples"]),
        (["data.partition.min_size=100"], ["data.partition.min_size: 100 examples for each of 20 clients"]),
        (["model=tests.support.custom_objects:narrow"], ["model", "(2, 7)", "(2, 10)"]),
        (
            ["model=tests.support.custom_objects:normed", "executor=vectorized"],
            ["client.batch_size: client ", "BatchNorm", "drop_last = true"],
        ),
        (
            ["model=tests.support.custom_objects:mixing", "executor=vectorized"],
            ["executor: 'vectorized' cannot", "mixes the examples"],
        ),
        (["model=tests.support.custom_objects:wrong_input"], ["model", "does not accept inputs of shape [1, 8, 8]"]),
        (["model=tests.support.custom_objects:missing"], ["model.name", "has no 'missing'"]),
        (["model=no_such_module:thing"], ["model.name: cannot import 'no_such_module'"]),
        (["data.partition=tests.support.custom_objects:leaves_one_out"], ["client 19 has no data"]),
        (["model.name=cnn", "data.name=synthetic"], ["model.name: cnn needs inputs of (channels"]),
    ],
)  # fmt: skip
def test_inconsistent_settings_are_rejected_before_anything_is_written(
    assignments: list[str], expected: list[str]
) -> None:
    said = message(*assignments, assemble=True)
    for part in expected:
        assert part in said


def test_custom_objects_by_name() -> None:
    table = with_(
        "model={name='tests.support.custom_objects:make_model',width=5}",
        "data.name=tests.support.custom_objects:make_data",
        "data.partition=tests.support.custom_objects:every_third",
        "data.clients=3",
        "scheduler={concurrency=3,buffer=1}",
        "algorithm={name='tests.support.custom_objects:SignBuff',scale=0.25}",
    )
    experiment = config.parse(table)
    work = experiment.assemble()
    assert isinstance(work.context.module, nn.Sequential)
    assert work.context.module[1].out_features == 5
    assert list(work.context.data.indices(1)[:3]) == [1, 4, 7]
    assert config.dump(config.parse(tomllib.loads(config.dump(experiment)))) == config.dump(experiment)


def test_files_that_are_not_toml(tmp_path: pathlib.Path) -> None:
    (tmp_path / "bad.toml").write_text("rounds = = 3")
    with pytest.raises(ob.ConfigError, match="not valid TOML"):
        config.read(tmp_path / "bad.toml")
    with pytest.raises(ob.ConfigError, match=r"cannot read .*none\.toml: No such file"):
        config.read(tmp_path / "none.toml")
    with pytest.raises(ob.ConfigError, match="expected KEY=VALUE"):
        config.override({}, "algorithm.eta")
