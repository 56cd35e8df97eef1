"""APPFL: its virtual simulation `appfl.vsim`, synchronous (FedAvg) and asynchronous (FedBuff).

Settings: SimServerAgent and one SimClientAgent per user, VanillaTrainer with one local epoch, no validation,
`optimize_memory` off everywhere (it calls the garbage collector several times per client), loggers silenced, profiles
with random speed, a fixed virtual time per step. vsim trains strictly one client after the other in one process. All
agents share one module: separate ones would take 9 GB for the CNN, and each agent loads its parameters before it
trains anyway.

APPFL's FedBuff differs: it adds α·(client's model − current x) for each arrival, where the others add the client's
change. The work is the same; the resulting loss need not be.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import random
import tempfile
from typing import Any

from appfl.agent import SimClientAgent, SimServerAgent
from appfl.vsim import AsyncSimDriver, ClientProfile, SyncSimDriver
from common import BUFFER, Clock, Data, FinishedError, Task, main, parser
from torch import nn
from torch.utils.data import TensorDataset


def train_configs(task: Task, folder: str) -> dict[str, Any]:
    """Return APPFL's settings of the clients."""
    return {
        "trainer": "VanillaTrainer",
        "mode": "epoch",
        "num_local_epochs": 1,
        "optim": "SGD",
        "optim_args": {"lr": task.lr},
        "loss_fn": "CrossEntropyLoss",
        "do_validation": False,
        "do_pre_validation": False,
        "optimize_memory": False,
        "train_batch_size": task.batch_size,
        "device": task.device,
        "logging_output_dirname": folder,
        "logging_output_filename": "",
    }


def server_configs(task: Task, folder: str) -> dict[str, Any]:
    """Return APPFL's settings of the server."""
    buffered = task.algorithm == "fedbuff"
    kind = {"client_weights_mode": "equal", "optimize_memory": False}
    # step = Σ α/num_clients·(…): with α = η·num_clients/BUFFER it is η times the buffer's mean
    fedbuff = kind | {"staleness_fn": "constant", "alpha": task.server_rate * task.users / BUFFER, "K": BUFFER}
    return {
        "num_clients": task.users,
        "scheduler": "AsyncScheduler" if buffered else "SyncScheduler",
        "scheduler_kwargs": {"same_init_model": True, "optimize_memory": False, "num_clients": task.users},
        "aggregator": "FedBuffAggregator" if buffered else "FedAvgAggregator",
        "aggregator_kwargs": fedbuff if buffered else kind,
        "device": task.device,
        "optimize_memory": False,
        "num_global_epochs": 2 * task.versions * task.per_version,  # the clock ends the run
        "logging_output_dirname": folder,
        "logging_output_filename": "",
    }


def agents(task: Task, module: nn.Module, data: Data, folder: str) -> tuple[SimServerAgent, list[SimClientAgent]]:
    """Return the agents, which load the common module and compute no metric; APPFL intends such overrides."""

    class Server(SimServerAgent):
        def _load_model(self) -> None:
            self.model = copy.deepcopy(module)

    class Client(SimClientAgent):
        def _load_model(self) -> None:
            self.model = module

        def _load_metric(self) -> None:
            self.metric = lambda labels, outputs: 0.0

    configs = {"train_configs": train_configs(task, folder)}
    server = Server({"client_configs": configs, "server_configs": server_configs(task, folder)})
    clients = [
        Client(configs | {"optimize_memory": False}, client_id=str(i), client_dataset=TensorDataset(*data.user(i)))
        for i in range(task.users)
    ]
    return server, clients


def driver(task: Task, clock: Clock, server: SimServerAgent, clients: list[SimClientAgent]) -> Any:
    """Return the simulation, which ticks the clock after each server step."""

    class TimedSync(SyncSimDriver):
        def _run_round(self) -> Any:
            result = super()._run_round()
            clock.tick()
            return result

    class TimedAsync(AsyncSimDriver):
        def _handle_train_complete(self, *args: Any) -> None:
            super()._handle_train_complete(*args)
            if len(self.history) % BUFFER == 0:
                clock.tick()

    rng = random.Random(0)
    shared = {
        "server_agent": server,
        "client_agents": clients,
        "profiles": {c.get_id(): ClientProfile(compute_factor=rng.uniform(0.5, 1.5)) for c in clients},
        "logger": logging.getLogger("vsim"),
        "seed": 0,
        "base_step_time": 1 / task.local_steps,
    }
    if task.algorithm == "fedbuff":
        return TimedAsync(max_in_flight=task.cohort, **shared)
    return TimedSync(participants_per_round=task.cohort, target_rounds=task.versions + 1, **shared)


def train(task: Task, module: nn.Module, data: Data) -> tuple[float, nn.Module]:
    """Train with APPFL; return the timed seconds and the model."""
    logging.disable(logging.CRITICAL)
    clock = Clock(task, stop=True)
    with tempfile.TemporaryDirectory() as folder:
        server, clients = agents(task, module, data, folder)
        with contextlib.suppress(FinishedError):
            driver(task, clock, server, clients).run()
    module.cpu().load_state_dict(server.get_parameters(serial_run=True))
    return clock.seconds, module


if __name__ == "__main__":
    main("appfl", "appfl", parser(__doc__, ("fedavg", "fedbuff")).parse_args(), train)
