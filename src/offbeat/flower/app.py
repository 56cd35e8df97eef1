"""offbeat's Flower app: the experiment is in the run config, the data of a node in its node config."""

from __future__ import annotations

import json
import pathlib
import signal
import threading
import tomllib

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from offbeat.errors import ConfigError
from offbeat.runs.experiment import Experiment

server = ServerApp()
client = ClientApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment of the run config; SIGTERM ends it with a checkpoint."""
    from offbeat.flower import progress
    from offbeat.flower.server import serve
    from offbeat.runs.trackers import trackers

    out, interrupted = pathlib.Path(str(context.run_config["out"])), threading.Event()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: interrupted.set())

    serve(
        experiment(context), grid, out, interrupted=interrupted, data_dir=_optional(context, "data-dir"),
        modules=_optional(context, "modules"), min_nodes=int(context.run_config.get("min-nodes", 0)) or None,
        watch=lambda snapshot: progress.write(out, snapshot),
        callbacks=trackers(json.loads(str(context.run_config.get("track", "[]")))),
    )  # fmt: skip


@client.train()
def train(message: Message, context: Context) -> Message:
    """Train a job on the node's data."""
    from offbeat.flower.client import NodeClient

    return NodeClient(experiment(context), dict(context.node_config)).train(message, context)


@client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate a model on the node's data."""
    from offbeat.flower.client import NodeClient

    return NodeClient(experiment(context), dict(context.node_config)).evaluate(message, context)


def experiment(context: Context) -> Experiment:
    """Return the experiment of the run config."""
    from offbeat.runs.config import parse

    if "experiment" not in context.run_config:
        raise ConfigError("experiment is missing; start this app with `offbeat deploy`", key="run-config")
    return parse(tomllib.loads(json.loads(str(context.run_config["experiment"]))))


def _optional(context: Context, name: str) -> str | None:
    value = context.run_config.get(name)
    return str(value) if value else None
