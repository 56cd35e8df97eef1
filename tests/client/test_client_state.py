"""Client state of any shape: in stacks, worker processes, on Flower nodes, and rolled back."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tests.support.executors import deltas, federated, jobs, work
from tests.support.experiments import experiment
from tests.support.local_loops import Distill, Remembering
from torch import Tensor, nn

import offbeat as ob
from offbeat.client.rules import SGD, ClientRule, State
from offbeat.executors import Sequential
from offbeat.messages import Job

MLP = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.Tanh(), nn.Linear(6, 4))
REMEMBERING = Remembering(lr=0.05, epochs=2, batch_size=8)


@dataclass(kw_only=True, frozen=True)
class WholeRemembering(Remembering):
    """Steps on the whole vector instead of parameter by parameter."""

    elementwise = False


@pytest.mark.parametrize("kind", [Remembering, WholeRemembering])
def test_state_of_any_shape_is_the_same_in_a_stack(kind: type[Remembering]) -> None:
    rule = kind(lr=0.05, epochs=2, batch_size=8)
    one, stacked = (work(copy.deepcopy(MLP), rule) for _ in range(2))
    for _ in range(2):  # the second time with the state of the first
        js = jobs(one)
        torch.testing.assert_close(
            deltas("vectorized", stacked, js), deltas("sequential", one, js), rtol=1e-4, atol=1e-6
        )
    for name in rule.client_state:
        for client, value in one.state.rows[name].items():
            torch.testing.assert_close(stacked.state.rows[name][client], value, rtol=1e-4, atol=1e-6)
            assert stacked.state.rows[name][client].dtype == value.dtype
    steps = [one.context.steps(client) for client in range(6)]
    assert [one.state.rows["taken"][client].tolist() for client in range(6)] == [[2 * k] for k in steps]
    matrix = torch.eye(2, 3)
    for _ in range(2 * steps[3]):
        matrix = 0.5 * matrix + 1
    assert torch.equal(one.state.rows["matrix"][3], matrix)


def test_a_job_starts_with_the_stored_state_or_the_initial_one_of_its_own_model() -> None:
    runtime = work(copy.deepcopy(MLP), REMEMBERING)
    first = jobs(runtime)[2]
    assert torch.equal(runtime.begin(first)["memory"], 0.01 * first.x)
    Sequential(runtime).train([first])
    again = runtime.begin(first)
    assert again["taken"].tolist() == [runtime.context.steps(2)]
    assert again["memory"] is runtime.state.rows["memory"][2]
    assert runtime.begin(jobs(runtime)[3])["taken"].tolist() == [0]
    runtime.state.set("taken", 3, torch.tensor([7]))  # a rule may return a part of its state
    partly = runtime.begin(jobs(runtime)[3])
    assert partly["taken"].tolist() == [7]
    assert torch.equal(partly["matrix"], torch.eye(2, 3))


@dataclass(kw_only=True, frozen=True)
class Initial(SGD):
    value: Any = None

    client_state = ("a",)

    def initial_state(self, x: Tensor) -> State:
        state: State = self.value
        return state


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "Initial.initial_state returned NoneType; one tensor per name in .'a',. is needed"),
        ({}, r"Initial.initial_state returned \[\]; one tensor per name"),
        ({"a": torch.ones(1), "b": torch.ones(1)}, r"returned \['a', 'b'\]; one tensor per name"),
        ({"a": 3.0}, "Initial.initial_state: 'a' is float; a tensor is needed"),
        ({"a": torch.tensor(3.0)}, r"'a' has no dimension, so that clients cannot be stacked; use shape \(1,\)"),
    ],
)
def test_wrong_initial_state(value: Any, message: str) -> None:
    runtime = work(copy.deepcopy(MLP), Initial(value=value))
    with pytest.raises(ob.ConfigError, match=message):
        Sequential(runtime).train(jobs(runtime))


def test_a_model_of_many_clients_stores_nothing_for_those_that_have_not_trained() -> None:
    runtime = work(copy.deepcopy(MLP), REMEMBERING, federated())
    Sequential(runtime).train(jobs(runtime)[:2])
    assert {client for rows in runtime.state.rows.values() for client in rows} == {0, 1}
    assert runtime.state.nbytes == 2 * (4 * runtime.context.layout.dim + 8 + 4 * 6)


@pytest.mark.parametrize(
    "client", [Distill(lr=0.01, steps=3, batch_size=8), REMEMBERING], ids=lambda r: r.name or "own"
)
def test_a_flower_node_trains_like_the_simulator_and_stores_the_state_in_its_context(client: ClientRule) -> None:
    """Each job in a new process; the second update is lost, and rolled back."""
    pytest.importorskip("flwr", reason="needs the extra 'flower'")
    from flwr.app import Context, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    from offbeat.flower.client import NodeClient, node_data

    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    described = experiment(client=client)
    node: dict[str, Any] = {"partition-id": 0}
    runtime = described.assemble().runtime
    runtime.context.data = node_data(described, node)
    x = runtime.context.layout.read(runtime.context.module)
    context = Context(1, 1, node, RecordDict(), {})
    for number, last in ((1, 0), (2, 1), (3, 1), (4, 3)):
        job = Job(number, 0, 0, x, runtime.context.steps(0), number, last_accepted_job=last)
        (simulated,) = Sequential(runtime).train([job])
        there = NodeClient(described, node)
        reply = there.train(there.wire.message(job, 1, 60.0), context)
        update, _ = there.wire.decode_reply(job, reply.content)
        assert torch.equal(update.delta, simulated.delta)
        assert update.extra.keys() == simulated.extra.keys()
        assert all(torch.equal(value, simulated.extra[name]) for name, value in update.extra.items())
        for name, rows in runtime.state.rows.items():
            if 0 in rows:
                assert torch.equal(there.runtime.state.rows[name][0], rows[0])
                assert there.runtime.state.rows[name][0].dtype == rows[0].dtype
