"""The stock client app with an asynchronous server app, as submitted by `flwr run`."""

from __future__ import annotations

import json
import pathlib

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from tests.deploy import stock

client = stock.app
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Train for two rounds and write the results as JSON."""
    from offbeat.algorithms import FedBuff  # imported here because the client processes do not need it
    from offbeat.flower import AsyncStrategy

    strategy = AsyncStrategy(FedBuff(), concurrency=2, buffer=1, min_nodes=2, evaluate_every=2, evaluate_clients=1)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(stock.net().state_dict()),
        num_rounds=2,
        timeout=300,  # also on a busy machine
        train_config=ConfigRecord({"lr": 0.3}),
        evaluate_fn=stock.evaluate_globally,
    )
    found = {
        "server": [record["accuracy"] for record in result.evaluate_metrics_serverapp.values()],
        "clients": [record["eval_acc"] for record in result.evaluate_metrics_clientapp.values()],
        "train_metrics": len(result.train_metrics_clientapp),
    }
    pathlib.Path(str(context.run_config["out"])).write_text(json.dumps(found), encoding="utf-8")
