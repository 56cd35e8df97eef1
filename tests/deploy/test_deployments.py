"""Whole deployments with real processes: they learn, survive kills, and leave nothing behind.

They are processes that wait for each other for most of the time, so all of them are at work at once.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pathlib
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from click.testing import CliRunner

from offbeat.cli import main
from offbeat.deploy.federation import federation
from offbeat.deploy.processes import Programs, free_ports

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
ROOT = pathlib.Path(__file__).resolve().parents[2]

PATIENCE = 300.0  # seconds for anything, on a machine that does something else, too
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
OFFBEAT = [sys.executable, "-c", "from offbeat.cli import main; main()"]

EXPERIMENT = """
rounds = {rounds}
seed = 1
[data]
name = "digits"
clients = 2
[algorithm]
name = "{algorithm}"
[scheduler]
name = "buffered"
concurrency = 2
buffer = 1
[client]
name = "sgd"
lr = 0.5
epochs = 10
batch_size = 32
[evaluation]
every = 1
"""


OWN = """
import pathlib, sys, torch

def make(**_):
    tried = pathlib.Path(__file__).with_name("tried")
    if "clientapp" in sys.argv[0] and not tried.exists():
        tried.touch()
        raise ValueError("not at the first try")
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
"""


MINE = """
import time
from offbeat.data import Digits, data_dir

def load():
    time.sleep(4)  # or most of the machine's time goes into starting its jobs
    return Digits().load(data_dir(None))
"""


class Commands:
    """Commands of offbeat under one folder; every process that they start knows it by its environment."""

    def __init__(self, place: pathlib.Path) -> None:
        self.place = place
        tmp = place / "tmp"
        tmp.mkdir()
        self.env = {**os.environ, "TMPDIR": str(tmp), "OMP_NUM_THREADS": "1"}
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *words: object) -> subprocess.Popen[bytes]:
        with (self.place / f"{name}.out").open("wb") as out:
            process = subprocess.Popen(
                [*OFFBEAT, *map(str, words)], cwd=self.place, env=self.env, stdout=out, stderr=subprocess.STDOUT
            )
        self.started.append(process)
        return process

    def run(self, *words: object) -> tuple[int, str]:
        process = self.start("run", *words)
        return process.wait(PATIENCE), self.said("run")

    def said(self, name: str) -> str:
        return (self.place / f"{name}.out").read_text(encoding="utf-8")

    def living(self, program: str = "", home: pathlib.Path | None = None) -> list[int]:
        """Processes of these commands, by their program and Flower's home; no zombies."""
        pids = [int(place.name) for place in pathlib.Path("/proc").iterdir() if place.name.isdecimal()]
        return [pid for pid in pids if self._is(pid, program, home)]

    def _is(self, pid: int, program: str, home: pathlib.Path | None) -> bool:
        try:
            of = pathlib.Path(f"/proc/{pid}")
            words = (of / "environ").read_bytes().split(b"\0")
            command = (of / "cmdline").read_bytes().decode()
            alive = (of / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False
        mine = f"TMPDIR={self.place / 'tmp'}".encode() in words
        return alive and mine and program in command and (home is None or f"FLWR_HOME={home}".encode() in words)


@contextlib.contextmanager
def commanding(place: pathlib.Path) -> Iterator[Commands]:
    made = Commands(place)
    try:
        yield made
    finally:
        _end(made)


def _end(made: Commands) -> None:
    for process in made.started:
        if process.poll() is None:
            process.terminate()
    for process in made.started:
        process.wait(60)
    left = made.living()
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, "processes are left behind"
    assert not list((made.place / "tmp").glob("offbeat-*")), "a temporary folder is left behind"


def until(true: Callable[[], Any], what: str, watched: subprocess.Popen[bytes] | None = None) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, f"not within {PATIENCE:g} s: {what}"
        assert watched is None or watched.poll() is None, f"the command has ended before: {what}"
        time.sleep(0.1)


def metrics(run: pathlib.Path) -> list[dict[str, Any]]:
    file = run / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


def version(run: pathlib.Path) -> int:
    """The last one that is on disk."""
    lines = metrics(run)
    return int(lines[-1]["version"]) if lines else -1


def trips(run: pathlib.Path) -> list[dict[str, Any]]:
    text = (run / "events.jsonl").read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def freed(run: pathlib.Path) -> dict[int, int]:
    """Clients that have lost a job with their nodes, and the job."""
    sent = {line["sent"]: line["client"] for line in trips(run) if "sent" in line}
    return {sent[line["lost"]]: line["lost"] for line in trips(run) if "the node is gone" in line.get("reason", "")}


def back(run: pathlib.Path, client: int, job: int) -> bool:
    """Whether an update of the client has arrived after that job."""
    theirs = {line["sent"] for line in trips(run) if line.get("client") == client and line["sent"] > job}
    return any(line.get("arrived") in theirs for line in trips(run))


_ONE = threading.Lock()


def replayed(run: pathlib.Path) -> str:
    with _ONE:  # it takes the whole process's output
        result = CliRunner().invoke(main, ["replay", str(run)])
    assert result.exit_code == 0, result.output
    return result.output


def proxied(commands: Commands, server: pathlib.Path, listen: int) -> None:
    """nginx in front of the SuperLink, as the bundle has it but for its paths."""
    text = (server / "nginx.conf").read_text().replace("/bundle/", f"{server}/").replace(":8000;", f":{listen};")
    conf = commands.place / "nginx.conf"
    conf.write_text(f"pid {commands.place}/nginx.pid;\nerror_log {commands.place}/nginx.log;\ndaemon off;\n{text}")
    commands.started.append(
        subprocess.Popen([str(NGINX), "-c", str(conf), "-p", str(commands.place)], env=commands.env)
    )


def answer(port: int, ca: pathlib.Path, path: str) -> int:
    context = ssl.create_default_context(cafile=ca)
    with contextlib.closing(http.client.HTTPSConnection("localhost", port, context=context, timeout=30)) as connection:
        connection.request("POST", path)
        return connection.getresponse().status


def durable(commands: Commands) -> None:
    tmp_path = commands.place
    (port, inner), place = free_ports(2), tmp_path / "dep"
    assert commands.run("deploy", "init", place, "--port", port, "--nodes", 3)[0] == 0
    server, run, first = place / "server", place / "server" / "run", place / "client-0"
    (server / "nodes" / "node-2.pub").unlink()
    (server / "experiment.toml").write_text(EXPERIMENT.format(rounds=1000, algorithm="fedbuff"))
    for node in (0, 1):
        (place / f"client-{node}" / "mine.py").write_text(MINE)
    if NGINX:
        proxied(commands, server, inner)
    serve = ("deploy", "server", server, "--listen", f"127.0.0.1:{inner if NGINX else port}")
    serving = commands.start("server", *serve)
    for node in (0, 1):
        commands.start(f"client-{node}", "deploy", "client", place / f"client-{node}", "--data", "mine:load")
    stranger = commands.start("client-2", "deploy", "client", place / "client-2")
    until(lambda: "Failed to activate SuperNode" in commands.said("client-2"), "a stranger is refused", stranger)
    stranger.terminate()
    until(lambda: version(run) >= 1, "a version", serving)
    if NGINX:
        statuses = [answer(at, server / "ca.crt", "/v1/control/list-runs") for at in (inner, port)]
        assert statuses[1] == 404 != statuses[0], "the Control API is there, but not from outside"

    (node,) = commands.living("flower-supernode", first / "state")
    os.kill(node, signal.SIGKILL)
    (superlink,), before = commands.living("flower-superlink", server / "state"), version(run)
    os.kill(superlink, signal.SIGKILL)
    until(lambda: version(run) > before, "training without the node, with another SuperLink", serving)
    assert "SuperLink has ended; it is started again" in commands.said("server")

    (app,) = commands.living("flwr-serverapp", server / "state")
    os.kill(app, signal.SIGKILL)
    shutil.copytree(run, tmp_path / "copy")
    before = version(run)
    replayed(tmp_path / "copy")  # its checkpoint is what the log says
    until(lambda: version(run) > before, "another server app that goes on", serving)
    versions = [line["version"] for line in metrics(run)]
    assert versions == list(range(len(versions)))

    until(lambda: freed(run), "the dead node's client is free", serving)
    ((client, job),) = freed(run).items()
    until(lambda: back(run, client, job), "an update of the node that was started again", serving)
    serving.send_signal(signal.SIGTERM)
    assert serving.wait(60) == 130
    assert max(line["accuracy"] for line in metrics(run)) > 0.85
    replayed(run)


def here(commands: Commands) -> None:
    tmp_path = commands.place
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "digits.toml").write_text(EXPERIMENT.format(rounds=2, algorithm="ca2fl") + '[model]\nname="own:make"')
    command = ("deploy", "local", "digits.toml", "--clients", 2, "--out", "run")
    first = commands.start("first", *command)
    until(lambda: version(tmp_path / "run") >= 1, "a version", first)
    until(lambda: "the client app raised an exception" in commands.said("first"), "what went wrong", first)
    first.send_signal(signal.SIGINT)
    assert first.wait(60) == 130
    said = commands.said("first")
    assert "not at the first try" in said
    assert "go on with: offbeat deploy local digits.toml" in said
    assert not commands.living()
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "interrupted"
    assert (tmp_path / "run" / "logs" / "node-1.log").is_file()
    replayed(tmp_path / "run")
    status, said = commands.run(*command)
    assert status == 0, said
    assert "going on with run" in said
    assert "run  run" in said
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["accuracy"] > 0.85
    assert replayed(tmp_path / "run") == "version 2, 2 updates: x is the same, bit for bit\n"


def stock(commands: Commands) -> None:
    with Programs() as programs:
        found = federation(programs, commands.place, 2, "tests.deploy.stock_app", {"out": ""}, [ROOT]).run()
    before, after = found["server"]
    assert after > 0.5 > before
    assert found["trained"] == 2
    assert found["clients"]


def told(story: Callable[[Commands], None], place: pathlib.Path) -> None:
    with commanding(place) as commands:
        story(commands)


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[None]]]:
    with ThreadPoolExecutor() as pool:
        yield {story.__name__: pool.submit(told, story, tmp_path_factory.mktemp("deployment"))
               for story in (durable, here, stock)}  # fmt: skip


def test_a_stock_client_app_trains_asynchronously(begun: dict[str, Future[None]]) -> None:
    """One that was written without offbeat, under AsyncStrategy."""
    begun["stock"].result()


def test_a_federation_on_this_machine(begun: dict[str, Future[None]]) -> None:
    """CA²FL with a model of one's own; a client app fails, the run is interrupted, and goes on."""
    begun["here"].result()


def test_a_durable_deployment_survives(begun: dict[str, Future[None]]) -> None:
    """TLS and node keys, behind nginx where there is one; a stranger is refused; SuperNode, SuperLink and server app
    are killed with SIGKILL."""
    begun["durable"].result()


@pytest.mark.skipif(NGINX is None, reason="needs nginx: the durable deployment ran without a proxy")
def test_the_durable_deployment_runs_behind_nginx(begun: dict[str, Future[None]]) -> None:
    """Report loudly where the deployment above was not tested behind a proxy."""
    begun["durable"].result()
