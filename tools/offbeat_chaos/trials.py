"""Whole runs with and without faults of their messages."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

from offbeat.runs import api
from offbeat.runs.drive import alone
from offbeat.runs.run import Run
from offbeat.simulation.attack_simulation import AttackSimulator
from offbeat.simulation.transport import SimulatedTransport
from offbeat_chaos.messages import RATE, Unreliable
from offbeat_chaos.observer import RunObserver


def trial(
    folder: str, seed: int, data_dir: str | None, network: int | None = None, timeout: float = 0.0,
    until: float = 0.0, rate: float = RATE,
) -> dict[str, Any]:  # fmt: skip
    """The experiment of a run folder with another seed; `network` is the seed of an unreliable one."""
    experiment = dataclasses.replace(api.stored(pathlib.Path(folder)), seed=seed)
    if experiment.algorithm.network() is not None:
        return {"skipped": "clients that talk to each other have no messages that a server could miss"}
    assembly = experiment.assemble(data_dir)
    carrier = None
    if network is not None:
        forgers = AttackSimulator.of(assembly.environment.attack, assembly.runtime, assembly.attackers)
        inner = SimulatedTransport(assembly.environment, assembly.executor, seed, forgers)
        clients = assembly.context.data.clients
        carrier = Unreliable(inner, assembly.context.layout, clients, network, timeout, until, rate)
    run = Run(assembly, transport=carrier)
    witness = RunObserver(run)
    result = alone(run)
    found = {"accuracy": result.summary["accuracy_last10"], "updates": result.summary["updates"],
             "virtual_seconds": result.summary["virtual_seconds"], **witness.ledger()}  # fmt: skip
    if carrier is not None:
        found |= {
            "faults": dict(carrier.counts), "refused_for": result.summary["refused"], "surplus": carrier.surplus,
            "awaited": len(run.loop.out & carrier.awaited), "damaged": len(carrier.damaged),
            "damaged_absorbed": sorted(carrier.damaged & witness.accumulated.keys()),
        }  # fmt: skip
    return found
