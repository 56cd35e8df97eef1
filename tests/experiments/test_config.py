"""TOML in, experiment out, and every mistake named."""

from __future__ import annotations

import pathlib
import tomllib
from typing import Any

import pytest
from torch import nn

import offbeat as ob
from offbeat.algorithms import ALGORITHMS
from offbeat.algorithms.staleness import Polynomial
from offbeat.engine import DISPATCHES
from offbeat.experiments import config
from offbeat.experiments.presets import PRESETS, text
from offbeat.world import DELAYS, HalfNormal

BASE: dict[str, Any] = {
    "rounds": 5,
    "algorithm": {"name": "ca2fl", "eta": 0.5},
    "client": {"name": "sgd", "lr": 0.1},
    "dispatch": {"concurrency": 8, "buffer": 4},
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
    assert experiment.dispatch == ob.Buffered(concurrency=8, buffer=4)
    assert experiment.world == ob.World(delay=HalfNormal())
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
    assert again.world == experiment.world


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_dispatch_without_a_name_is_the_algorithms_own(name: str) -> None:
    """So that one file serves a grid over all algorithms."""
    rule = ALGORITHMS[name]
    client = f"client={{name='{rule.client_rule or 'sgd'}',steps=1}}"
    experiment = config.parse(with_(f"algorithm.name={name}", client, "compression.upload=top-k"))
    assert isinstance(experiment.dispatch, DISPATCHES[rule.dispatches[0]])
    assert getattr(experiment.dispatch, "concurrency", 8) == 8


@pytest.mark.parametrize("name", [name for name in DELAYS if name not in ("fedscale", "flash")])  # these need a file
def test_every_delay_by_its_name(name: str) -> None:
    assert isinstance(config.parse(with_(f"world.delay={name}")).world.delay, DELAYS[name])


def test_names_are_forgiving_about_case_and_underscores() -> None:
    experiment = config.parse(with_("algorithm.name=MF_CA2FL", "world.delay=half_normal"))
    assert experiment.algorithm == ob.MFCA2FL(eta=0.5)


@pytest.mark.parametrize(
    ("assignments", "expected"),
    [
        (["algoritm.name=ca2fl"], ["algoritm: unknown key", "Did you mean 'algorithm'?", "rounds"]),
        (["algorithm.name=ca3fl"], ["algorithm.name: unknown name 'ca3fl'", "fedbuff", "Did you mean 'ca2fl'?"]),
        (["algorithm.etta=1"], ["algorithm.etta: unknown key", "Did you mean 'eta'?"]),
        (["algorithm.eta=-1"], ["algorithm.eta: -1.0 is not a number > 0"]),
        (["algorithm.eta=nan"], ["algorithm.eta: nan is not"]),
        (["algorithm.eta=fast"], ["algorithm.eta: 'fast'", "number"]),
        (["algorithm.name=mf-ca2fl", "algorithm.bits=3"], ["algorithm.bits: 3", "8, 4 or 2"]),
        (["algorithm.memory.name=dens"], ["algorithm.memory.name: unknown name 'dens'", "'dense'"]),
        (["client.epochs=2", "client.steps=3"], ["client.steps: 3 given beside epochs = 2"]),
        (["client.batch_size=0"], ["client.batch_size: 0 is not a number ≥ 1"]),
        (["client.batch_size=2.5"], ["client.batch_size: 2.5", "integer"]),
        (["dispatch.buffer=9"], ["dispatch.buffer: 9 updates", "at most 8"]),
        (["dispatch.bufer=2"], ["dispatch.bufer: unknown key", "Did you mean 'buffer'?"]),
        (["algorithm.name=fedasync", "dispatch=rounds"], ["dispatch.name: 'rounds' makes no sense for FedAsync"]),
        (["dispatch.name=rounds", "dispatch.deadline=2.0"], ["dispatch.buffer: unknown key"]),
        (["world.loss=0.1"], ["world.trip_timeout: needed with loss = 0.1"]),
        (["world.loss=1.5", "world.trip_timeout=1"], ["world.loss: 1.5 is not a number ≥ 0 and < 1"]),
        (["world.delay.name=gamma"], ["world.delay.name: unknown name 'gamma'", "log-normal"]),
        (["world=3"], ["world: 3 is not a table"]),
        (["data.name=digit"], ["data.name: unknown name 'digit'", "Did you mean 'digits'?"]),
        (["data.partition.alfa=1"], ["data.partition.alfa: unknown key", "Did you mean 'alpha'?"]),
        (["data.cliens=3"], ["data.cliens: unknown key", "Did you mean 'clients'?"]),
        (["model.hidden=[3]"], ["model.hidden: unknown key"]),
        (["rounds=0"], ["rounds: 0 is not a number ≥ 1"]),
        (["rounds=1.5"], ["rounds: 1.5", "integer"]),
        (["seed=-1"], ["seed: -1 is not a number ≥ 0"]),
        (["device=tpu"], ["device: 'tpu'", "'cpu' or 'cuda'"]),
        (["evaluation.evry=1"], ["evaluation.evry: unknown key", "Did you mean 'every'?"]),
    ],
)  # fmt: skip
def test_mistakes_are_named(assignments: list[str], expected: list[str]) -> None:
    said = message(*assignments)
    for part in expected:
        assert part in said


@pytest.mark.parametrize(
    ("assignments", "expected"),
    [
        (["dispatch.concurrency=21"], ["dispatch.concurrency: 21 busy clients of 20"]),
        (["data.partition={name='classes',classes=11}"], ["data.partition.classes: 11 classes a client", "has 10"]),
        (["client.batch_size=5000"], ["client.batch_size: 5000", "1437 training examples"]),
        (["data.clients=5000"], ["data.clients: 5000 clients for 1437 examples"]),
        (["data.partition.min_size=100"], ["data.partition.min_size: 100 for 20 clients"]),
        (["model=tests.experiments.own_things:narrow"], ["model", "(2, 7)", "(2, 10)"]),
        (
            ["model=tests.experiments.own_things:normed", "executor=vectorised"],
            ["executor: 'vectorised' cannot", "mixes the examples"],
        ),
        (["model=tests.experiments.own_things:wrong_input"], ["model", "does not take inputs of shape [1, 8, 8]"]),
        (["model=tests.experiments.own_things:missing"], ["model.name", "has no 'missing'"]),
        (["model=no_such_module:thing"], ["model.name: cannot import 'no_such_module'"]),
        (["data.partition=tests.experiments.own_things:leaves_one_out"], ["client 19 has no data"]),
        (["model.name=cnn", "data.name=synthetic"], ["model.name: cnn needs inputs of (channels"]),
    ],
)  # fmt: skip
def test_what_does_not_fit_together_is_refused_before_anything_is_written(
    assignments: list[str], expected: list[str]
) -> None:
    said = message(*assignments, assemble=True)
    for part in expected:
        assert part in said


def test_ones_own_things_by_name() -> None:
    table = with_(
        "model={name='tests.experiments.own_things:make_model',width=5}",
        "data.name=tests.experiments.own_things:make_data",
        "data.partition=tests.experiments.own_things:every_third",
        "data.clients=3",
        "dispatch={concurrency=3,buffer=1}",
        "algorithm={name='tests.experiments.own_things:SignBuff',scale=0.25}",
    )
    experiment = config.parse(table)
    work = experiment.assemble().work
    assert isinstance(work.module, nn.Sequential)
    assert work.module[1].out_features == 5
    assert list(work.data.indices(1)[:3]) == [1, 4, 7]
    assert config.dump(config.parse(tomllib.loads(config.dump(experiment)))) == config.dump(experiment)


def test_files_that_are_not_toml(tmp_path: pathlib.Path) -> None:
    (tmp_path / "bad.toml").write_text("rounds = = 3")
    with pytest.raises(ob.ConfigError, match="not valid TOML"):
        config.read(tmp_path / "bad.toml")
    with pytest.raises(ob.ConfigError, match=r"cannot read .*none\.toml: No such file"):
        config.read(tmp_path / "none.toml")
    with pytest.raises(ob.ConfigError, match="expected KEY=VALUE"):
        config.override({}, "algorithm.eta")
