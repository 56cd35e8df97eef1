"""An unreliable network: without faults it changes nothing, with them every message is accounted for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.support.experiments import experiment

import offbeat as ob
from offbeat.compression import Raw
from offbeat.messages import Job, Update
from offbeat.payload import WireError, decode_update, encode_update
from offbeat.runs.drive import alone
from offbeat.runs.result import RunResult
from offbeat.runs.run import Run
from offbeat.simulation.transport import SimulatedTransport
from offbeat.vectors import Layout
from offbeat_chaos.messages import CORRUPTIONS, FATES, UnreliableTransport
from offbeat_chaos.observer import RunObserver


def ran(seed: int, rate: float, **more: Any) -> tuple[RunResult, UnreliableTransport, dict[str, Any]]:
    assembly = experiment(client=ob.SGD(lr=0.1, steps=3, batch_size=8), **more).assemble()
    inner, clients = SimulatedTransport(assembly.environment, assembly.executor, 0), assembly.context.data.clients
    network = UnreliableTransport(inner, assembly.context.layout, clients, seed, timeout=12.0, until=30.0, rate=rate)
    run = Run(assembly, transport=network)
    observer = RunObserver(run)
    return alone(run), network, observer.ledger()


@pytest.mark.parametrize(
    "client", [ob.SGD(lr=0.1, steps=3, batch_size=8), ob.client_rules.Scaffold(lr=0.1, steps=3, batch_size=8)]
)
def test_a_network_without_faults_changes_nothing(client: ob.ClientRule) -> None:
    """Updates that travel as bytes arrive unchanged."""
    described = experiment(client=client)
    plain = alone(Run(described.assemble()))
    assembly = described.assemble()
    inner = SimulatedTransport(assembly.environment, assembly.executor, 0)
    network = UnreliableTransport(inner, assembly.context.layout, 6, 0, timeout=1e9, until=1.0, rate=0.0)
    passed = alone(Run(assembly, transport=network))
    assert torch.equal(passed.x, plain.x)
    assert {k: v for k, v in passed.summary.items() if k in ("updates", "bytes_up", "bytes_down", "refused")} == {
        k: v for k, v in plain.summary.items() if k in ("updates", "bytes_up", "bytes_down", "refused")
    }
    assert not network.counts


def test_every_message_is_accounted_for() -> None:
    result, network, ledger = ran(1, 0.08, rounds=150)
    assert {fate for fate in FATES if network.counts[fate]} == set(FATES)
    assert network.counts["vanished"] == 1
    assert sum(network.counts[f"corrupted: {name}"] for name, _ in CORRUPTIONS) == network.counts["corrupted"]
    ended = sum(ledger[name] for name in ("aggregated", "late", "lost", "refused"))
    assert ledger["sent"] == ended + ledger["in_flight"]
    assert ledger["unsolicited"] == network.surplus > 0
    assert ledger["accumulated"] == result.summary["updates"] == 300
    assert ledger["busy"] == ledger["in_flight"]
    assert ledger["longest"] == pytest.approx(12.0)  # what is given up, and nothing later


def test_the_same_seed_is_the_same_network() -> None:
    (one, first, _), (other, second, _), (third, _, _) = ran(5, 0.1), ran(5, 0.1), ran(6, 0.1)
    assert first.counts == second.counts
    assert torch.equal(one.x, other.x)
    assert not torch.equal(one.x, third.x)


@pytest.mark.parametrize("name", [name for name, _ in CORRUPTIONS])
def test_corrupted_payloads_are_rejected(name: str) -> None:
    layout = Layout(("w",), (torch.Size((9,)),))
    job = Job(7, 2, 3, torch.zeros(9), 5, 11)
    sent = Update(job=7, client=2, version=3, delta=torch.ones(9), steps=5, examples=4, wire_bytes=0)
    other = Update(job=6, client=1, version=3, delta=torch.ones(9), steps=5, examples=4, wire_bytes=0)
    payload, theirs = (encode_update(update, Raw(), layout, job) for update in (sent, other))
    for seed in range(50):
        damaged = dict(CORRUPTIONS)[name](payload, np.random.default_rng(seed), theirs)
        if damaged == payload:  # as when an even number of flips meets one bit
            continue
        try:
            came = decode_update(damaged, Raw(), layout, job)
        except WireError:
            continue
        assert isinstance(ob.UpdateValidator().examine(job, came, 0, job.x, {}, True), str)
