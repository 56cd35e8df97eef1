"""Whole runs with and without faults of their messages."""

from __future__ import annotations

import dataclasses
import pathlib
import threading
from typing import Any

from offbeat.chaos.messages import RATE, Unreliable
from offbeat.chaos.witness import Witness
from offbeat.engine import Forgers, Simulated
from offbeat.experiments import api
from offbeat.experiments.drive import alone
from offbeat.experiments.reality import Reality
from offbeat.experiments.run import Run


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
        forgers = Forgers.of(assembly.world.attack, assembly.work)
        inner = Simulated(assembly.world, assembly.executor, seed, forgers)
        clients = assembly.work.data.clients
        carrier = Unreliable(inner, assembly.work.layout, clients, network, timeout, until, rate)
    run = Run(assembly, threading.Event(), None, None, carrier, Reality.simulated(assembly))
    witness = Witness(run)
    result = alone(run)
    found = {"accuracy": result.summary["accuracy_last10"], "updates": result.summary["updates"],
             "virtual_seconds": result.summary["virtual_seconds"], **witness.ledger()}  # fmt: skip
    if carrier is not None:
        found |= {
            "faults": dict(carrier.counts), "refused_for": result.summary["refused"], "surplus": carrier.surplus,
            "awaited": len(run.loop.out & carrier.awaited), "damaged": len(carrier.damaged),
            "damaged_absorbed": sorted(carrier.damaged & witness.absorbed.keys()),
        }  # fmt: skip
    return found
