"""Measure the gain of a second Ray worker: `OMP_NUM_THREADS=1 RAY_worker_niceness=0 python benchmarks/workers.py`.

The same jobs run in turn with one worker, with two, and without Ray; ratios are taken within a turn. Wall-clock time
depends on other load on the machine. Processor time is measured for the workers and for the process that feeds them,
which shows how many workers it could feed. Ray gives its workers a low priority; here they have the normal one.
"""

from __future__ import annotations

import json
import logging
import os
import pathlib
import statistics
import sys
import time

import numpy as np
import ray
import torch

from offbeat.client.context import TrainingContext
from offbeat.client.rules import SGD
from offbeat.client.runtime import ClientRuntime
from offbeat.data import PartitionedDataset
from offbeat.executors import EXECUTORS, Executor, Ray
from offbeat.executors.choice import trial
from offbeat.models import MODELS

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "tools"))  # not part of the installed package

from offbeat_bench.train import EXAMPLES, synthetic_data

TURNS = 6
SETTINGS = {  # batch, jobs at once, steps of each, executors without Ray
    "cnn": (20, 8, 5, ("sequential", "processes")),
    "mlp": (20, 100, 50, ("vectorized",)),
}


def with_workers(work: ClientRuntime, count: int) -> Executor:
    """Return an executor that uses the given number of the cluster's cores."""
    executor = Ray(work)
    executor.split(count)
    executor.backend.started().size = lambda: count  # type: ignore[method-assign]
    return executor


def cpu_seconds(executor: Executor) -> tuple[float, float]:
    """Return the processor time of the workers and of this process."""
    cluster = executor.backend.cluster if isinstance(executor, Ray) else None
    workers = cluster.workers if cluster is not None else []
    stats = [pathlib.Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split() for worker in workers]
    return sum(int(stat[11]) + int(stat[12]) for stat in stats) / os.sysconf("SC_CLK_TCK"), time.process_time()


def measure(model: str) -> None:
    """Print the quartiles of all figures for a model."""
    batch, jobs, steps, others = SETTINGS[model]
    dataset = synthetic_data(model)
    torch.manual_seed(0)
    module = MODELS[model]().build(dataset.shape, dataset.classes, dataset.vocabulary)
    clients = np.array_split(np.arange(EXAMPLES), EXAMPLES // (steps * batch))
    work = ClientRuntime(
        TrainingContext(
            module, PartitionedDataset.of(dataset, clients), SGD(lr=0.01, batch_size=batch), torch.device("cpu")
        )
    )
    tasks = trial(work, jobs, steps)
    executors = {name: EXECUTORS[name](work) for name in others}
    executors |= {f"ray {count}": with_workers(work, count) for count in (1, 2)}
    for executor in executors.values():
        executor.train_all(tasks)
    turns, load = [], [os.getloadavg()[0]]
    for _ in range(TURNS):
        rates = {}
        for name, executor in executors.items():
            started, before = time.perf_counter(), cpu_seconds(executor)
            executor.train_all(tasks)
            rates[name] = jobs * steps / (time.perf_counter() - started)
            if isinstance(executor, Ray):
                worked, fed = (1000 * (b - a) / jobs for a, b in zip(before, cpu_seconds(executor), strict=True))
                rates |= {f"{name}: ms per job in workers": worked, f"{name}: ms per job to feed them": fed}
        turns.append(rates | {"second worker": rates["ray 2"] / rates["ray 1"]})
        load.append(os.getloadavg()[0])
    for executor in executors.values():
        executor.close()
    found = {name: [round(q, 2) for q in statistics.quantiles(t[name] for t in turns)] for name in turns[0]}
    print(json.dumps({"model": model, "load": [min(load), max(load)], "quartiles": found}), flush=True)  # noqa: T201


if __name__ == "__main__":
    ray.init("local", num_cpus=3, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    for name in SETTINGS:
        measure(name)
