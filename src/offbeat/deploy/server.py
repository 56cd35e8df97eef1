"""The server's side of a deployment: an experiment, driven by real clients."""

from __future__ import annotations

import dataclasses
import pathlib
import threading
from collections.abc import Sequence

import torch
from flwr.serverapp import Grid
from torch import Tensor

from offbeat.deploy.log import TripLog
from offbeat.deploy.nodes import Nodes, real_world
from offbeat.deploy.replay import Replayed, turned
from offbeat.deploy.secret import keep, server_seed
from offbeat.deploy.transport import Flower, check_rule
from offbeat.deploy.wire import Flat
from offbeat.engine import Terms
from offbeat.errors import ConfigError, RunFolderError
from offbeat.experiments import checkpoint
from offbeat.experiments.api import resolved, stored
from offbeat.experiments.drive import alone
from offbeat.experiments.experiment import Assembly, Experiment
from offbeat.experiments.folder import Origin, read_json
from offbeat.experiments.reality import Reality
from offbeat.experiments.result import Result, Watch
from offbeat.experiments.run import Run
from offbeat.track import Callback

TIMEOUT = 3600.0  # seconds for a trip, unless world.trip_timeout says otherwise


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
    nodes = Nodes(assembly.work.data.clients)
    dialect = Flat(assembly.work.layout, experiment.compression)
    transport = Flower(grid, dialect, nodes, experiment.world.trip_timeout or TIMEOUT)
    reality = _reality(assembly, nodes, dialect, out)
    run = Run(assembly, interrupted or threading.Event(), watch, out, transport, reality, callbacks)
    busy = least or min(nodes.clients, getattr(experiment.dispatch, "concurrency", nodes.clients))
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
        transport.start(busy, patience)
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
    nodes = Nodes(assembly.work.data.clients)
    dialect = Flat(assembly.work.layout, experiment.compression)
    transport = Replayed(folder, dialect, nodes)
    loop = _reality(assembly, nodes, dialect, folder).loop(assembly, transport)
    same = turned(loop, version) and torch.equal(loop.algorithm.x, x)
    return Replay(loop.algorithm.version, transport.updates, same, loop.algorithm.x)


def _outcome(folder: pathlib.Path, assembly: Assembly) -> tuple[int, Tensor]:
    """The last version that is on disk, and its x."""
    if (folder / "summary.json").is_file():
        from safetensors.torch import load_file

        version: int = read_json(folder / "summary.json")["rounds"]
        return version, assembly.work.layout.flatten(load_file(folder / "model.safetensors"))
    state = checkpoint.load(folder / "checkpoint", "cpu")
    if state is None:
        raise RunFolderError(f"{folder} has no result and no checkpoint to compare with")
    algorithm = state["loop"]["algorithm"]
    return algorithm["version"], algorithm["x"]


def assemble(experiment: Experiment, data_dir: str | None) -> Assembly:
    """The server trains nothing: it needs the model, the test data and the rule."""
    check_rule(experiment.algorithm, "algorithm.name")
    if experiment.world.attack is not None:
        raise ConfigError("attacks are for simulations: real clients do what they do", key="world.attack")
    return dataclasses.replace(experiment, executor="sequential").assemble(data_dir)


def _reality(assembly: Assembly, nodes: Nodes, dialect: Flat, folder: pathlib.Path) -> Reality:
    rule, plans = assembly.experiment.client, assembly.experiment.algorithm.plans
    own = Terms(rule.steps or 0)  # 0: as many as the client's own data makes
    terms = assembly.terms if plans else lambda client: own
    seed = assembly.experiment.seed
    return Reality(real_world(nodes), terms, dialect.outgoing, lambda rule: server_seed(rule, seed, folder))
