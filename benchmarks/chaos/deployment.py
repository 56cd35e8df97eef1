"""Kill the parts of a durable deployment repeatedly: `python benchmarks/chaos/deployment.py --kills 12 --out DIR`.

The deployment is a server and three nodes with TLS and keys on this machine. The seed determines which part is killed
next; the kill follows when the deployment has made progress since the last one. At the end the log must be complete,
and its replay must produce the same x.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from offbeat.deploy.processes import free_ports
from offbeat.runs.folder import environment, is_run, read_metrics

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "tools"))  # not part of the installed package

from offbeat_chaos.campaign import commit

OFFBEAT = [sys.executable, "-c", "from offbeat.cli import main; main()"]
PROGRAMS = {"server app": "flwr-serverapp", "SuperLink": "flower-superlink", "node": "flower-supernode"}
NODES = 3
TIMEOUT = 300.0  # seconds for the deployment to make progress
EXPERIMENT = """
rounds = 1000000
seed = 1
[data]
name = "digits"
clients = 3
[algorithm]
name = "{rule}"
[scheduler]
name = "buffered"
concurrency = 3
buffer = 1
[client]
name = "sgd"
lr = 0.5
epochs = 2
batch_size = 32
[evaluation]
every = 1
"""


class Deployment:
    """A server, its nodes, and all processes that they start.

    Args:
        place: Folder of the deployment.
        rule: Name of the algorithm.
    """

    def __init__(self, place: pathlib.Path, rule: str) -> None:
        self.place, self.server = place, place / "dep" / "server"
        self.run = self.server / "run"
        self.env = {**os.environ, "TMPDIR": str(place), "OMP_NUM_THREADS": "1"}
        (port,) = free_ports(1)
        self._call("deploy", "init", place / "dep", "--port", port, "--nodes", NODES)
        (self.server / "experiment.toml").write_text(EXPERIMENT.format(rule=rule))
        self.serving = self._start("server", "deploy", "server", self.server, "--listen", f"127.0.0.1:{port}")
        self.started = [self.serving]
        self.started += [
            self._start(f"client-{n}", "deploy", "client", place / "dep" / f"client-{n}") for n in range(NODES)
        ]

    def _call(self, *words: object) -> None:
        subprocess.run([*OFFBEAT, *map(str, words)], env=self.env, check=True, capture_output=True)

    def _start(self, name: str, *words: object) -> subprocess.Popen[bytes]:
        with (self.place / f"{name}.out").open("wb") as out:
            return subprocess.Popen([*OFFBEAT, *map(str, words)], env=self.env, stdout=out, stderr=subprocess.STDOUT)

    def living(self, program: str) -> list[int]:
        """Return the processes of this deployment that run a program."""
        return [
            int(of.name) for of in pathlib.Path("/proc").iterdir() if of.name.isdecimal() and self._runs(of, program)
        ]

    def _runs(self, of: pathlib.Path, program: str) -> bool:
        try:
            mine = f"TMPDIR={self.place}".encode() in (of / "environ").read_bytes().split(b"\0")
            alive = (of / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
            return mine and alive and program in (of / "cmdline").read_bytes().decode()
        except OSError:
            return False

    def version(self) -> int:
        """Return the last evaluated version, or −1 before the first."""
        lines = read_metrics(self.run, in_progress=True) if is_run(self.run) else []
        return int(lines[-1]["version"]) if lines else -1

    def wait_for(self, condition: Callable[[], Any], what: str) -> None:
        """Wait until a condition holds; exit if that takes too long or the server ends."""
        end = time.monotonic() + TIMEOUT
        while not condition():
            if time.monotonic() > end or self.serving.poll() is not None:
                raise SystemExit(f"not within {TIMEOUT:g} s, or the server ended: {what}; see {self.place}")
            time.sleep(0.1)

    def kill(self, part: str, rng: random.Random) -> None:
        """Kill a process of this kind and wait until the deployment has made progress."""
        self.wait_for(lambda: self.living(PROGRAMS[part]), f"a {part} to be killed")
        before = self.version()
        os.kill(rng.choice(sorted(self.living(PROGRAMS[part]))), signal.SIGKILL)
        self.wait_for(lambda: self.version() >= before + 3, f"versions after the {part} was killed")

    def stop(self) -> None:
        """Stop the server and the nodes."""
        for process in self.started:
            process.terminate()
        for process in self.started:
            process.wait(60)


def check_log(events: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Check a deployment's log: each job is sent once and ends at most once, and a client has one job at a time."""
    out: dict[int, int] = {}
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    last = 0
    for line in events:
        if "sent" in line:
            if line["sent"] != last + 1 or line["client"] in out.values():
                wrong.append(f"job {line['sent']} to client {line['client']} while {out}")
            last = line["sent"]
            out[last] = line["client"]
        for end in ("arrived", "lost"):
            if end in line:
                counts[end] += 1
                if out.pop(line[end], None) is None:
                    wrong.append(f"job {line[end]} {end}, but the server does not wait for it")
    return {"sent": last, "arrived": counts["arrived"], "lost": counts["lost"], "in_flight": len(out), "wrong": wrong}


def campaign(rule: str, kills: int, seed: int, place: pathlib.Path) -> dict[str, Any]:
    """Run a deployment, kill its parts, and return what was checked."""
    started, rng = time.monotonic(), random.Random(seed)
    parts = [*PROGRAMS] * (kills // len(PROGRAMS) + 1)
    deployment = Deployment(place, rule)
    done: Counter[str] = Counter()
    try:
        deployment.wait_for(lambda: deployment.version() >= 2, "two versions")
        for part in rng.sample(parts[:kills], kills):
            deployment.kill(part, rng)
            done[part] += 1
            sys.stdout.write(f"{sum(done.values())} of {kills}: {part}, version {deployment.version()}\n")
            sys.stdout.flush()
    finally:
        deployment.stop()
    run = deployment.run
    text = (run / "events.jsonl").read_text()
    found = check_log(json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines())
    versions = [line["version"] for line in read_metrics(run)]
    replay = subprocess.run(
        [*OFFBEAT, "replay", str(run)], env=deployment.env, capture_output=True, text=True, check=False
    )
    whole = found["sent"] == found["arrived"] + found["lost"] + found["in_flight"] and not found["wrong"]
    whole = whole and versions == list(range(len(versions)))
    left = [pid for program in PROGRAMS.values() for pid in deployment.living(program)]
    return {
        "rule": rule, "seed": seed, "kills": dict(done), "versions": versions[-1], "updates": found["arrived"],
        "lost": found["lost"], "books": found, "replayed": replay.returncode == 0, "said": replay.stdout.strip(),
        "left_behind": left, "held": whole and not left and replay.returncode == 0,
        "seconds": round(time.monotonic() - started, 1), "commit": commit(), **environment(),
    }  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rule", default="ca2fl")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        result = campaign(options.rule, options.kills, options.seed, pathlib.Path(scratch))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "chaos.json").write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(0 if result["held"] else 1)
