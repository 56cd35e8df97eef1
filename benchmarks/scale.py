"""Measure the cost of clients, concurrency and parameters: `python -m benchmarks.scale [--trace FILE]`.

The figures go into benchmarks/scale.json, and from there into the marked part of docs/scale.md (`--page`: only that).
Every figure is measured in a separate process, one after the other. Needs 6 GB of RAM, 3 GB in the folder for
temporary files, and half an hour.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import pathlib
import platform
import resource
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch

from offbeat.cache import CACHES, UpdateCache
from offbeat.runs import presets
from offbeat.runs.api import execute
from offbeat.runs.config import parse
from offbeat.server import checkpoint
from offbeat.server.events import Arrival
from offbeat.simulation.transport import SimulatedTransport

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "tools"))  # not part of the installed package

from offbeat_bench.engine import simulation
from offbeat_bench.server import server as cost

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS, PAGE = ROOT / "benchmarks" / "scale.json", ROOT / "docs" / "scale.md"
BEGIN, END = "<!-- measured: python -m benchmarks.scale -->", "<!-- end of the measured part -->"

BAR = (1_000_000, 10_000, 7_850)  # clients, concurrency, parameters of the goal
POPULATIONS = tuple((10**n, 100, 1_000) for n in range(3, 9))
BUSY = tuple((1_000_000, 10**n, 1_000) for n in range(2, 6))
DIMENSIONS = tuple((100_000, 100, 10**n) for n in range(3, 8))
SERVER = {10**4: (50, 10), 10**5: (50, 10), 10**6: (20, 10), 10**7: (8, 4), 10**8: (1, 1)}  # d: clients, a step
KINDS = ("dense", "quantized", "disk")
RUNS: dict[str, dict[str, Any]] = {
    "CA²FL, on disk, 64 MB of it in RAM": {"name": "ca2fl", "cache": {"name": "disk", "budget_mb": 64.0}},
    "CA²FL, 4 bit": {"name": "ca2fl", "cache": {"name": "quantized", "bits": 4}},
    "FedBuff": {"name": "fedbuff"},
}

MODEL = 330  # parameters of the preset's model
SEEN = 100_000
PARTS = ("bar", "populations", "busy", "dimensions", "runs", "seen", "server")

Row = dict[str, Any]


def alone(work: Callable[..., Row], *arguments: Any) -> Row:
    """Measure in a fresh process, so that the peak memory is its own; also record the load of the machine."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        load = os.getloadavg()[0]
        row = process.submit(work, *arguments).result()
    row["load"] = load
    sys.stderr.write(json.dumps(row, ensure_ascii=False) + "\n")
    return row


def engine(clients: int, busy: int, dim: int) -> Row:
    """Time FedBuff without training; the timer starts after half of the arrivals."""
    torch.set_num_threads(1)
    arrivals = max(100, min(60_000, 4 * 10**9 // dim // 10))
    begun = time.process_time()
    loop = simulation("fedbuff", clients, busy, min(10, busy), dim)
    begun = time.process_time() - begun
    for _ in range(arrivals // 2):
        loop.turn()
    wall, cpu, seen = time.perf_counter(), time.process_time(), 0
    while seen < arrivals // 2:
        seen += isinstance(loop.turn().event, Arrival)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert isinstance(loop.transport, SimulatedTransport)
    with tempfile.TemporaryDirectory() as folder:
        saving = time.perf_counter()
        state = {"loop": loop.state_dict(), "transport": loop.transport.state_dict()}
        checkpoint.save(pathlib.Path(folder), state)
        saving = time.perf_counter() - saving
        size = sum(file.stat().st_size for file in pathlib.Path(folder).iterdir())
    return {
        "clients": clients, "busy": busy, "dim": dim, "arrivals": arrivals, "start_seconds": begun,
        "per_second": seen / wall, "per_processor_second": seen / cpu, "peak": peak,
        "checkpoint_bytes": size, "checkpoint_seconds": saving,
    }  # fmt: skip


def server(cache: str, dim: int) -> Row:
    """Measure an arrival at a CA²FL server with an update cache."""
    torch.set_num_threads(1)
    clients, buffer = SERVER[dim]
    arrivals = buffer * max(8, min(20, 10**7 // dim))
    row = cost("ca2fl", cache, dim, clients, arrivals, buffer)
    return {
        "cache": cache, "dim": dim, "clients": clients, "buffer": buffer,
        "per_second": 1e6 / row["microseconds_per_arrival"], "copies": row["copies"],
        "bytes": row["cache_bytes_per_client"] if cache != "disk" else row["disk_bytes"] / clients,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }  # fmt: skip


def seen(cache: str) -> Row:
    """Measure the RAM per client in an update cache, with the preset's model."""
    options = {"budget_mb": 8.0} if cache == "disk" else {}
    kept: UpdateCache = CACHES[cache](**options)
    kept.start(torch.zeros(MODEL), 10**8)
    before = resident()
    for first in range(0, SEEN, 100):
        kept.replace([(client, torch.randn(MODEL)) for client in range(first, first + 100)], lambda place: place)
    return {"cache": cache, "bytes": (resident() - before) / SEEN}


def resident() -> int:
    """Return the bytes of this process that are in RAM."""
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def million(name: str, trace: str | None) -> Row:
    """Run the preset in a run folder and write a report of it."""
    table = tomllib.loads(presets.text("million"))
    table["algorithm"], table["executor"] = RUNS[name], "vectorized"
    if trace is not None:
        table["environment"]["availability"] = {"name": "trace", "file": trace}
    experiment = parse(table)
    with tempfile.TemporaryDirectory() as folder:
        wall, cpu = time.perf_counter(), time.process_time()
        summary = execute(experiment, out=pathlib.Path(folder) / "run").summary
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        size = sum(file.stat().st_size for file in pathlib.Path(folder).rglob("*") if file.is_file())
        report = time.perf_counter()
        made = [sys.executable, "-m", "offbeat", "report", f"{folder}/run", "--html", f"{folder}/report.html"]
        subprocess.run(made, check=True, capture_output=True)
        report = time.perf_counter() - report
    return {
        "name": name, "traced": trace is not None, "seconds": wall, "processor_seconds": cpu, "peak": peak,
        "folder_bytes": size, "report_seconds": report, "accuracy": summary["accuracy"], "updates": summary["updates"],
        "clients": summary["clients"], "busy": table["scheduler"]["concurrency"],
    }  # fmt: skip


def measure(trace: str | None) -> dict[str, Any]:
    """Return all measurements."""
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return {
        "commit": commit.stdout.strip(), "cpus": os.cpu_count(), "machine": platform.machine(),
        "ram": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": platform.python_version(), "torch": torch.__version__,
        "bar": [alone(engine, *BAR) for _ in range(3)],
        "populations": [alone(engine, *setting) for setting in POPULATIONS],
        "busy": [alone(engine, *setting) for setting in BUSY],
        "dimensions": [alone(engine, *setting) for setting in DIMENSIONS],
        "runs": [alone(million, name, trace) for name in RUNS],
        "seen": [alone(seen, cache) for cache in KINDS],
        "server": [alone(server, cache, dim) for dim in SERVER for cache in KINDS],
    }  # fmt: skip


# The page ---------------------------------------------------------------------------------------------------------


def power(n: float) -> str:
    """Format 1000 as 10³."""
    digits = str(len(str(int(n))) - 1)
    return "10" + digits.translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))


def figure(n: float) -> str:
    """Format a number with three digits, or all before the point."""
    return f"{n:,.0f}" if n >= 100 else f"{n:.3g}"


def size(n: float) -> str:
    """Format a number of bytes with three digits."""
    for unit in ("bytes", "kB", "MB"):
        if n < 999.5:
            return f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:.3g} GB"


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows))


def costs(rows: list[Row], name: str, column: str) -> str:
    """Return the table of the loop's costs against one quantity."""
    head = [name, "events/s", "µs per event", "peak memory", "checkpoint", "written in"]
    return table(head, [
        [power(row[column]), figure(row["per_processor_second"]), figure(1e6 / row["per_processor_second"]),
         size(row["peak"]), size(row["checkpoint_bytes"]), f"{figure(row['checkpoint_seconds'])} s"] for row in rows
    ])  # fmt: skip


def idle_bytes(rows: list[Row]) -> list[tuple[int, float]]:
    """Return the bytes per additional client of each row compared with the row before."""
    pairs = itertools.pairwise(rows)
    return [(b["clients"], (b["peak"] - a["peak"]) / (b["clients"] - a["clients"])) for a, b in pairs]


def extrapolated(found: dict[str, Any]) -> str:
    """Extrapolate to 10⁸ clients, a tenth of which participated."""
    largest, base = found["populations"][-1], found["populations"][0]
    ram = {row["cache"]: row["bytes"] for row in found["seen"]}
    columns, clients, part = 12, 10**8, 10**7
    return f"""A population of 10⁸ is in the table: {size(largest["peak"])}, of which {
        size(base["peak"])
    } are Python, torch and
the loop. Its columns can grow to {columns} bytes per client, {
        size(columns * clients)
    }, when all their pages have been touched.
A checkpoint has 16 bytes for each client that was ever selected: {
        size(16 * part)
    } when a tenth of them has been selected. In
addition, an algorithm stores data for clients that *participated*. CA²FL with the preset's {MODEL} parameters,
measured with {SEEN:,}:

{
        table(
            ["cache", "RAM per client", "10⁷ clients", "on disk"],
            [
                [name, size(cost), size(cost * part), size(4 * MODEL * part) if name == "disk" else "–"]
                for name, cost in ram.items()
            ],
        )
    }"""


def again(found: dict[str, Any]) -> str:
    """Return the first measurement of rows that were measured twice."""
    first = {(row["cache"], row["dim"]): figure(row["per_second"]) for row in found.get("server_before", [])}
    if not first:
        return ""
    rows = [[power(dim), *(first[kind, dim] for kind in KINDS)] for dim in SERVER if (KINDS[0], dim) in first]
    return f"""
These rows were measured twice: first with three steps, too few on a shared machine, then with eight, as the script does
now. The second measurement is above. The first, in arrivals per second:

{table(["d", "dense", "4 bit", "disk"], rows)}
"""


def measured(found: dict[str, Any]) -> str:
    """Return the measured part of the page."""
    loads = [row["load"] for part in PARTS for row in found[part]]
    bar, paged = found["bar"], idle_bytes(found["populations"])
    fastest = max(row["per_processor_second"] for row in bar)
    rates = ", ".join(f"{row['per_processor_second']:,.0f}" for row in bar)
    growth = ", ".join(f"{max(0.0, cost):.3g} up to {power(clients)}" for clients, cost in paged)
    runs = [
        [row["name"], f"{row['seconds']:.0f} s", f"{row['processor_seconds']:.0f} s", size(row["peak"]),
         size(row["folder_bytes"]), f"{row['report_seconds']:.1f} s", f"{100 * row['accuracy']:.1f} %"]
        for row in found["runs"]
    ]  # fmt: skip
    head = ["", "time", "processor", "peak memory", "run folder", "report", "accuracy"]
    first = found["runs"][0]
    availability = "replayed from FedScale's trace" if first["traced"] else "that of the preset"
    hot = {(row["cache"], row["dim"]): row for row in found["server"]}
    arrivals = [
        [power(dim), *(f"{figure(hot[m, dim]['per_second'])} ({hot[m, dim]['copies']:.1f}×)" for m in KINDS),
         *(size(hot[m, dim]["bytes"]) for m in ("dense", "quantized")), str(SERVER[dim][0]), str(SERVER[dim][1])]
        for dim in SERVER
    ]  # fmt: skip
    return f"""{BEGIN}

Commit {found["commit"]}, {found["cpus"]} cores ({found["machine"]}), {size(found["ram"])}, Python {found["python"]},
torch {found["torch"]}, one thread. The machine was shared: its load was {min(loads):.1f} to {max(loads):.1f} when
measurements began. Events are therefore counted per second of processor time, and even that varies by a factor of two.

## A million clients

`offbeat run preset:million`: logistic regression on synthetic data, {first["clients"]:,} clients, {first["busy"]:,}
of them training at a time, {first["updates"]:,} updates; availability is {availability}. Peaks include Python and
torch, 300 MB.

{table(head, runs)}

## The server loop

FedBuff, no training, a step at every tenth arrival. With {BAR[0]:,} clients, a concurrency of {BAR[1]:,} and {BAR[2]:,}
parameters, in three processes: {rates} events/s at a peak of {size(bar[0]["peak"])}. The goal,
50,000, is {"reached" if fastest >= 50_000 else "missed"}.

**Clients** (concurrency {POPULATIONS[0][1]}, d = {POPULATIONS[0][2]:,}):

{costs(found["populations"], "N", "clients")}

Bytes per additional client: {growth}. The goal was at most 200.

**Concurrency** (N = {power(BUSY[0][0])}, d = {BUSY[0][2]:,}):

{costs(found["busy"], "M_c", "busy")}

**Parameters** (N = {power(DIMENSIONS[0][0])}, concurrency {DIMENSIONS[0][1]}):

{costs(found["dimensions"], "d", "dim")}

A large d costs memory for the models of jobs in flight: about M_c/M versions of 4·d bytes, where M is the number of
arrivals per step.

## A hundred million clients

{extrapolated(found)}

Assumptions: clients are selected uniformly; the time per event does not depend on N, as in the table except for cache
effects; the data is `sampled`, which stores nothing per client; delays and availability are models or traces, not
lists.

## Arrivals per second at the server

CA²FL with every client in the cache; in parentheses the time in copies of the bytes that an arrival must touch
([benchmarks](benchmarks.md#what-an-arrival-costs-the-server)). Best of several steps.

{table(["d", "dense", "4 bit", "disk", "dense row", "4-bit row", "clients", "arrivals per step"], arrivals)}
{again(found)}
{END}"""


def page(found: dict[str, Any], old: str) -> str:
    """Return the page with the measured part replaced."""
    before, rest = old.split(BEGIN)
    return before + measured(found) + rest.split(END)[1]


def main() -> None:
    """Measure, or only write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", help="FedScale behavior trace for the run with a million clients")
    parser.add_argument("--page", action="store_true", help="only write the page, from the stored figures")
    options = parser.parse_args()
    if not options.page:
        found = measure(options.trace)
        RESULTS.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    PAGE.write_text(page(found, PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
