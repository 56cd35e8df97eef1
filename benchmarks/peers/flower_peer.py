"""Flower: its simulation engine with the Ray backend, FedAvg of the message API.

Settings: one Ray actor per core (client_resources num_cpus = 1, so that all cores are used; with --device cuda each
actor gets an equal share of the GPU), one torch thread per actor, no evaluation at the clients, the server's hook
`evaluate_fn` only as a clock. Each actor creates the data once and keeps it on its device. --processes sets the number
of actors. Telemetry is off. This uses `run_simulation` instead of `flwr run`, which needs a project folder and starts
the same engine.
"""

from __future__ import annotations

import functools
import os

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}

from common import Clock, Data, Task, main, parser
from flower_client import train_client
from flwr.app import ArrayRecord, Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn


def train(processes: int, task: Task, module: nn.Module, data: Data) -> tuple[float, nn.Module]:
    """Train with Flower; return the timed seconds and the model."""
    clock = Clock(task)
    client_app, server_app = ClientApp(), ServerApp()
    client_app.train()(functools.partial(train_client, task))

    def tick(version: int, arrays: ArrayRecord) -> None:
        if version:
            clock.tick()

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_train=task.cohort / task.users,
            fraction_evaluate=0.0,
            min_train_nodes=task.cohort,
            min_available_nodes=task.users,
        )
        initial = ArrayRecord(module.state_dict())
        result = strategy.start(grid=grid, initial_arrays=initial, num_rounds=task.versions, evaluate_fn=tick)
        if len(result.train_metrics_clientapp) != task.versions:
            raise RuntimeError("rounds without an update: see the clients' errors above")
        module.load_state_dict(result.arrays.to_torch_state_dict())

    gpus = 1 / processes if task.device == "cuda" else 0.0
    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=task.users,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": gpus},
            "init_args": {"num_cpus": processes, "include_dashboard": False},
        },
    )
    return clock.seconds, module


if __name__ == "__main__":
    p = parser(__doc__, ("fedavg",))
    p.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    args = p.parse_args()
    main("flower", "flwr", args, functools.partial(train, args.processes))
