"""Parameters that stay on the clients: FedPer, FedBN and FedRep under every rule and executor."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import pathlib
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import offbeat as ob
from offbeat.client.batches import plan
from offbeat.client.context import TrainingContext
from offbeat.client.personal_part import PERSONAL
from offbeat.client.rules import SGD, Adam, AdamW, ClientRule, Dyn, Prox, Scaffold, TorchOptimizer
from offbeat.client.runtime import ClientRuntime
from offbeat.compression import TopK
from offbeat.data import PartitionedDataset
from offbeat.environment import LogNormal
from offbeat.errors import ConfigError
from offbeat.executors import EXECUTORS, Graphs
from offbeat.messages import Job
from offbeat.random import key
from offbeat.runs import api, config
from offbeat.runs.custom import CustomModel

FEDPER = ob.Personalization(parameters=("head",))
FEDBN = ob.Personalization(norms=True)
FEDREP = ob.Personalization(parameters=("head.*",), head_steps=2)
EVERYTHING = ob.Personalization(parameters=("head",), norms=True, head_steps=2, fine_tune_steps=2)
KINDS = {"fedper": FEDPER, "fedbn": FEDBN, "fedrep": FEDREP, "everything": EVERYTHING}
CPU = torch.device("cpu")


class Net(nn.Module):
    """A body with BatchNorm and a head, which is not the last parameter of the module."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 4)
        self.body, self.norm = nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8)  # a bias would have no gradient

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(torch.relu(self.norm(self.body(x))))


def arrays(seed: int = 0, n: int = 144, shift: float = 0.0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 6)).astype(np.float32)
    y = (x[:, :4] + shift).argmax(axis=1)
    return x, y


def dataset() -> ob.Dataset:
    return ob.from_arrays(*arrays(), *arrays(1, 64), classes=4)


PARTS = [range(20), range(20, 50), range(50, 90), range(90, 106), range(106, 144)]


def settings(personalization: ob.Personalization | None = None, **more: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "data": dataset(), "partition": PARTS, "model": Net,
        "algorithm": ob.FedBuff(), "client": SGD(lr=0.1, batch_size=8, steps=3),
        "scheduler": ob.Buffered(concurrency=4, buffer=2), "environment": ob.Environment(delay=LogNormal()),
        "evaluation": ob.Evaluation(every=2, per_client=True, per_label=True), "rounds": 8, "executor": "sequential",
    }  # fmt: skip
    return base | ({} if personalization is None else {"personalization": personalization}) | more


def rounded(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    names = ("version", "client", "label", "accuracy", "loss")
    return [tuple(round(float(row[name]), 4) for name in names if name in row) for row in rows]


RULES: list[ClientRule] = [
    SGD(lr=0.1, batch_size=8, steps=3, momentum=0.9, clip_norm=0.5),
    AdamW(lr=0.01, batch_size=8, epochs=1),
    Scaffold(lr=0.1, batch_size=8, steps=3),
    Scaffold(lr=0.01, batch_size=8, steps=3, optimizer=Adam()),
    Dyn(lr=0.1, batch_size=8, steps=3, alpha=0.1),
    Prox(lr=0.1, batch_size=8, steps=3, mu=0.1),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_trajectory_in_stacks(kind: str, rule: ClientRule) -> None:
    """Stacks train jobs long before they arrive, but clients are tested with what has arrived."""
    one, many = (
        ob.run(**settings(KINDS[kind], client=rule, rounds=6, executor=name)) for name in ("sequential", "vectorized")
    )
    torch.testing.assert_close(one.x, many.x, rtol=1e-3, atol=1e-4)  # sums of products in another order
    for a, b in zip(one.client_evaluations, many.client_evaluations, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-3, abs=1e-4)
    assert one.summary["bytes_up"] == many.summary["bytes_up"]


@pytest.mark.parametrize("rule", [RULES[0], RULES[2]], ids=lambda rule: type(rule).__name__)
def test_the_same_bits_in_processes(rule: ClientRule) -> None:
    torch.set_num_threads(1)
    one, many = (
        ob.run(**settings(EVERYTHING, client=rule, rounds=4, executor=name)) for name in ("sequential", "processes")
    )
    assert torch.equal(one.x, many.x)
    assert one.client_evaluations == many.client_evaluations


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_updates_in_programs(kind: str, rule: ClientRule) -> None:
    """The programs that a GPU captures, here step by step; twice, so that the second jobs start from stored parts."""
    one, other = runtime(KINDS[kind], rule), runtime(KINDS[kind], rule)
    plain, programs = EXECUTORS["sequential"](one), Graphs(other, compiled=False)
    for turn in (1, 2):
        jobs = [job(one, client, number=5 * turn + client, accepted=5 * (turn - 1) + client) for client in range(5)]
        for a, b in zip(plain.train(jobs), programs.train(jobs), strict=True):
            torch.testing.assert_close(a.delta, b.delta, rtol=1e-3, atol=1e-4)
    for name, rows in one.state.rows.items():
        assert rows.keys() == other.state.rows[name].keys()
        for client, value in rows.items():
            torch.testing.assert_close(value, other.state.rows[name][client], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_nothing_personal_is_the_plain_algorithm(rule: ClientRule) -> None:
    """With one client, x and p_1 together follow the run in which everything is shared."""
    one: dict[str, Any] = {
        "partition": [range(144)],
        "scheduler": ob.Rounds(concurrency=1),
        "algorithm": ob.FedAvg(),
        "client": rule,
    }
    plain = ob.run(**settings(**one))
    for personal in (ob.Personalization(), ob.Personalization(parameters=("head",))):
        if personal.splits and not isinstance(rule, SGD | AdamW | Prox):
            continue  # what SCAFFOLD and FedDyn store concerns x only
        run = ob.run(**settings(personal, **one))
        assert [row["accuracy"] for row in run.evaluations] == [row["accuracy"] for row in plain.evaluations]
        losses = [row["loss"] for row in run.evaluations]
        # x + Δ is rounded once by the server and once, for p_1, by the client
        assert losses == pytest.approx([row["loss"] for row in plain.evaluations], rel=1e-4)


def runtime(personalization: ob.Personalization, rule: ClientRule, module: nn.Module | None = None) -> ClientRuntime:
    torch.manual_seed(0)
    data = PartitionedDataset.of(dataset(), PARTS)
    return ClientRuntime(TrainingContext(module or Net(), data, rule, CPU, personalization=personalization))


def job(w: ClientRuntime, client: int = 1, number: int = 1, accepted: int | None = 0) -> Job:
    x = w.context.split.shared.read(w.context.module)
    extension = w.server_extension()
    if extension is not None:
        extension.start(x, w.context.data.clients)
    extra = extension.extra() if extension is not None else {}
    steps = w.context.steps(client)
    return Job(number, client, 0, x, steps, key(3, client, number), extra=extra, last_accepted_job=accepted)


def test_fedrep_trains_the_head_and_then_the_body() -> None:
    """The reference freezes parameters as PyTorch users do, with a new optimizer for each part."""
    rule = SGD(lr=0.1, batch_size=8, steps=4, momentum=0.9, nesterov=True, clip_norm=0.3, weight_decay=0.01)
    w = runtime(ob.Personalization(parameters=("head",), head_steps=3), rule)
    assert w.context.steps(1) == 7
    module = copy.deepcopy(w.context.module).train()
    sent = job(w)
    batches, counts = w.context.plan(sent)
    for frozen, kept, rows in (("body norm", "head", range(3)), ("head", "body norm", range(3, 7))):
        moving = [p for name in kept.split() for p in getattr(module, name).parameters()]
        optimizer = torch.optim.SGD(moving, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)
        for p in (p for name in frozen.split() for p in getattr(module, name).parameters()):
            p.requires_grad_(requires_grad=False)
        for p in moving:
            p.requires_grad_()
        for row in rows:
            index = torch.from_numpy(batches[row][: counts[row]])
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(w.context.x[index]), w.context.y[index]).backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(moving, 0.3)
            optimizer.step()
    (update,) = EXECUTORS["sequential"](w).train([sent])
    own, _ = w.personal.of(1) if w.personal else (None, None)
    trained = dict(module.named_parameters())
    torch.testing.assert_close(sent.x + update.delta, w.context.split.shared.flatten(trained).detach())
    torch.testing.assert_close(own, w.context.split.own.flatten(trained).detach())


def test_fedrep_starts_the_counters_of_adam_again() -> None:
    """Without that, the first steps on the body would be too short: its moments are still near zero."""
    w = runtime(ob.Personalization(parameters=("head",), head_steps=5), Adam(lr=0.01, batch_size=8, steps=1))
    (update,) = EXECUTORS["sequential"](w).train([job(w)])
    moved = update.delta[update.delta != 0].abs()
    torch.testing.assert_close(moved, torch.full_like(moved, 0.01), rtol=0.01, atol=0)  # ε shortens small ones


def test_scaffolds_vectors_concern_x_only() -> None:
    """In FedRep, c_i is the mean gradient of the steps on x; what the rule stores for p_i stays zero."""
    rule = Scaffold(lr=0.1, batch_size=8, steps=4)
    for personal in (FEDPER, FEDREP):
        w = runtime(personal, rule)
        (update,) = EXECUTORS["sequential"](w).train([job(w)])
        torch.testing.assert_close(update.extra["change"], -update.delta / (4 * 0.1))
        item = w.item(job(w, number=2, accepted=1))
        d = w.context.split.shared.dim
        torch.testing.assert_close(item.client_state["c_i"][:d], update.extra["change"])
        assert not item.client_state["c_i"][d:].any()
        assert not item.job.extra["c"][d:].any()


@dataclasses.dataclass(kw_only=True, frozen=True)
class Previous(ClientRule):
    """Plain steps in a loop of its own, which remembers the last local model with everything that is personal."""

    client_state = ("previous",)

    def train(self, model: nn.Module, batches: Any, job: Any) -> dict[str, torch.Tensor]:
        for batch in batches:
            loss = batch.loss(batch.outputs(model)).mean()
            for p, g in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True):
                p.data -= job.lr * g
        return {"previous": nn.utils.parameters_to_vector(model.parameters()).detach()}


def test_loops_of_a_rules_own_train_both_parts() -> None:
    """As do classes of torch.optim; both do what SGD does, and what a loop stores is stored whole."""
    rules = (
        SGD(lr=0.1, batch_size=8),
        Previous(lr=0.1, batch_size=8),
        TorchOptimizer(torch.optim.SGD, lr=0.1, batch_size=8),
    )
    for personal in (FEDPER, FEDBN):
        found = []
        for rule in rules:
            w = runtime(personal, rule)
            train = EXECUTORS["sequential"](w).train
            found.append(torch.stack([train([job(w, number=n, accepted=n - 1)])[0].delta for n in (1, 2)]))
        torch.testing.assert_close(found[1], found[0])
        torch.testing.assert_close(found[2], found[0])
    w = runtime(FEDPER, Previous(lr=0.1, batch_size=8))
    EXECUTORS["sequential"](w).train([job(w)])
    assert w.item(job(w, number=2, accepted=1)).client_state["previous"].shape == (w.context.layout.dim,)


def test_a_loop_of_a_rules_own_has_no_steps_on_the_head() -> None:
    with pytest.raises(ConfigError, match="trains in a loop of its own") as caught:
        ob.run(**settings(FEDREP, client=Previous(lr=0.1, batch_size=8)))
    assert caught.value.key == "personalization.head_steps"


def test_norms_stay_with_their_statistics() -> None:
    w = runtime(FEDBN, SGD(lr=0.1, batch_size=8))
    split = w.context.split
    assert split.own.names == ("norm.weight", "norm.bias")
    assert split.own_buffers.names == ("norm.running_mean", "norm.running_var", "norm.num_batches_tracked")
    assert w.server_extension() is None
    assert w.auxiliary_sizes() == {}
    (update,) = EXECUTORS["sequential"](w).train([job(w)])
    assert not update.extra
    statistics = w.state.get("personal-buffers", 1)
    assert statistics is not None
    assert statistics[-1] == w.context.steps(1), "the batches that the client has counted"


def test_only_the_shared_part_travels() -> None:
    head, total = 8 * 4 + 4, sum(p.numel() for p in Net().parameters())
    statistics = 2 * 8 + 1
    for personal, floats in ((FEDPER, total - head + statistics), (FEDBN, total - 16), (EVERYTHING, total - head - 16)):
        run = ob.run(**settings(personal))
        sent = run.summary["updates"] + run.summary["late"]
        assert run.summary["bytes_up"] == 4 * floats * sent
        assert run.summary["parameters"] == len(run.x)
    w = runtime(FEDPER, SGD(lr=0.1, batch_size=8))
    sent_job = job(w)
    update, payload = w.train_to_bytes(sent_job)
    assert len(update.delta) == total - head
    header = len(payload) - 4 * (total - head + statistics)
    assert 0 < header < 200
    assert w.download_bytes(sent_job) == 4 * (total - head + statistics)


def test_a_client_forgets_what_was_not_accepted() -> None:
    w = runtime(FEDPER, SGD(lr=0.1, batch_size=8))
    train = EXECUTORS["sequential"](w).train
    train([job(w, number=1)])
    first = w.state.get(PERSONAL, 1)
    train([job(w, number=2, accepted=1)])
    second = w.state.get(PERSONAL, 1)
    assert first is not None
    assert second is not None
    assert not torch.equal(first, second)
    accepted = w.state.accepted(1, 1)[PERSONAL]
    assert accepted is not None
    assert torch.equal(accepted, first), "tests see the last accepted state"
    item = w.item(job(w, number=3, accepted=1))
    assert torch.equal(item.job.x[-len(first) :], first), "the second update was lost"
    assert torch.equal(w.state.get(PERSONAL, 1), first)  # type: ignore[arg-type]


def test_local_work_that_is_cut_short_leaves_a_step_on_x() -> None:
    w = runtime(ob.Personalization(parameters=("head",), head_steps=10), SGD(lr=0.1, batch_size=8, steps=5))
    short = dataclasses.replace(job(w), steps=4)
    (update,) = EXECUTORS["sequential"](w).train([short])
    assert update.delta.any()


def test_a_compressed_update_has_the_shared_dimension() -> None:
    run = ob.run(**settings(FEDPER, compression=ob.Compression(upload=TopK(rate=0.2), error_feedback=True)))
    assert run.summary["parameters"] == len(run.x)


LABELS = itertools.combinations(range(4), 2)


def skewed() -> tuple[ob.Dataset, list[Any]]:
    """Each client has two of the four labels, and calls them by names of its own."""
    x, y = arrays(0, 900)
    test_x, test_y = arrays(1, 600)
    rng = np.random.default_rng(2)
    owners, test_owners = rng.integers(6, size=len(y)), rng.integers(6, size=len(test_y))
    names = [rng.permutation(4) for _ in range(6)]
    y, test_y = (
        np.array([names[o][label] for o, label in zip(own, labels, strict=True)])
        for own, labels in ((owners, y), (test_owners, test_y))
    )
    data = ob.from_arrays(x, y, test_x, test_y, classes=4, owners=owners, test_owners=test_owners)
    return data, [np.flatnonzero(owners == client) for client in range(6)]


def test_a_personal_head_is_better_where_clients_disagree() -> None:
    data, parts = skewed()
    found = {}
    for name, personal in {"shared": ob.Personalization(), "personal": FEDPER, "fedrep": FEDREP}.items():
        change = {"data": data, "partition": parts, "rounds": 30, "client": SGD(lr=0.2, batch_size=16)}
        found[name] = ob.run(**settings(personal, **change)).accuracy
    assert found["shared"] < 0.5
    assert found["personal"] > 0.8
    assert found["fedrep"] > 0.8


@pytest.mark.parametrize(
    ("options", "where", "text"),
    [
        ({"parameters": ("hed.*",)}, "personalization.parameters", "no trainable parameter matches 'hed.*'; there are"),
        ({"parameters": ("*",)}, "personalization.parameters", "there is nothing to share"),
        ({"parameters": ("head", "body", "norm.*")}, "personalization.parameters", "there is nothing to share"),
        ({"head_steps": 3}, "personalization.head_steps", "there is none: give parameters or norms"),
    ],
)
def test_wrong_patterns_get_one_message(options: dict[str, Any], where: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        ob.run(**settings(), personalization=ob.Personalization(**options))
    assert caught.value.key in (where, where.rpartition(".")[2])


def test_a_model_without_norms_is_refused() -> None:
    with pytest.raises(ConfigError, match="no normalization layer") as caught:
        ob.run(**settings(FEDBN, model=lambda: nn.Linear(6, 4)))
    assert caught.value.key == "personalization.norms"


def test_gossip_is_refused() -> None:
    change = {"algorithm": ob.algorithms.DSGD(), "scheduler": ob.schedulers.Available(), "executor": "auto"}
    with pytest.raises(ConfigError, match="average whole models: remove personalization"):
        ob.run(**settings(FEDPER, **change))


def test_toml() -> None:
    table = {"personalization": {"parameters": ["fc.*"], "norms": True, "head_steps": 5, "fine_tune_steps": 2}}
    experiment = config.parse(table | {"scheduler": {"concurrency": 2, "buffer": 1}, "data": {"clients": 2}})
    assert experiment.personalization == ob.Personalization(
        parameters=("fc.*",), norms=True, head_steps=5, fine_tune_steps=2
    )
    assert config.describe(experiment)["personalization"]["parameters"] == ["fc.*"]


def test_fine_tuning_changes_only_what_is_tested() -> None:
    """The tested model is x after plain steps on the client's data; the run itself stays the same."""
    plain = ob.run(**settings())
    tuned = ob.run(**settings(ob.Personalization(fine_tune_steps=3)))
    assert torch.equal(plain.x, tuned.x)
    assert tuned.evaluations[0]["loss"] < plain.evaluations[0]["loss"]
    experiment = api_experiment(ob.Personalization(fine_tune_steps=3))
    assembly = experiment.assemble()
    context, rule = assembly.context, experiment.client
    assert assembly.evaluate.owners is not None
    for client in range(5):
        module = copy.deepcopy(context.module).train()
        optimizer = torch.optim.SGD(module.parameters(), lr=rule.lr)
        batches, counts = plan(context.data.size(client), 8, 3, key(0, "fine-tune", client, 0))
        for batch, count in zip(batches, counts, strict=True):
            index = torch.from_numpy(context.data.indices(client)[batch[:count]])
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(context.x[index]), context.y[index]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        own = torch.from_numpy(np.flatnonzero(assembly.evaluate.owners == client))
        with torch.no_grad():
            loss = nn.functional.cross_entropy(module.eval()(assembly.evaluate.x[own]), assembly.evaluate.y[own])
        row = next(row for row in tuned.client_evaluations if (row["version"], row["client"]) == (0, client))
        assert row["loss"] == pytest.approx(float(loss), rel=1e-4)


def api_experiment(personalization: ob.Personalization) -> ob.Experiment:
    given = settings(personalization)
    data = api._data(given.pop("data"), None, given.pop("partition"), None)
    return ob.Experiment(data=data, **(given | {"model": CustomModel(make=Net)}))


def test_the_final_heads_are_in_the_run_folder(tmp_path: pathlib.Path) -> None:
    from safetensors.torch import load_file

    class Models(ob.Callback):
        def on_evaluation(self, run: Any, line: dict[str, Any]) -> None:
            self.model, self.first = run.model(client=2), run.model()

    models = Models()
    run = ob.run(**settings(FEDPER, out=tmp_path / "run", callbacks=[models]))
    saved = load_file(tmp_path / "run" / "personal.safetensors")
    assert {name.split(".")[0] for name in saved} == {str(client) for client in range(5)}
    assert torch.equal(saved["2.head.weight"], models.model.head.weight)
    assert not torch.equal(models.first.head.weight, models.model.head.weight)
    assert torch.equal(models.first.body.weight, models.model.body.weight)
    assert run.personal.keys() == saved.keys()
    assert all(torch.equal(run.personal[name], value) for name, value in saved.items())
