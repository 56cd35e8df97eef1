"""The server side of a deployment: run an experiment with real clients, and replay it from its log."""

from __future__ import annotations

import dataclasses
import logging
import pathlib
import threading
from collections.abc import Sequence

import torch
from flwr.serverapp import Grid
from torch import Tensor

from offbeat.algorithms.workload import Workload
from offbeat.errors import ConfigError, RunFolderError
from offbeat.flower.log import EventLog
from offbeat.flower.nodes import NodeRegistry, live_environment
from offbeat.flower.replay import ReplayTransport, replay_to
from offbeat.flower.secrets import save_noise_key, server_seed
from offbeat.flower.transport import FlowerTransport, check_algorithm
from offbeat.flower.wire import FlatFormat
from offbeat.runs.api import resolved, stored
from offbeat.runs.assembly import Assembly
from offbeat.runs.callbacks import Callback
from offbeat.runs.drive import alone
from offbeat.runs.experiment import Experiment
from offbeat.runs.folder import CHECKPOINT, CONFIG, MODEL, Origin, is_finished, read_summary, read_text
from offbeat.runs.result import RunResult, Watch
from offbeat.runs.run import Run
from offbeat.server import checkpoint
from offbeat.server.session import ServerSettings

TIMEOUT = 3600.0  # seconds until a client must have replied, unless environment.trip_timeout is set
NODES_TIMEOUT = 300.0  # seconds to wait for nodes at the start
_LOG = logging.getLogger("offbeat")


def serve(
    experiment: Experiment,
    grid: Grid,
    out: pathlib.Path,
    *,
    interrupted: threading.Event | None = None,
    data_dir: str | None = None,
    modules: str | None = None,
    min_nodes: int | None = None,
    nodes_timeout: float = NODES_TIMEOUT,
    watch: Watch | None = None,
    callbacks: Sequence[Callback] = (),
) -> RunResult:
    """Run an experiment with the nodes of a grid, or resume it if its folder holds an unfinished run.

    Args:
        experiment: The experiment.
        grid: Flower's grid.
        out: The run folder.
        interrupted: Ends the run with a checkpoint when set.
        data_dir: Folder of downloaded data.
        modules: Folder of user modules, recorded in the run folder.
        min_nodes: Nodes to wait for at the start. None: as many as train at the same time.
        nodes_timeout: Seconds to wait for them.
        watch: Receives the progress.
        callbacks: Callbacks of the run.

    Raises:
        ConfigError: The experiment cannot be deployed.
        RunFolderError: The folder holds a finished run or another experiment.
        OffbeatError: Too few nodes connected, or the SuperLink was unreachable for too long.
    """
    assembly = assemble(experiment, data_dir)
    nodes = NodeRegistry(assembly.context.data.clients)
    wire = FlatFormat(assembly.context.split.shared, experiment.compression)
    transport = FlowerTransport(grid, wire, nodes, experiment.environment.trip_timeout or TIMEOUT)
    run = Run(
        assembly, interrupted=interrupted, watch=watch, folder=out, transport=transport,
        settings=_settings(assembly, nodes, wire, out), callbacks=callbacks, checkpoint_every_version=True,
    )  # fmt: skip
    min_nodes = min_nodes or min(nodes.clients, experiment.scheduler.cohort(nodes.clients))
    resume = can_resume(out, assembly)
    if not resume:
        run.open(out, resolved(experiment, assembly), Origin(data_dir, modules))
    save_noise_key(run.loop.algorithm, out)
    transport.log = EventLog(out)
    try:
        if resume:
            run.reopen(out)
            if not run.metrics:
                transport.log.truncate(0, 0)
        transport.start(min_nodes, nodes_timeout)
        transport.update_nodes()
        return alone(run)
    finally:
        transport.close()
        transport.log.close()


def can_resume(out: pathlib.Path, assembly: Assembly) -> bool:
    """Return whether a folder holds an unfinished run of this experiment.

    Raises:
        RunFolderError: The folder holds a finished run or another experiment.
    """
    if not (out / CONFIG).is_file():
        return False
    if is_finished(out):
        raise RunFolderError(f"the run in {out} is already finished; choose another folder")
    if resolved(assembly.experiment, assembly) != read_text(out / CONFIG):
        raise RunFolderError(f"{out} holds another experiment; compare its {CONFIG} or choose another folder")
    return True


@dataclasses.dataclass(frozen=True)
class ReplayResult:
    """The result of a replay."""

    version: int
    """The last version."""
    updates: int
    """Updates that were replayed."""
    same: bool
    """Whether x equals the x of the run, bit for bit."""
    x: Tensor


def replay(folder: pathlib.Path, data_dir: str | None = None) -> ReplayResult:
    """Replay a deployment from its log, up to its result or its last checkpoint.

    Args:
        folder: The run folder.
        data_dir: Folder of downloaded data, if it is not that of the run.

    Raises:
        RunFolderError: The log is missing, damaged or does not match the experiment.
    """
    experiment = stored(folder)
    assembly = assemble(experiment, data_dir or Origin.of(folder).data_dir)
    version, x = _saved_model(folder, assembly)
    nodes = NodeRegistry(assembly.context.data.clients)
    wire = FlatFormat(assembly.context.split.shared, experiment.compression)
    transport = ReplayTransport(folder, wire, nodes)
    loop = dataclasses.replace(_settings(assembly, nodes, wire, folder), folder=None).loop(transport)
    same = replay_to(loop, version) and torch.equal(loop.algorithm.x, x)
    return ReplayResult(loop.algorithm.version, transport.updates, same, loop.algorithm.x)


def _saved_model(folder: pathlib.Path, assembly: Assembly) -> tuple[int, Tensor]:
    """Return the last version on disk and its x."""
    if is_finished(folder):
        from safetensors.torch import load_file

        version: int = read_summary(folder)["rounds"]
        return version, assembly.context.split.shared.flatten(load_file(folder / MODEL))
    state = checkpoint.load(folder / CHECKPOINT, "cpu")
    if state is None:
        raise RunFolderError(f"{folder} has neither a result nor a checkpoint to compare with")
    algorithm = state["loop"]["algorithm"]
    return algorithm["version"], algorithm["x"]


def assemble(experiment: Experiment, data_dir: str | None) -> Assembly:
    """Build what a server needs: the model, the test data and the algorithm. It trains nothing itself.

    Raises:
        ConfigError: The experiment cannot be deployed.
    """
    check_algorithm(experiment.algorithm, "algorithm.name")
    if experiment.environment.attack is not None:
        raise ConfigError("attacks can only be simulated; remove it for a deployment", key="environment.attack")
    if experiment.evaluation.gradient_clients is not None:
        raise ConfigError(
            "the training data is on the nodes; remove it for a deployment", key="evaluation.gradient_clients"
        )
    if experiment.personalization.tests_clients:
        _LOG.warning(
            "personal parts stay on the nodes: the server's metrics are those of x with the initial personal part, "
            "without fine-tuning"
        )
    return dataclasses.replace(experiment, executor="sequential").assemble(data_dir)


def _settings(assembly: Assembly, nodes: NodeRegistry, wire: FlatFormat, folder: pathlib.Path) -> ServerSettings:
    """Return the server's settings with real nodes instead of a simulated environment."""
    experiment = assembly.experiment
    steps = experiment.client.steps  # 0: the node derives the steps from the size of its data
    workload = Workload(0 if steps is None else steps + experiment.personalization.head_steps)
    return dataclasses.replace(
        assembly.server_settings(folder),
        environment=live_environment(nodes),
        participation=assembly.environment.availability.probability_of,
        workload=assembly.workload if experiment.algorithm.plans else lambda client: workload,
        outgoing=wire.outgoing,
        algorithm_seed=lambda algorithm: server_seed(algorithm, experiment.seed, folder),
    )
