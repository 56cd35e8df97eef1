"""The stock client app under an asynchronous server app: what `flwr run` is given."""

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
    from offbeat.algorithms import FedBuff  # not above: a client has no need of it
    from offbeat.flower import AsyncStrategy

    strategy = AsyncStrategy(FedBuff(), concurrency=2, buffer=1, min_nodes=2, evaluate_every=2, evaluate_clients=1)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(stock.net().state_dict()),
        num_rounds=2,
        timeout=60,
        train_config=ConfigRecord({"lr": 0.3}),
        evaluate_fn=stock.accuracy,
    )
    found = {
        "server": [record["accuracy"] for record in result.evaluate_metrics_serverapp.values()],
        "clients": [record["eval_acc"] for record in result.evaluate_metrics_clientapp.values()],
        "trained": len(result.train_metrics_clientapp),
    }
    pathlib.Path(str(context.run_config["out"])).write_text(json.dumps(found), encoding="utf-8")
