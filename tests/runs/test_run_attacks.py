"""Runs with attackers, from TOML to the updates at the server."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import offbeat as ob
from offbeat.errors import ConfigError
from offbeat.messages import Job, Update
from offbeat.random import torch_stream
from offbeat.report import payload, read
from offbeat.runs import api, config
from offbeat.runs.experiment import Experiment
from offbeat.runs.sweep import Sweep, _pools, merge
from offbeat.server.events import Arrival, Event
from offbeat.simulation.attack_simulation import AttackSimulator
from offbeat.simulation.transport import SimulatedTransport

BASE: dict[str, Any] = {
    "rounds": 8,
    "executor": "sequential",
    "algorithm": {"name": "fedbuff"},
    "scheduler": {"concurrency": 6, "buffer": 3},
    "data": {"name": "synthetic", "examples": 400, "test_examples": 50, "clients": 12},
    "model": {"name": "lr"},
    "client": {"lr": 0.1, "steps": 3, "batch_size": 8},
    "evaluation": {"every": 4},
}
FORGERIES: dict[str, dict[str, Any]] = {
    "sign-flip": {},
    "scaled": {"factor": -4.0},
    "gaussian": {"std": 0.5},
    "inner-product": {"epsilon": 2.0, "latest": 4},
    "a-little": {"latest": 5},
    "stale-replay": {},
}
TOP_K = {"compression": {"upload": {"name": "top-k", "rate": 0.2}, "error_feedback": True}}


def table(name: str | None, **more: Any) -> dict[str, Any]:
    """Return a run in which a third of the clients attack."""
    attack = {"name": name, "share": 0.33, **FORGERIES.get(name, {})} if name is not None else None
    return merge(BASE, more if attack is None else merge({"environment": {"attack": attack}}, more))


def experiment(name: str | None, **more: Any) -> Experiment:
    return config.parse(table(name, **more))


class Seen:
    """Return what clients computed and what arrived, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.computed: dict[int, Tensor] = {}
        self.arrived: list[tuple[Job, Update]] = []
        deliver, receive = SimulatedTransport.deliver, SimulatedTransport.receive

        def delivered(transport: SimulatedTransport, updates: list[Update]) -> None:
            self.computed |= {update.job: update.delta for update in updates}
            deliver(transport, updates)

        def received(transport: SimulatedTransport) -> Event:
            event = receive(transport)
            if isinstance(event, Arrival):
                self.arrived.append((event.job, event.update))
            return event

        monkeypatch.setattr(SimulatedTransport, "deliver", delivered)
        monkeypatch.setattr(SimulatedTransport, "receive", received)


def sent(name: str, delta: Any, first: Any, honest: list[Any], seed: int) -> Any:
    """Return a forged Δ as in the papers."""
    options = FORGERIES[name]
    known = np.stack(honest[-options.get("latest", 1) :] or [delta])
    if name == "gaussian":
        return options["std"] * torch.randn(len(delta), generator=torch_stream(seed, "attack")).numpy()
    return {
        "sign-flip": lambda: -delta,
        "scaled": lambda: options["factor"] * delta,
        "stale-replay": lambda: first,
        "inner-product": lambda: -options["epsilon"] * known.mean(axis=0),
        "a-little": lambda: known.mean(axis=0) - 1.5 * known.std(axis=0),
    }[name]()


@pytest.mark.parametrize("name", FORGERIES)
def test_a_run_equals_its_numpy_transcription(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recompute each arrival and x from what the clients computed."""
    seen, described = Seen(monkeypatch), experiment(name)
    assembly = described.assemble()
    x = assembly.context.layout.read(assembly.context.module).numpy().astype(np.float64)
    result = api.execute(described)
    attackers, honest, first, buffer = assembly.attackers, [], {}, []  # type: ignore[var-annotated]
    assert len(attackers) == 4
    for job, update in seen.arrived:
        expected = seen.computed[job.id].numpy()
        if job.client in attackers:
            own = first.setdefault(job.client, expected)
            expected = sent(name, expected, own, honest, job.seed)
        else:
            honest.append(expected)
        np.testing.assert_allclose(update.delta.numpy(), expected, rtol=1e-5, atol=1e-7)
        buffer.append(expected)
        if len(buffer) == 3:
            x, buffer = x + np.mean(buffer, axis=0), []
    np.testing.assert_allclose(result.x.numpy(), x, rtol=1e-4, atol=1e-5)
    assert any(job.client in attackers and job.version for job, _ in seen.arrived), "also later than at the beginning"


@pytest.mark.parametrize("more", [{}, TOP_K, {"client": {"name": "scaffold"}}], ids=["plain", "top-k", "scaffold"])
def test_attacks_without_attackers_change_no_bit(more: dict[str, Any], tmp_path: pathlib.Path) -> None:
    """Attacks without attackers, and attackers that send their honest Δ, which is encoded on arrival."""
    plain = api.execute(experiment(None, **more), out=tmp_path / "plain")
    for number, attack in enumerate(({"name": "sign-flip", "share": 0.0}, {"name": "scaled", "factor": 1.0})):
        result = api.execute(experiment(None, **more, environment={"attack": attack}), out=tmp_path / str(number))
        assert torch.equal(result.x, plain.x)
        logs = [(tmp_path / name / "updates.npy").read_bytes() for name in ("plain", str(number))]
        assert logs[0] == logs[1]
    one, other = (api.execute(experiment(name, **more)).x for name in ("sign-flip", "gaussian"))
    assert len({tuple(x.tolist()) for x in (plain.x, one, other)}) == 3
    minus = api.execute(
        experiment(None, **more, environment={"attack": {"name": "scaled", "factor": -1.0, "share": 0.33}})
    )
    assert torch.equal(minus.x, one), "a flipped sign is a factor of −1"


@pytest.mark.parametrize("name", [*FORGERIES, "label-flip"])
def test_honest_clients_of_the_first_version_are_unaffected_by_attackers(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def first(described: Experiment) -> dict[int, Tensor]:
        with monkeypatch.context() as patched:
            seen = Seen(patched)
            api.execute(described)
        return {job.client: update.delta for job, update in seen.arrived if job.version == 0}

    attackers = experiment(name).assemble().attackers
    free, attacked = first(experiment(None)), first(experiment(name))
    assert free.keys() == attacked.keys()
    same = {client for client in free if torch.equal(free[client], attacked[client])}
    assert same == free.keys() - (set() if name == "stale-replay" else attackers)


def test_forged_updates_pass_through_the_codec(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server receives top-k of −Δ plus the residual."""
    seen, described = Seen(monkeypatch), experiment("sign-flip", **TOP_K)
    assembly = described.assemble()
    api.execute(described)
    layout, codec, error = assembly.context.layout, described.compression.upload, dict[int, Tensor]()
    checked = 0
    for job, update in seen.arrived:
        if job.client in assembly.attackers:
            whole = -seen.computed[job.id] + error.get(job.client, torch.zeros_like(job.x))
            assert torch.equal(update.delta, codec.carry(whole, layout, job.seed))
            checked += job.client in error
            error[job.client] = whole - update.delta
        assert int((update.delta != 0).sum()) <= int(0.2 * layout.dim) + 1
    assert checked


def test_flipped_labels_are_the_attackers_alone() -> None:
    free, poisoned = (experiment(name).assemble() for name in (None, "label-flip"))
    before, after = free.context.data, poisoned.context.data
    classes = before.dataset.outputs
    assert len(poisoned.attackers) == 4
    for client in range(before.clients):
        was, became = (data.dataset.y[data.indices(client)] for data in (before, after))
        assert torch.equal(became, classes - 1 - was if client in poisoned.attackers else was)
    assert torch.equal(before.dataset.test_y, after.dataset.test_y)
    assert after.dataset.x is before.dataset.x


@pytest.mark.parametrize("name", ["inner-product", "stale-replay", "label-flip"])
def test_executors_agree(name: str) -> None:
    """Executors that train one by one agree bit for bit although they group jobs differently."""
    results = {kind: api.execute(experiment(name, executor=kind)).x for kind in ("sequential", "processes")}
    assert torch.equal(results["sequential"], results["processes"])
    stacked = api.execute(experiment(name, executor="vectorized")).x
    torch.testing.assert_close(stacked, results["sequential"], rtol=1e-3, atol=1e-4)


def test_a_pool_gives_what_separate_runs_give(tmp_path: pathlib.Path) -> None:
    variants = [{"label": "none"}]
    variants += [{"label": name, "environment": table(name)["environment"]} for name in (*FORGERIES, "label-flip")]
    plan = Sweep.plan(BASE | {"variants": variants, "executor": "vectorized", "rounds": 4}, [], [0, 1])
    assert sorted(map(len, _pools(plan.cells, None))) == [1, 1, 14], "labels of one's own are trained on alone"
    out = tmp_path / "pool"
    assert len(list(plan.run(out, None, lambda cells: [None] * len(cells)))) == 16
    for cell in plan.cells:
        alone = api.execute(config.parse(cell.table), out=tmp_path / "alone" / cell.folder)
        logs = [(tmp_path / kind / cell.folder / "updates.npy").read_bytes() for kind in ("pool", "alone")]
        assert logs[0] == logs[1]
        pooled = json.loads((out / cell.folder / "summary.json").read_text())
        assert pooled["loss"] == pytest.approx(alone.summary["loss"], rel=1e-3)
        assert pooled["attackers"] == alone.summary["attackers"] == (0 if cell.label == "none" else 4)


def test_validation_applies_to_forged_updates() -> None:
    """Forged values are checked individually, since no executor has checked them."""
    free = api.execute(experiment("scaled", environment={"attack": {"factor": 1e38}}, client={"lr": 100.0}))
    assert free.summary["refused"].keys() == {"not-finite"}
    bounded = api.execute(experiment("gaussian", environment={"attack": {"std": 100.0}}, validation={"max_norm": 50.0}))
    assert bounded.summary["refused"].keys() == {"norm-exceeded"}


def test_the_attackers_are_recorded_in_the_folder(tmp_path: pathlib.Path) -> None:
    described = experiment("sign-flip", seed=3)
    api.execute(described, out=tmp_path / "run")
    assert json.loads((tmp_path / "run/summary.json").read_text())["attackers"] == 4
    listed = json.loads((tmp_path / "run/setting.json").read_text())["attackers"]
    assert listed == sorted(described.assemble().attackers)
    assert config.parse(config.read(tmp_path / "run/config.toml")).environment == described.environment
    (record,) = read.records([tmp_path / "run"])
    assert payload.detail(record)["attackers"] == 4


def test_a_run_without_attack_has_no_attack_simulator(tmp_path: pathlib.Path) -> None:
    api.execute(experiment(None), out=tmp_path / "run")
    assert "attack" not in (tmp_path / "run/config.toml").read_text()
    assert "attackers" not in json.loads((tmp_path / "run/setting.json").read_text())
    assembly = experiment(None).assemble()
    assert AttackSimulator.of(assembly.environment.attack, assembly.runtime, assembly.attackers) is None


def test_gossip_supports_only_data_poisoning() -> None:
    network: dict[str, Any] = {
        "algorithm": {"name": "afga", "topology": "ring"},
        "scheduler": {"name": "rounds", "concurrency": 6},
        "executor": "vectorized",
    }
    poisoned, free = (config.parse(table(name) | network) for name in ("label-flip", None))
    assert not torch.equal(api.execute(poisoned).x, api.execute(free).x)
    with pytest.raises(ConfigError, match=r"environment\.attack: .*communicate with each other"):
        config.parse(table("sign-flip") | network).assemble()


def test_mistakes_name_the_key() -> None:
    for attack, key in (
        ({"name": "sign-flop"}, "environment.attack.name"),
        ({"share": 0.2}, "environment.attack.name"),
        ({"name": "sign-flip", "factor": 2.0}, "environment.attack.factor"),
        ({"name": "gaussian", "std": -1.0}, "environment.attack.std"),
    ):
        with pytest.raises(ConfigError) as caught:
            config.parse(BASE | {"environment": {"attack": attack}})
        assert caught.value.key == key


def test_a_deployment_rejects_attacks() -> None:
    pytest.importorskip("flwr", reason="needs the extra 'flower'")
    from offbeat.flower.server import assemble

    with pytest.raises(ConfigError, match=r"environment\.attack: attacks can only be simulated"):
        assemble(experiment("label-flip"), None)


def test_runs_from_python() -> None:
    from offbeat.data import Synthetic
    from offbeat.environment import InnerProduct
    from offbeat.models import LR

    result = ob.run(
        data=Synthetic(examples=200, test_examples=40), clients=10, model=LR(), algorithm=ob.FedBuff(), rounds=3,
        scheduler=ob.Buffered(concurrency=4, buffer=2), environment=ob.Environment(attack=InnerProduct(share=0.3)),
    )  # fmt: skip
    assert result.summary["attackers"] == 3


def test_a_custom_attack(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    seen = Seen(monkeypatch)
    described = experiment("tests.support.custom_objects:FreeRider", environment={"attack": {"factor": 0.5}})
    api.execute(described, out=tmp_path / "run")
    last, attackers = torch.zeros_like(seen.arrived[0][1].delta), described.assemble().attackers
    for job, update in seen.arrived:
        if job.client in attackers:
            assert torch.equal(update.delta, 0.5 * last)
        else:
            last = update.delta
    assert api.stored(tmp_path / "run").environment == described.environment
