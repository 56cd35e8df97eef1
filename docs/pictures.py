"""The pictures of docs/concepts.md, made by offbeat itself from small runs: `python docs/pictures.py [FOLDER]`."""

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
BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "0.55"
AGES = ("#CFE3F0", "#6FB0D6", "#0072B2", "#00324F")  # staleness 0, 1, 2, more
STRAGGLERS = Speeds(median=0.2, stragglers=0.2, slowdown=5.0)


def run(**settings: Any) -> tuple[ob.Result, Any]:
    """A small run on the digits, and the record of its trips."""
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
    figure = Figure(figsize=(8.4, height), dpi=120, layout="constrained")
    axes = figure.subplots(1, count, squeeze=False, **more)[0]
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
    return figure, axes


def timeline() -> Figure:
    """Eight clients under a synchronous and under an asynchronous server: who works when, and on how old a model."""
    seconds = 30.0
    environment = ob.Environment(delay=Speeds(seconds_per_step=(1.0, 0.5, 0.3, 0.4, 0.35, 0.6, 0.45, 2.2), jitter=0.15))
    figure, axes = panels(2, 3.3, sharey=True)
    servers: tuple[tuple[str, ob.Algorithm, Any], ...] = (
        ("synchronous: rounds of 4", ob.FedAvg(), ob.Rounds(concurrency=4)),
        ("asynchronous: 4 busy, a step every 2nd arrival", ob.FedBuff(), ob.Buffered(concurrency=4, buffer=2)),
    )
    for each, (title, algorithm, scheduler) in zip(axes, servers, strict=True):
        result, trips = run(
            algorithm=algorithm, scheduler=scheduler, environment=environment, clients=8, client=ob.SGD(steps=5),
            partition=ob.partitions.IID(), virtual_seconds=2 * seconds, evaluation=1,
        )  # fmt: skip
        for trip in trips:
            each.barh(trip["client"], trip["time"] - trip["sent"], 0.7, trip["sent"],
                      color=AGES[min(3, trip["staleness"])], edgecolor="white", linewidth=0.6)  # fmt: skip
        steps = [line["virtual_seconds"] for line in result.metrics[1:] if line["virtual_seconds"] <= seconds]
        for step in steps:
            each.axvline(step, color=RED, linewidth=0.7, alpha=0.7, zorder=0)
        each.set_title(f"{title}\n{len(steps)} versions in {seconds:.0f} s", fontsize=10)
        each.set(xlabel="virtual time (s)", xlim=(0, seconds), yticks=range(8))
    axes[0].set_ylabel("client")
    names = ("fresh", "1 version old", "2 versions old", "more")
    handles = [Patch(color=colour, label=name) for colour, name in zip(AGES, names, strict=True)]
    handles.append(Patch(color=RED, alpha=0.7, label="a new version"))
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    return figure


def staleness() -> Figure:
    """How old updates are: spread in one run, and in the mean over the number of busy clients."""

    def trips(busy: int, buffer: int) -> Any:
        scheduler, client = ob.Buffered(concurrency=busy, buffer=buffer), ob.SGD(steps=1, batch_size=1)
        return run(algorithm=ob.FedBuff(), scheduler=scheduler, client=client, rounds=150, evaluation=1000)[1]

    figure, (left, right) = panels(2)
    for colour, busy in ((GREEN, 15), (BLUE, 20), (ORANGE, 40)):
        ages = trips(busy, 10)["staleness"]
        shares = np.bincount(np.minimum(ages, 9), minlength=10) / len(ages)
        left.plot(100 * shares, color=colour, marker="o", markersize=3.5, label=f"{busy} busy")
    left.set(xlabel="staleness τ (versions)", ylabel="updates (%)", ylim=(0, None))
    left.set_title("buffer of 10", fontsize=10)
    left.legend(frameon=False)
    for colour, buffer in ((GREEN, 5), (BLUE, 10), (ORANGE, 20)):
        numbers = [n for n in (5, 10, 20, 35, 50) if n >= buffer]
        means = [trips(n, buffer)["staleness"].mean() for n in numbers]
        right.plot(numbers, [(n - buffer) / buffer for n in numbers], color=colour, linewidth=0.8)
        right.plot(numbers, means, "o", color=colour, markersize=4, label=f"buffer of {buffer}")
    right.set(xlabel="busy clients", ylabel="mean staleness", ylim=(0, None))
    right.set_title("dots: 150 versions; lines: (busy − buffer)/buffer", fontsize=10)
    right.legend(frameon=False)
    return figure


def concurrency() -> Figure:
    """What more busy clients buy, and what they cost."""
    figure, (left, right) = panels(2)
    numbers = (5, 10, 20, 50)
    for colour, label, algorithm in ((ORANGE, "FedBuff", ob.FedBuff), (BLUE, "CA²FL", ob.CA2FL)):
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
        left.plot(numbers, times, color=colour, marker="o", markersize=4, label=label)
        right.plot(numbers, work, color=colour, marker="o", markersize=4, label=label)
    left.set(xlabel="busy clients (buffer of 5)", ylabel="virtual s to 85 %", ylim=(0, None))
    right.set(xlabel="busy clients (buffer of 5)", ylabel="updates to 85 %", ylim=(0, None))
    left.legend(frameon=False)
    return figure


def partitions() -> Figure:
    """The same data, dealt out more and more unevenly."""
    figure, axes = panels(4, 2.7, sharey=True)
    laws: tuple[tuple[str, Partition], ...] = (
        ("iid", ob.partitions.IID()),
        ("dirichlet, alpha = 1", ob.partitions.Dirichlet(alpha=1.0)),
        ("dirichlet, alpha = 0.1", ob.partitions.Dirichlet(alpha=0.1)),
        ("classes = 2", ob.partitions.LabelShards(classes=2)),
    )
    for each, (title, law) in zip(axes, laws, strict=True):
        counts = Data(source=Digits(), clients=20, partition=law).load(data_dir(), seed=0).label_counts()
        shown = np.where(counts == 0, np.nan, counts)
        image = each.imshow(shown.T, aspect="auto", cmap="viridis", origin="lower", vmin=1, vmax=80)
        each.set(xlabel="client", xticks=(0, 10, 19), yticks=range(0, 10, 3))
        each.set_title(title, fontsize=10)
    axes[0].set_ylabel("label")
    figure.colorbar(image, ax=axes, label="examples (white: none)", pad=0.01)
    return figure


def delays() -> Figure:
    """How long trips take under four laws: every dot is a trip, every row a client."""
    figure, axes = panels(4, 2.7, sharey=True)
    laws: tuple[tuple[str, Delay], ...] = (
        ("half-normal", HalfNormal()),
        ("log-normal", LogNormal(median=2.0)),
        ("speeds, 20 % stragglers", STRAGGLERS),
        ("mix: phones", Mix(kind="phones", examples_per_step=16)),
    )
    clients, trips, size = 12, 25, 19_240
    for each, (title, law) in zip(axes, laws, strict=True):
        for client in range(clients):
            device = key(0, "device", client)
            taken = [law.seconds(Trip(client, device, key(client, "trip", n), 8, size, size)) for n in range(trips)]
            each.plot(taken, [client] * trips, ".", color=BLUE, markersize=2.5, alpha=0.6)
        each.set(xscale="log", xlabel="seconds a trip", xlim=(0.05, 200))
        each.set_title(title, fontsize=10)
    axes[0].set(ylabel="client", yticks=range(0, clients, 3))
    return figure


def cache() -> Figure:
    """Clients that are seldom there, and whose data nobody else has."""
    figure, (left, right) = panels(2, 3.1)
    environment = ob.Environment(delay=Constant(value=0.5), availability=ByLabel(least=0.1))
    rules: tuple[tuple[str, str, ob.Algorithm], ...] = (
        (ORANGE, "FedAvg: whoever is there", ob.FedAvg()),
        (GREY, "FedAvg-IS: weights 1/p", ob.algorithms.FedAvgIS()),
        (BLUE, "MIFA: remembers the absent", ob.MIFA(wait_for_all=False)),
    )
    for colour, label, rule in rules:
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
        x = [line["version"] for line in result.metrics]
        left.plot(x, [100 * line["accuracy"] for line in result.metrics], color=colour, linewidth=1.5, label=label)
    left.set(xlabel="round", ylabel="test accuracy (%)", ylim=(0, 100))
    left.set_title("awake: label 0 one second in ten, label 9 always", fontsize=10)
    left.legend(frameon=False, fontsize=8, loc="lower right")
    for colour, label, buffered in ((ORANGE, "FedBuff: forgets", ob.FedBuff()), (BLUE, "CA²FL: remembers", ob.CA2FL())):
        result, _ = run(
            algorithm=buffered,
            scheduler=ob.Buffered(concurrency=20, buffer=10),
            environment=ob.Environment(delay=STRAGGLERS),
            partition=ob.partitions.Dirichlet(alpha=0.05),
            virtual_seconds=100.0,
            evaluation=2,
        )
        x = [line["virtual_seconds"] for line in result.metrics]
        right.plot(x, [100 * line["accuracy"] for line in result.metrics], color=colour, linewidth=1.2, label=label)
    right.set(xlabel="virtual time (s)", ylabel="test accuracy (%)", ylim=(0, 100))
    right.set_title("asynchronous, Dirichlet 0.05", fontsize=10)
    right.legend(frameon=False, fontsize=8, loc="lower right")
    return figure


PICTURES: tuple[Callable[[], Figure], ...] = (timeline, staleness, concurrency, partitions, delays, cache)


def draw(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    for picture in PICTURES:
        path = folder / f"concepts-{picture.__name__}.png"
        picture().savefig(path, metadata={"Software": None})
        yield path


if __name__ == "__main__":
    for made in draw(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES):
        sys.stdout.write(f"{made}\n")
