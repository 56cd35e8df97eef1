"""Client state stays consistent with the server when updates are lost or rejected after training."""

from __future__ import annotations

import pytest
import torch
from tests.support.experiments import experiment

import offbeat as ob
from offbeat.client.rules.scaffold import ControlVariate
from offbeat.compression import TopK
from offbeat.executors import Sequential
from offbeat.messages import Job
from offbeat.runs.assembly import Assembly
from offbeat.runs.drive import alone
from offbeat.runs.run import Run
from offbeat.simulation.transport import SimulatedTransport
from offbeat_chaos.messages import UnreliableTransport

SCAFFOLD = ob.client_rules.Scaffold(lr=0.1, steps=3, batch_size=8)


def both_ends(run: Run) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the server's c, and the mean of the c_i with which clients would start their next jobs."""
    runtime, loop = run.assembly.runtime, run.loop
    assert isinstance(loop.extension, ControlVariate)
    rows = []
    for client in range(6):
        job = Job(
            10**6,
            client,
            0,
            loop.algorithm.x,
            3,
            0,
            last_accepted_job=loop.last_accepted.get(client, 0) if loop.tracks_acceptance else None,
        )
        rows.append(runtime.begin(job)["c_i"])
    return loop.extension.c, torch.stack(rows).mean(0)


def unreliable(assembly: Assembly, rate: float) -> UnreliableTransport:
    inner = SimulatedTransport(assembly.environment, assembly.executor, 0)
    return UnreliableTransport(inner, assembly.context.layout, 6, 3, timeout=12.0, until=1e9, rate=rate)


@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_scaffolds_c_stays_the_mean_of_the_c_i_when_updates_are_lost(rate: float) -> None:
    assembly = experiment(client=SCAFFOLD, rounds=60).assemble()
    run = Run(assembly, transport=unreliable(assembly, rate))
    alone(run)
    assert run.loop.tracks_acceptance
    c, mean = both_ends(run)
    assert c.norm() > 0.05
    torch.testing.assert_close(c, mean, rtol=1e-4, atol=1e-5)


def test_a_client_drops_its_state_when_validation_rejects_its_update() -> None:
    plain = Run(experiment(client=SCAFFOLD, rounds=20).assemble())
    alone(plain)
    assert not plain.loop.tracks_acceptance, "nothing is ever refused, and nothing need be remembered"
    can_reject = experiment(client=SCAFFOLD, rounds=20, validation=ob.UpdateValidator(max_staleness=0))
    run = Run(can_reject.assemble())
    assert alone(run).summary["refused"]["too-stale"] > 3
    c, mean = both_ends(run)
    torch.testing.assert_close(c, mean, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("taken", [0, 1, None])
def test_a_client_rolls_back_to_its_state_before_a_rejected_update(taken: int | None) -> None:
    """This concerns the state of a rule and the residual of error feedback."""
    compression = ob.Compression(upload=TopK(rate=0.2), error_feedback=True)
    described = experiment(client=SCAFFOLD, compression=compression)
    one, fresh = (described.assemble().runtime for _ in range(2))
    x = one.context.layout.read(one.context.module)
    extra = {"c": torch.zeros_like(x)}
    first = Job(1, 2, 0, x, 3, 7, extra=extra, last_accepted_job=0 if taken is not None else None)
    second = Job(2, 2, 0, x, 3, 8, extra=extra, last_accepted_job=taken)
    (_, again), (alone_,) = Sequential(one).train([first, second]), Sequential(fresh).train([second])
    undone = torch.equal(again.delta, alone_.delta) and torch.equal(
        one.state.rows["c_i"][2], fresh.state.rows["c_i"][2]
    )
    assert undone == (taken == 0)


def test_a_flower_node_keeps_its_state_in_its_context() -> None:
    pytest.importorskip("flwr", reason="needs the extra 'flower'")
    from flwr.app import Context, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    from offbeat.flower.client import NodeClient

    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    described = experiment(client=SCAFFOLD)
    x = described.assemble().context.layout.read(described.assemble().context.module)

    def answers(*trips: tuple[int, int]) -> list[bytes]:
        """Return what a node sends, each time from a new process; a trip is a job and the last accepted one."""
        context, found = Context(1, 1, {"partition-id": 0}, RecordDict(), {}), []
        for number, taken in trips:
            client = NodeClient(described, {"partition-id": 0})
            job = Job(number, 0, 0, x, 3, number, extra={"c": torch.zeros_like(x)}, last_accepted_job=taken)
            reply = client.train(client.wire.message(job, 1, 60.0), context)
            found.append(client.wire.extract_payload(job, reply.content)[0])
        return found

    whole = answers((1, 0), (2, 1), (3, 2))
    assert answers((2, 0))[0] == answers((1, 0), (2, 0))[1] != whole[1], "the first was lost"
    assert answers((1, 0), (3, 1))[1] == answers((1, 0), (2, 1), (3, 1))[2] != whole[2], "the second was lost"
