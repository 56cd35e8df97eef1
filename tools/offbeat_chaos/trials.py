"""Whole runs with and without message faults."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

from offbeat.runs import api
from offbeat.runs.drive import alone
from offbeat.runs.run import Run
from offbeat.simulation.attack_simulation import AttackSimulator
from offbeat.simulation.transport import SimulatedTransport
from offbeat_chaos.messages import RATE, UnreliableTransport
from offbeat_chaos.observer import RunObserver


def trial(
    folder: str, seed: int, data_dir: str | None, network: int | None = None, timeout: float = 0.0,
    until: float = 0.0, rate: float = RATE,
) -> dict[str, Any]:  # fmt: skip
    """Run the experiment of a run folder with another seed and return its figures.

    Args:
        folder: The run folder whose experiment is used.
        seed: Seed of the experiment.
        data_dir: Folder of the data sets.
        network: Seed of an unreliable network; a reliable one when left out.
        timeout: Virtual seconds after which an unanswered job is given up.
        until: Virtual seconds within which clients vanish.
        rate: Share of the messages that suffers each fate.
    """
    experiment = dataclasses.replace(api.stored(pathlib.Path(folder)), seed=seed)
    if experiment.algorithm.network() is not None:
        return {"skipped": "clients that talk to each other exchange no messages with a server"}
    assembly = experiment.assemble(data_dir)
    transport = None
    if network is not None:
        attacks = AttackSimulator.of(assembly.environment.attack, assembly.runtime, assembly.attackers)
        inner = SimulatedTransport(assembly.environment, assembly.executor, seed, attacks)
        clients = assembly.context.data.clients
        transport = UnreliableTransport(inner, assembly.context.layout, clients, network, timeout, until, rate)
    run = Run(assembly, transport=transport)
    observer = RunObserver(run)
    result = alone(run)
    found = {"accuracy": result.summary["accuracy"], "updates": result.summary["updates"],
             "virtual_seconds": result.summary["virtual_seconds"], **observer.ledger()}  # fmt: skip
    if transport is not None:
        found |= {
            "faults": dict(transport.counts), "refused_for": result.summary["refused"], "surplus": transport.surplus,
            "awaited": len(run.loop.out & transport.awaited), "damaged": len(transport.damaged),
            "damaged_accumulated": sorted(transport.damaged & observer.accumulated.keys()),
        }  # fmt: skip
    return found
