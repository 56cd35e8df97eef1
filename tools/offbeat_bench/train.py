"""Local steps per second of each executor, on synthetic data."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from offbeat.client.context import Precision, TrainingContext
from offbeat.client.rules import SGD
from offbeat.client.runtime import ClientRuntime
from offbeat.data import Dataset, PartitionedDataset, from_arrays
from offbeat.executors import EXECUTORS
from offbeat.executors.choice import client_steps_per_second, trial, why_not
from offbeat.models import MODELS
from offbeat_bench import Progress, no_progress

EXAMPLES = 50_000
CLIENTS = 1000  # 50 examples each, as in pfl-research's own benchmark; fewer with large batches, to have several steps
TOKENS, LENGTH = 80, 80  # of a Shakespeare model


def rates(
    models: Sequence[str], batches: Sequence[int], groups: Sequence[int], executors: Sequence[str],
    device: str, precision: Precision, seconds: float, repeat: int = 1, compiled: bool = False,
    progress: Progress = no_progress,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Yield one row per combination: local steps per second, or why it cannot run.

    Args:
        models: Names of models.
        batches: Batch sizes.
        groups: Numbers of clients whose jobs come together.
        executors: Names of executors.
        device: "cpu" or "cuda".
        precision: Precision of matrix products and convolutions on a GPU.
        seconds: Duration of each measurement.
        repeat: Measurements per row, of which the median counts.
        compiled: Whether to compile steps on a GPU, as in long runs.
        progress: Called before each row.
    """
    number, count = 0, len(models) * len(batches) * len(groups) * len(executors)
    for model in models:
        dataset = synthetic_data(model)
        torch.manual_seed(0)
        module = MODELS[model]().build(dataset.shape, dataset.outputs, dataset.vocabulary)
        for batch in batches:
            clients = CLIENTS if batch <= 10 else max(1, EXAMPLES // (10 * batch))
            data = PartitionedDataset.of(dataset, np.array_split(np.arange(EXAMPLES), clients))
            work = ClientRuntime(
                TrainingContext(module, data, SGD(lr=0.01, batch_size=batch), torch.device(device), precision=precision)
            )
            for group in groups:
                for name in executors:
                    progress(f"{model}, batch {batch}, {group} clients, {name}", number, count)
                    number += 1
                    yield {
                        "model": model, "parameters": work.context.layout.dim, "batch": batch, "group": group,
                        "executor": name, "device": device, "precision": precision,
                        **measure(name, work, group, seconds, repeat, compiled),
                    }  # fmt: skip


def measure(name: str, work: ClientRuntime, group: int, seconds: float, repeat: int, compiled: bool) -> dict[str, Any]:
    """Measure an executor as a run would use it.

    Args:
        name: Name of the executor.
        work: The client runtime.
        group: Number of clients whose jobs come together.
        seconds: Duration of each measurement.
        repeat: Number of measurements.
        compiled: Whether to compile steps on a GPU.

    Returns:
        The median, least and largest number of local steps per second, or the reason why the executor refuses.
    """
    if reason := why_not(name, work):
        return {"refused": reason}
    executor = EXECUTORS[name](work)
    executor.bulk, executor.compiled = group, executor.compiled and compiled
    tasks = trial(work, group, work.context.steps(0))
    started = time.perf_counter()
    try:
        found = [client_steps_per_second(executor, tasks, 0.0)]
        setup = time.perf_counter() - started
        found = sorted(client_steps_per_second(executor, tasks, seconds) for _ in range(repeat))
    finally:
        executor.close()
    return {
        "compiled": executor.compiled,
        "client_steps_per_second": found[len(found) // 2],
        "least": found[0],
        "most": found[-1],
        "setup_seconds": setup,
    }


def synthetic_data(model: str) -> Dataset:
    """Return random examples that the model accepts: images of 3×32×32, or texts."""
    rng = np.random.default_rng(0)
    n = EXAMPLES
    if model == "lstm":
        x, y = rng.integers(TOKENS, size=(n, LENGTH), dtype=np.uint8), rng.integers(TOKENS, size=n)
        return from_arrays(x, y, x[:100], y[:100], classes=TOKENS, vocabulary=TOKENS)
    x, y = rng.integers(256, size=(n, 3, 32, 32), dtype=np.uint8), rng.integers(10, size=n)
    return from_arrays(x, y, x[:100], y[:100], classes=10)
