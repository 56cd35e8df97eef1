"""Draw the figures of docs/concepts.md from small runs: `python docs/pictures.py [FOLDER]`."""

from __future__ import annotations

import pathlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

import offbeat as ob
from offbeat.data import Digits, Partition, data_dir
from offbeat.environment import ByLabel, Constant, Delay, HalfNormal, LogNormal, Mix, Speeds, Trip
from offbeat.models import LR
from offbeat.random import key
from offbeat.runs.data import Data

IMAGES = pathlib.Path(__file__).resolve().parent / "images"
BLUE, ORANGE, GREEN, RED, GRAY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "0.55"
AGES = ("#CFE3F0", "#6FB0D6", "#0072B2", "#00324F")  # staleness 0, 1, 2, more
STRAGGLERS = Speeds(median=0.2, stragglers=0.2, slowdown=5.0)


def run(**settings: Any) -> tuple[ob.Result, Any]:
    """Run a small experiment on the digits; return its result and its log of updates."""
    base: dict[str, Any] = {
        "data": Digits(),
        "clients": 50,
        "partition": ob.partitions.Dirichlet(alpha=0.1),
        "model": LR(),
        "client": ob.SGD(lr=0.1, epochs=2, batch_size=16),
        "executor": "vectorized",
        "rounds": 100_000,
    }
    with tempfile.TemporaryDirectory() as folder:
        result = ob.run(**(base | settings), out=pathlib.Path(folder) / "run")
        return result, np.load(pathlib.Path(folder) / "run" / "updates.npy")


def panels(count: int, height: float = 3.0, **more: Any) -> tuple[Figure, Any]:
    """Return a figure with a row of panels."""
    figure = Figure(figsize=(8.4, height), dpi=120, layout="constrained")
    axes = figure.subplots(1, count, squeeze=False, **more)[0]
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
    return figure, axes


def timeline() -> Figure:
    """Show when eight clients train under a synchronous and an asynchronous server, and on how stale a model."""
    seconds = 30.0
    environment = ob.Environment(delay=Speeds(seconds_per_step=(1.0, 0.5, 0.3, 0.4, 0.35, 0.6, 0.45, 2.2), jitter=0.15))
    figure, axes = panels(2, 3.3, sharey=True)
    servers: tuple[tuple[str, ob.Algorithm, Any], ...] = (
        ("synchronous: cohorts of 4", ob.FedAvg(), ob.Rounds(concurrency=4)),
        ("asynchronous: concurrency 4, buffer 2", ob.FedBuff(), ob.Buffered(concurrency=4, buffer=2)),
    )
    for each, (title, algorithm, scheduler) in zip(axes, servers, strict=True):
        result, trips = run(
            algorithm=algorithm, scheduler=scheduler, environment=environment, clients=8, client=ob.SGD(steps=5),
            partition=ob.partitions.IID(), virtual_seconds=2 * seconds, evaluation=1,
        )  # fmt: skip
        for trip in trips:
            each.barh(trip["client"], trip["time"] - trip["sent"], 0.7, trip["sent"],
                      color=AGES[min(3, trip["staleness"])], edgecolor="white", linewidth=0.6)  # fmt: skip
        steps = [line["virtual_seconds"] for line in result.evaluations[1:] if line["virtual_seconds"] <= seconds]
        for step in steps:
            each.axvline(step, color=RED, linewidth=0.7, alpha=0.7, zorder=0)
        each.set_title(f"{title}\n{len(steps)} versions in {seconds:.0f} s", fontsize=10)
        each.set(xlabel="virtual time (s)", xlim=(0, seconds), yticks=range(8))
    axes[0].set_ylabel("client")
    names = ("staleness 0", "1", "2", "more")
    handles = [Patch(color=color, label=name) for color, name in zip(AGES, names, strict=True)]
    handles.append(Patch(color=RED, alpha=0.7, label="new version"))
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    return figure


def staleness() -> Figure:
    """Show the distribution of staleness in one run, and its mean over the concurrency."""

    def trips(concurrency: int, buffer: int) -> Any:
        scheduler, client = ob.Buffered(concurrency=concurrency, buffer=buffer), ob.SGD(steps=1, batch_size=1)
        return run(algorithm=ob.FedBuff(), scheduler=scheduler, client=client, rounds=150, evaluation=1000)[1]

    figure, (left, right) = panels(2)
    for color, concurrency in ((GREEN, 15), (BLUE, 20), (ORANGE, 40)):
        ages = trips(concurrency, 10)["staleness"]
        shares = np.bincount(np.minimum(ages, 9), minlength=10) / len(ages)
        left.plot(100 * shares, color=color, marker="o", markersize=3.5, label=f"concurrency {concurrency}")
    left.set(xlabel="staleness τ (versions)", ylabel="updates (%)", ylim=(0, None))
    left.set_title("buffer M = 10", fontsize=10)
    left.legend(frameon=False)
    for color, buffer in ((GREEN, 5), (BLUE, 10), (ORANGE, 20)):
        numbers = [n for n in (5, 10, 20, 35, 50) if n >= buffer]
        means = [trips(n, buffer)["staleness"].mean() for n in numbers]
        right.plot(numbers, [(n - buffer) / buffer for n in numbers], color=color, linewidth=0.8)
        right.plot(numbers, means, "o", color=color, markersize=4, label=f"buffer M = {buffer}")
    right.set(xlabel="concurrency M_c", ylabel="mean staleness", ylim=(0, None))
    right.set_title("dots: 150 versions; lines: (M_c − M)/M", fontsize=10)
    right.legend(frameon=False)
    return figure


def concurrency() -> Figure:
    """Show what a higher concurrency gains and what it costs."""
    figure, (left, right) = panels(2)
    numbers = (5, 10, 20, 50)
    for color, label, algorithm in ((ORANGE, "FedBuff", ob.FedBuff), (BLUE, "CA²FL", ob.CA2FL)):
        times, work = [], []
        for n in numbers:
            seeds = [
                run(
                    algorithm=algorithm(),
                    scheduler=ob.Buffered(concurrency=n, buffer=5),
                    seed=seed,
                    environment=ob.Environment(delay=STRAGGLERS),
                    rounds=100,
                    evaluation=ob.Evaluation(every=5, target=0.85),
                )[0].summary
                for seed in range(2)
            ]
            times.append(np.mean([each["target_seconds"] for each in seeds]))
            work.append(np.mean([each["target_bytes_up"] / (4 * each["parameters"]) for each in seeds]))
        left.plot(numbers, times, color=color, marker="o", markersize=4, label=label)
        right.plot(numbers, work, color=color, marker="o", markersize=4, label=label)
    left.set(xlabel="concurrency (buffer 5)", ylabel="virtual seconds to 85 %", ylim=(0, None))
    right.set(xlabel="concurrency (buffer 5)", ylabel="updates to 85 %", ylim=(0, None))
    left.legend(frameon=False)
    return figure


def partitions() -> Figure:
    """Show the same data under increasingly non-IID partitions."""
    figure, axes = panels(4, 2.7, sharey=True)
    choices: tuple[tuple[str, Partition], ...] = (
        ("iid", ob.partitions.IID()),
        ("dirichlet, alpha = 1", ob.partitions.Dirichlet(alpha=1.0)),
        ("dirichlet, alpha = 0.1", ob.partitions.Dirichlet(alpha=0.1)),
        ("label-shards, classes = 2", ob.partitions.LabelShards(classes=2)),
    )
    for each, (title, partition) in zip(axes, choices, strict=True):
        counts = Data(source=Digits(), clients=20, partition=partition).load(data_dir(), seed=0).label_counts()
        shown = np.where(counts == 0, np.nan, counts)
        image = each.imshow(shown.T, aspect="auto", cmap="viridis", origin="lower", vmin=1, vmax=80)
        each.set(xlabel="client", xticks=(0, 10, 19), yticks=range(0, 10, 3))
        each.set_title(title, fontsize=10)
    axes[0].set_ylabel("label")
    figure.colorbar(image, ax=axes, label="examples (white: none)", pad=0.01)
    return figure


def delays() -> Figure:
    """Show trip times under four delay models: one dot per trip, one row per client."""
    figure, axes = panels(4, 2.7, sharey=True)
    models: tuple[tuple[str, Delay], ...] = (
        ("half-normal", HalfNormal()),
        ("log-normal", LogNormal(median=2.0)),
        ("speeds, 20 % stragglers", STRAGGLERS),
        ("mix: phones", Mix(kind="phones", examples_per_step=16)),
    )
    clients, trips, size = 12, 25, 19_240
    for each, (title, model) in zip(axes, models, strict=True):
        for client in range(clients):
            device = key(0, "device", client)
            taken = [model.seconds(Trip(client, device, key(client, "trip", n), 8, size, size)) for n in range(trips)]
            each.plot(taken, [client] * trips, ".", color=BLUE, markersize=2.5, alpha=0.6)
        each.set(xscale="log", xlabel="seconds per trip", xlim=(0.05, 200))
        each.set_title(title, fontsize=10)
    axes[0].set(ylabel="client", yticks=range(0, clients, 3))
    return figure


def cache() -> Figure:
    """Show accuracy with and without an update cache when some labels are rarely available."""
    figure, (left, right) = panels(2, 3.1)
    environment = ob.Environment(delay=Constant(value=0.5), availability=ByLabel(least=0.1))
    rules: tuple[tuple[str, str, ob.Algorithm], ...] = (
        (ORANGE, "FedAvg: available clients only", ob.FedAvg()),
        (GRAY, "FedAvg-IS: weights 1/p", ob.algorithms.FedAvgIS()),
        (BLUE, "MIFA: cached updates", ob.MIFA(wait_for_all=False)),
    )
    for color, label, rule in rules:
        result, _ = run(
            algorithm=rule,
            scheduler=ob.schedulers.Available(),
            environment=environment,
            clients=30,
            partition=ob.partitions.LabelShards(classes=1),
            client=ob.SGD(lr=0.1, steps=5, batch_size=16),
            rounds=120,
            evaluation=2,
        )
        x = [line["version"] for line in result.evaluations]
        left.plot(x, [100 * line["accuracy"] for line in result.evaluations], color=color, linewidth=1.5, label=label)
    left.set(xlabel="round", ylabel="test accuracy (%)", ylim=(0, 100))
    left.set_title("label 0 available 10 % of the time, label 9 always", fontsize=10)
    left.legend(frameon=False, fontsize=8, loc="lower right")
    for color, label, buffered in (
        (ORANGE, "FedBuff: no cache", ob.FedBuff()),
        (BLUE, "CA²FL: cached updates", ob.CA2FL()),
    ):
        result, _ = run(
            algorithm=buffered,
            scheduler=ob.Buffered(concurrency=20, buffer=10),
            environment=ob.Environment(delay=STRAGGLERS),
            partition=ob.partitions.Dirichlet(alpha=0.05),
            virtual_seconds=100.0,
            evaluation=2,
        )
        x = [line["virtual_seconds"] for line in result.evaluations]
        right.plot(x, [100 * line["accuracy"] for line in result.evaluations], color=color, linewidth=1.2, label=label)
    right.set(xlabel="virtual time (s)", ylabel="test accuracy (%)", ylim=(0, 100))
    right.set_title("asynchronous, Dirichlet 0.05", fontsize=10)
    right.legend(frameon=False, fontsize=8, loc="lower right")
    return figure


PICTURES: tuple[Callable[[], Figure], ...] = (timeline, staleness, concurrency, partitions, delays, cache)


def draw(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """Write all figures and yield their paths."""
    for picture in PICTURES:
        path = folder / f"concepts-{picture.__name__}.png"
        picture().savefig(path, metadata={"Software": None})
        yield path


if __name__ == "__main__":
    for path in draw(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES):
        sys.stdout.write(f"{path}\n")
