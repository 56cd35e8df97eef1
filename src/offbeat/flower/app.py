"""offbeat's own Flower app.  The experiment is in the run's config, what a node has in the node's."""

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
    from offbeat.flower import progress
    from offbeat.flower.server import serve
    from offbeat.runs.trackers import trackers

    out, interrupted = pathlib.Path(str(context.run_config["out"])), threading.Event()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: interrupted.set())

    serve(
        experiment(context), grid, out, interrupted=interrupted, data_dir=_text(context, "data-dir"),
        modules=_text(context, "modules"), least=int(context.run_config.get("least", 0)) or None,
        watch=lambda glance: progress.write(out, glance),
        callbacks=trackers(json.loads(str(context.run_config.get("track", "[]")))),
    )  # fmt: skip


@client.train()
def train(message: Message, context: Context) -> Message:
    from offbeat.flower.client import NodeClient

    return NodeClient(experiment(context), dict(context.node_config)).train(message, context)


@client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    from offbeat.flower.client import NodeClient

    return NodeClient(experiment(context), dict(context.node_config)).evaluate(message)


def experiment(context: Context) -> Experiment:
    """As it was submitted."""
    from offbeat.runs.config import parse

    if "experiment" not in context.run_config:
        raise ConfigError("the run has no experiment", key="run-config")
    return parse(tomllib.loads(json.loads(str(context.run_config["experiment"]))))


def _text(context: Context, name: str) -> str | None:
    value = context.run_config.get(name)
    return str(value) if value else None
