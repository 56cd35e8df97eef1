"""offbeat's own Flower app.  The experiment is in the run's config, what a node has in the node's."""

from __future__ import annotations

import json
import pathlib
import signal
import threading
import tomllib
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from offbeat.errors import ConfigError
from offbeat.experiments.experiment import Experiment

server = ServerApp()
client = ClientApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    from offbeat.deploy.server import serve
    from offbeat.experiments.folder import write_json

    out, interrupted = pathlib.Path(str(context.run_config["out"])), threading.Event()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: interrupted.set())

    def watch(glance: Any) -> None:
        """For whoever looks at the folder from outside."""
        line = glance.metrics[-1] if glance.metrics else {}
        tally = glance.tally
        write_json(
            out / "progress.json",
            {"version": tally.version, "rounds": glance.rounds, "updates": tally.updates, "lost": tally.lost,
             "seconds": tally.virtual_seconds, "accuracy": line.get("accuracy"), "loss": line.get("loss")},
        )  # fmt: skip

    serve(
        experiment(context), grid, out, interrupted=interrupted, data_dir=_text(context, "data-dir"),
        least=int(context.run_config.get("least", 0)) or None, watch=watch,
    )  # fmt: skip


@client.train()
def train(message: Message, context: Context) -> Message:
    from offbeat.deploy.client import Client

    return Client(experiment(context), dict(context.node_config)).train(message, context)


@client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    from offbeat.deploy.client import Client

    return Client(experiment(context), dict(context.node_config)).evaluate(message)


def experiment(context: Context) -> Experiment:
    """As it was submitted."""
    from offbeat.experiments.config import parse

    if "experiment" not in context.run_config:
        raise ConfigError("the run has no experiment", key="run-config")
    return parse(tomllib.loads(json.loads(str(context.run_config["experiment"]))))


def _text(context: Context, name: str) -> str | None:
    value = context.run_config.get(name)
    return str(value) if value else None
