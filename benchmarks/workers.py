"""What more workers of a Ray cluster bring: `OMP_NUM_THREADS=1 RAY_worker_niceness=0 python benchmarks/workers.py`.

Client-steps a second of `executor = "ray"` with one and with two workers, by turns, beside executors without Ray.
Ray gives its workers a low priority, which would count on a machine that has other work.
"""

from __future__ import annotations

import json
import logging
import os
import statistics

import ray

from offbeat.experiments.bench_train import rates

TURNS, SECONDS = 3, 3.0
SETTINGS = {"cnn": (20, 8, ("sequential", "processes")), "mlp": (20, 100, ("vectorised", "stacks"))}


def rate(model: str, executor: str) -> float:
    batch, group, _ = SETTINGS[model]
    (row,) = rates([model], [batch], [group], [executor], "cpu", "float32", SECONDS)
    return float(row["client_steps_per_second"])


def with_workers(model: str, count: int) -> float:
    ray.init("local", num_cpus=count, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    try:
        return rate(model, "ray")
    finally:
        ray.shutdown()


def main() -> None:
    for model, (_, _, others) in SETTINGS.items():
        turns = []
        for _ in range(TURNS):
            load = os.getloadavg()[0]
            found = {name: rate(model, name) for name in others}
            found |= {f"ray {count}": with_workers(model, count) for count in (1, 2)}
            turns.append(found | {"2 / 1": found["ray 2"] / found["ray 1"], "load": load})
            print(json.dumps({"model": model, **turns[-1]}), flush=True)  # noqa: T201
        print(json.dumps({"model": model, **{k: statistics.median(t[k] for t in turns) for k in turns[0]}}))  # noqa: T201


if __name__ == "__main__":
    main()
