"""The server's side of a deployment: an experiment, driven by real clients."""

from __future__ import annotations

import dataclasses
import pathlib
import threading
from collections.abc import Sequence

import torch
from flwr.serverapp import Grid
from torch import Tensor

from offbeat.algorithms.workload import Workload
from offbeat.errors import ConfigError, RunFolderError
from offbeat.flower.log import TripLog
from offbeat.flower.nodes import Nodes, live_environment
from offbeat.flower.replay import Replayed, turned
from offbeat.flower.secrets import keep, server_seed
from offbeat.flower.transport import Flower, check_rule
from offbeat.flower.wire import Flat
from offbeat.runs.api import resolved, stored
from offbeat.runs.assembly import Assembly
from offbeat.runs.callbacks import Callback
from offbeat.runs.drive import alone
from offbeat.runs.experiment import Experiment
from offbeat.runs.folder import Origin, read_json
from offbeat.runs.result import Result, Watch
from offbeat.runs.run import Run, server_settings
from offbeat.server import checkpoint
from offbeat.server.session import ServerSettings

TIMEOUT = 3600.0  # seconds for a trip, unless environment.trip_timeout says otherwise


def serve(
    experiment: Experiment,
    grid: Grid,
    out: pathlib.Path,
    *,
    interrupted: threading.Event | None = None,
    data_dir: str | None = None,
    modules: str | None = None,
    least: int | None = None,
    patience: float = 300.0,
    watch: Watch | None = None,
    callbacks: Sequence[Callback] = (),
) -> Result:
    """Run an experiment with the nodes of a grid, or go on with it where `out` holds one that was begun.

    `least` nodes are waited for, up to `patience` seconds: as many as are to be busy at once, unless it is given.
    """
    assembly = assemble(experiment, data_dir)
    nodes = Nodes(assembly.context.data.clients)
    wire = Flat(assembly.context.layout, experiment.compression)
    transport = Flower(grid, wire, nodes, experiment.environment.trip_timeout or TIMEOUT)
    run = Run(
        assembly, interrupted=interrupted, watch=watch, folder=out, transport=transport,
        settings=_settings(assembly, nodes, wire, out), callbacks=callbacks, checkpoint_every_version=True,
    )  # fmt: skip
    least = least or min(nodes.clients, experiment.scheduler.cohort(nodes.clients))
    begun = is_begun(out, assembly)
    if not begun:
        run.open(out, resolved(experiment, assembly), Origin(data_dir, modules))
    keep(run.loop.algorithm, out)
    transport.log = TripLog(out)
    try:
        if begun:
            run.reopen(out)
            if not run.metrics:
                transport.log.cut(0, 0)
        transport.start(least, patience)
        transport.adopt()
        return alone(run)
    finally:
        transport.close()
        transport.log.close()


def is_begun(out: pathlib.Path, assembly: Assembly) -> bool:
    """Whether the folder holds this experiment, unfinished."""
    if not (out / "config.toml").is_file():
        return False
    if (out / "summary.json").is_file():
        raise RunFolderError(f"{out} is finished")
    if resolved(assembly.experiment, assembly) != (out / "config.toml").read_text(encoding="utf-8"):
        raise RunFolderError(f"{out} holds another experiment: compare its config.toml")
    return True


@dataclasses.dataclass(frozen=True)
class Replay:
    """What came of a replay."""

    version: int
    updates: int
    same: bool  # x, to the last bit
    x: Tensor


def replay(folder: pathlib.Path, data_dir: str | None = None) -> Replay:
    """A deployment that has ended, or has left a checkpoint, once more from its log."""
    experiment = stored(folder)
    assembly = assemble(experiment, data_dir or Origin.of(folder).data_dir)
    version, x = _outcome(folder, assembly)
    nodes = Nodes(assembly.context.data.clients)
    wire = Flat(assembly.context.layout, experiment.compression)
    transport = Replayed(folder, wire, nodes)
    loop = dataclasses.replace(_settings(assembly, nodes, wire, folder), folder=None).loop(transport)
    same = turned(loop, version) and torch.equal(loop.algorithm.x, x)
    return Replay(loop.algorithm.version, transport.updates, same, loop.algorithm.x)


def _outcome(folder: pathlib.Path, assembly: Assembly) -> tuple[int, Tensor]:
    """The last version that is on disk, and its x."""
    if (folder / "summary.json").is_file():
        from safetensors.torch import load_file

        version: int = read_json(folder / "summary.json")["rounds"]
        return version, assembly.context.layout.flatten(load_file(folder / "model.safetensors"))
    state = checkpoint.load(folder / "checkpoint", "cpu")
    if state is None:
        raise RunFolderError(f"{folder} has no result and no checkpoint to compare with")
    algorithm = state["loop"]["algorithm"]
    return algorithm["version"], algorithm["x"]


def assemble(experiment: Experiment, data_dir: str | None) -> Assembly:
    """The server trains nothing: it needs the model, the test data and the rule."""
    check_rule(experiment.algorithm, "algorithm.name")
    if experiment.environment.attack is not None:
        raise ConfigError("attacks are for simulations: real clients do what they do", key="environment.attack")
    return dataclasses.replace(experiment, executor="sequential").assemble(data_dir)


def _settings(assembly: Assembly, nodes: Nodes, wire: Flat, folder: pathlib.Path) -> ServerSettings:
    """Return the server's settings with real nodes instead of a simulated environment."""
    experiment = assembly.experiment
    own = Workload(experiment.client.steps or 0)  # 0: as many as the node's own data makes
    return dataclasses.replace(
        server_settings(assembly, folder),
        environment=live_environment(nodes),
        participation=assembly.environment.availability.probability_of,
        workload=assembly.workload if experiment.algorithm.plans else lambda client: own,
        outgoing=wire.outgoing,
        algorithm_seed=lambda algorithm: server_seed(algorithm, experiment.seed, folder),
    )
