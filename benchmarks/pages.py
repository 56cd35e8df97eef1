"""Measure the size of reports and how fast pages open in Debian's chromium: `python benchmarks/pages.py`.

The runs are synthetic copies of a short real one: 20 runs of 500 evaluations, a log of a million arrivals of 10,000
clients, and 200 runs on a live page.
"""

from __future__ import annotations

import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib

import numpy as np
from playwright.sync_api import Browser, sync_playwright

from offbeat.report import html, read
from offbeat.runs import config, presets
from offbeat.runs.api import execute
from offbeat.runs.folder import METRICS, SETTING, SUMMARY, UPDATE, UPDATES, read_metrics, read_summary

TURNS = 5
ROWS = "section[aria-labelledby=runs-title] tbody tr"


def write_runs(model: pathlib.Path, folder: pathlib.Path, runs: int, evaluations: int) -> None:
    """Write several runs with many evaluations, made from those of a real run."""
    lines = read_metrics(model)
    for number in range(runs):
        run = folder / f"run-{number:03d}"
        shutil.copytree(model, run)
        rows = [
            lines[at % len(lines)] | {"version": at, "virtual_seconds": 1.5 * at + number, "bytes_up": 1000 * at}
            for at in range(evaluations)
        ]
        (run / METRICS).write_text("".join(json.dumps(line) + "\n" for line in rows))


def write_long_run(model: pathlib.Path, folder: pathlib.Path, arrivals: int = 1_000_000, clients: int = 10_000) -> None:
    """Write a run with a long log of random arrivals, made from a real run."""
    shutil.copytree(model, folder)
    (folder / SETTING).write_text(json.dumps({"clients": clients}))
    summary = read_summary(folder) | {"clients": clients}
    (folder / SUMMARY).write_text(json.dumps(summary))
    rng, log = np.random.default_rng(0), np.zeros(arrivals, UPDATE)
    step = np.arange(arrivals) // 10
    log["time"] = np.sort(rng.random(arrivals) * 1e4)
    log["sent"] = np.maximum(0, log["time"] - rng.exponential(50, arrivals))
    log["client"], log["status"] = rng.integers(0, clients, arrivals), rng.random(arrivals) < 0.05
    log["staleness"] = np.minimum(rng.poisson(3, arrivals), step)
    log["version"] = step - log["staleness"]
    np.save(folder / UPDATES, log)


def seconds_to_write(runs: pathlib.Path, file: pathlib.Path) -> float:
    """Write a report and return how long it took."""
    started = time.perf_counter()
    file.write_text(html.page(read.records([runs])), encoding="utf-8")
    return time.perf_counter() - started


def seconds_to_open(browser: Browser, address: str, ready: str) -> float:
    """Open a page and return how long it took until a condition held."""
    page = browser.new_page()
    started = time.perf_counter()
    page.goto(address)
    page.wait_for_function(ready)
    took = time.perf_counter() - started
    page.close()
    return took


def show(name: str, values: list[float]) -> None:
    """Print the median, the minimum and the maximum."""
    print(f"{name:<42} {statistics.median(values):6.2f} s  ({min(values):.2f} to {max(values):.2f})")  # noqa: T201


def main() -> None:
    """Run all measurements."""
    with tempfile.TemporaryDirectory() as place, sync_playwright() as driver:
        root = pathlib.Path(place)
        execute(config.parse(tomllib.loads(presets.text("digits-demo"))), out=root / "model")
        write_runs(root / "model", root / "twenty", 20, 500)
        write_runs(root / "model", root / "many", 200, 100)
        write_long_run(root / "model", root / "long")
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        drawn = "() => document.body.dataset.ready === 'yes'"
        for name in ("twenty", "long"):
            file = root / f"{name}.html"
            show(f"{name}: report written", [seconds_to_write(root / name, file) for _ in range(TURNS)])
            size = f"{file.stat().st_size / 1e6:.2f} MB"
            show(f"{name}: {size}, opened", [seconds_to_open(browser, file.as_uri(), drawn) for _ in range(TURNS)])
        command = [sys.executable, "-m", "offbeat", "serve", str(root / "many"), "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout
            address = server.stdout.readline().split()[0]
            listed = f"() => document.querySelectorAll('{ROWS}').length === 200"
            show("200 runs listed on the live page", [seconds_to_open(browser, address, listed) for _ in range(TURNS)])
            server.terminate()
        browser.close()


if __name__ == "__main__":
    main()
