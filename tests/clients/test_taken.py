"""What a client keeps agrees with the server also when its updates are lost or refused after it has trained."""

from __future__ import annotations

import threading

import pytest
import torch
from tests.experiments.test_resume_everything import experiment

import offbeat as ob
from offbeat.chaos.messages import Unreliable
from offbeat.clients.scaffold import ControlVariate
from offbeat.compression import TopK
from offbeat.engine import Simulated
from offbeat.engine.executors import Sequential
from offbeat.experiments.drive import alone
from offbeat.experiments.experiment import Assembly
from offbeat.experiments.reality import Reality
from offbeat.experiments.run import Run
from offbeat.messages import Job

SCAFFOLD = ob.Scaffold(lr=0.1, steps=3, batch_size=8)


def both_ends(run: Run) -> tuple[torch.Tensor, torch.Tensor]:
    """The server's c, and the mean of the c_i with which clients would begin their next jobs."""
    work, loop = run.assembly.work, run.loop
    assert isinstance(loop.half, ControlVariate)
    rows = []
    for client in range(6):
        job = Job(10**6, client, 0, loop.algorithm.x, 3, 0, taken=loop.taken.get(client, 0) if loop.keeping else None)
        rows.append(work.kept_by(job)["c_i"])
    return loop.half.c, torch.stack(rows).mean(0)


def unreliable(assembly: Assembly, rate: float) -> Unreliable:
    inner = Simulated(assembly.world, assembly.executor, 0)
    return Unreliable(inner, assembly.work.layout, 6, 3, timeout=12.0, until=1e9, rate=rate)


@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_scaffolds_c_is_the_mean_of_the_c_i_whatever_is_lost(rate: float) -> None:
    assembly = experiment(client=SCAFFOLD, rounds=60).assemble()
    run = Run(assembly, threading.Event(), None, None, unreliable(assembly, rate), Reality.simulated(assembly))
    alone(run)
    assert run.loop.keeping
    c, mean = both_ends(run)
    assert c.norm() > 0.05
    torch.testing.assert_close(c, mean, rtol=1e-4, atol=1e-5)


def test_an_update_that_the_gate_refuses_is_not_kept_by_its_client() -> None:
    plain = Run(experiment(client=SCAFFOLD, rounds=20).assemble(), threading.Event(), None, None)
    alone(plain)
    assert not plain.loop.keeping, "nothing is ever refused, and nothing need be remembered"
    picky = experiment(client=SCAFFOLD, rounds=20, gate=ob.Gate(max_staleness=0))
    run = Run(picky.assemble(), threading.Event(), None, None)
    assert alone(run).summary["refused"]["too stale"] > 3
    c, mean = both_ends(run)
    torch.testing.assert_close(c, mean, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("taken", [0, 1, None])
def test_a_client_goes_back_to_what_it_kept_before(taken: int | None) -> None:
    """Of a rule, and of a code's error."""
    compression = ob.Compression(upload=TopK(rate=0.2), error_feedback=True)
    described = experiment(client=SCAFFOLD, compression=compression)
    one, fresh = (described.assemble().work for _ in range(2))
    x = one.layout.read(one.module)
    extra = {"c": torch.zeros_like(x)}
    first = Job(1, 2, 0, x, 3, 7, extra=extra, taken=0 if taken is not None else None)
    second = Job(2, 2, 0, x, 3, 8, extra=extra, taken=taken)
    (_, again), (alone_,) = Sequential(one).train([first, second]), Sequential(fresh).train([second])
    undone = torch.equal(again.delta, alone_.delta) and torch.equal(one.kept["c_i"][2], fresh.kept["c_i"][2])
    assert undone == (taken == 0)


def test_a_real_client_remembers_it_in_its_context() -> None:
    pytest.importorskip("flwr", reason="needs the extra 'flower'")
    from flwr.app import Context, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    from offbeat.deploy.client import Client

    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    described = experiment(client=SCAFFOLD)
    x = described.assemble().work.layout.read(described.assemble().work.module)

    def answers(*trips: tuple[int, int]) -> list[bytes]:
        """What a node sends, each time from a new process; a trip is a job and the last one that was taken."""
        context, found = Context(1, 1, {"partition-id": 0}, RecordDict(), {}), []
        for number, taken in trips:
            client = Client(described, {"partition-id": 0})
            job = Job(number, 0, 0, x, 3, number, extra={"c": torch.zeros_like(x)}, taken=taken)
            reply = client.train(client.wire.message(job, 1, 60.0), context)
            found.append(client.wire.payload(job, reply.content)[0])
        return found

    whole = answers((1, 0), (2, 1), (3, 2))
    assert answers((2, 0))[0] == answers((1, 0), (2, 0))[1] != whole[1], "the first was lost"
    assert answers((1, 0), (3, 1))[1] == answers((1, 0), (2, 1), (3, 1))[2] != whole[2], "the second was lost"
