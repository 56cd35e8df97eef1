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
