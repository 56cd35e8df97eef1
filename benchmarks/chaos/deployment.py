"""Kill the parts of a durable deployment again and again: `python benchmarks/chaos/deployment.py --kills 12 --out DIR`.

A server and three nodes with TLS and keys on this machine.  Which part is killed next is drawn from the seed; its
moment is when the deployment has come on since the last kill.  At the end the log must be whole, and its replay come to
the same x.
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
from offbeat.runs.folder import environment
from offbeat_chaos.campaign import commit

OFFBEAT = [sys.executable, "-c", "from offbeat.cli import main; main()"]
PROGRAMS = {"server app": "flwr-serverapp", "SuperLink": "flower-superlink", "node": "flower-supernode"}
NODES = 3
PATIENCE = 300.0
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
    """A server and its nodes, and whatever processes they start."""

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
        """Processes of this deployment, by their program."""
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
        file = self.run / "metrics.jsonl"
        lines = file.read_text().splitlines() if file.is_file() else []
        return int(json.loads(lines[-1])["version"]) if lines else -1

    def until(self, true: Callable[[], Any], what: str) -> None:
        end = time.monotonic() + PATIENCE
        while not true():
            if time.monotonic() > end or self.serving.poll() is not None:
                raise SystemExit(f"not within {PATIENCE:g} s, or the server has ended: {what}; see {self.place}")
            time.sleep(0.1)

    def kill(self, part: str, rng: random.Random) -> None:
        """SIGKILL to a process of this kind; then wait until the deployment has come on."""
        self.until(lambda: self.living(PROGRAMS[part]), f"a {part} to be killed")
        before = self.version()
        os.kill(rng.choice(sorted(self.living(PROGRAMS[part]))), signal.SIGKILL)
        self.until(lambda: self.version() >= before + 3, f"versions after the {part} was killed")

    def stop(self) -> None:
        for process in self.started:
            process.terminate()
        for process in self.started:
            process.wait(60)


def books(trips: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """What the log of a deployment says: every job is sent once, ends once at most, and a client has one at a time."""
    out: dict[int, int] = {}
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    last = 0
    for line in trips:
        if "sent" in line:
            if line["sent"] != last + 1 or line["client"] in out.values():
                wrong.append(f"job {line['sent']} to client {line['client']} while {out}")
            last = line["sent"]
            out[last] = line["client"]
        for end in ("arrived", "lost"):
            if end in line:
                counts[end] += 1
                if out.pop(line[end], None) is None:
                    wrong.append(f"job {line[end]} {end}, though nobody waits for it")
    return {"sent": last, "arrived": counts["arrived"], "lost": counts["lost"], "in_flight": len(out), "wrong": wrong}


def campaign(rule: str, kills: int, seed: int, place: pathlib.Path) -> dict[str, Any]:
    begun, rng = time.monotonic(), random.Random(seed)
    parts = [*PROGRAMS] * (kills // len(PROGRAMS) + 1)
    deployment = Deployment(place, rule)
    done: Counter[str] = Counter()
    try:
        deployment.until(lambda: deployment.version() >= 2, "two versions")
        for part in rng.sample(parts[:kills], kills):
            deployment.kill(part, rng)
            done[part] += 1
            sys.stdout.write(f"{sum(done.values())} of {kills}: {part}, version {deployment.version()}\n")
            sys.stdout.flush()
    finally:
        deployment.stop()
    run = deployment.run
    text = (run / "events.jsonl").read_text()
    found = books(json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines())
    versions = [json.loads(line)["version"] for line in (run / "metrics.jsonl").read_text().splitlines()]
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
        "seconds": round(time.monotonic() - begun, 1), "commit": commit(), **environment(),
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
