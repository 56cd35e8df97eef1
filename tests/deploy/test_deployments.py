"""Whole deployments with real processes: they learn, survive kills, and leave no process behind.

The processes wait for each other most of the time, so all deployments run at the same time.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pathlib
import re
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
from offbeat.deploy.federation import start_federation
from offbeat.deploy.processes import Programs, free_ports

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
ROOT = pathlib.Path(__file__).resolve().parents[2]

TIMEOUT = 300.0  # seconds for any single step, also on a busy machine
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

FAILS_ONCE = """
import pathlib, sys, torch

def make(**_):
    marker = pathlib.Path(__file__).with_name("marker")
    if "clientapp" in sys.argv[0] and not marker.exists():
        marker.touch()
        raise ValueError("the first attempt fails")
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
"""

SLOW_DATA = """
import time
from offbeat.data import Digits, data_dir

def load():
    time.sleep(4)  # otherwise the machine spends most of its time on starting jobs
    return Digits().load(data_dir(None))
"""


class Commands:
    """Runs offbeat's commands in a folder, which is in the environment of every process that they start."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        tmp = folder / "tmp"
        tmp.mkdir()
        self.env = {**os.environ, "TMPDIR": str(tmp), "OMP_NUM_THREADS": "1"}
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *arguments: object) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.out").open("wb") as out:
            process = subprocess.Popen(
                [*OFFBEAT, *map(str, arguments)], cwd=self.folder, env=self.env, stdout=out, stderr=subprocess.STDOUT
            )
        self.started.append(process)
        return process

    def run(self, *arguments: object) -> tuple[int, str]:
        process = self.start("run", *arguments)
        return process.wait(TIMEOUT), self.output("run")

    def output(self, name: str) -> str:
        """Return what a command has printed."""
        return (self.folder / f"{name}.out").read_text(encoding="utf-8")

    def processes(self, program: str = "", home: pathlib.Path | None = None) -> list[int]:
        """Return the live processes of these commands, by program and Flower's home."""
        pids = [int(entry.name) for entry in pathlib.Path("/proc").iterdir() if entry.name.isdecimal()]
        return [pid for pid in pids if self._matches(pid, program, home)]

    def _matches(self, pid: int, program: str, home: pathlib.Path | None) -> bool:
        try:
            entry = pathlib.Path(f"/proc/{pid}")
            variables = (entry / "environ").read_bytes().split(b"\0")
            command = (entry / "cmdline").read_bytes().decode()
            alive = (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False
        ours = f"TMPDIR={self.folder / 'tmp'}".encode() in variables
        return alive and ours and program in command and (home is None or f"FLWR_HOME={home}".encode() in variables)


@contextlib.contextmanager
def commands_in(folder: pathlib.Path) -> Iterator[Commands]:
    """End all commands afterwards and check that nothing is left behind."""
    commands = Commands(folder)
    try:
        yield commands
    finally:
        _end(commands)


def _end(commands: Commands) -> None:
    for process in commands.started:
        if process.poll() is None:
            process.terminate()
    for process in commands.started:
        process.wait(TIMEOUT)
    left = commands.processes()
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, "processes are left behind"
    assert not list((commands.folder / "tmp").glob("offbeat-*")), "a temporary folder is left behind"


def until(condition: Callable[[], Any], what: str, command: subprocess.Popen[bytes] | None = None) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, f"not within {TIMEOUT:g} s: {what}"
        assert command is None or command.poll() is None, f"the command ended before: {what}"
        time.sleep(0.1)


def metrics(run: pathlib.Path) -> list[dict[str, Any]]:
    file = run / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


def version(run: pathlib.Path) -> int:
    """Return the last version in metrics.jsonl, or -1."""
    lines = metrics(run)
    return int(lines[-1]["version"]) if lines else -1


def events(run: pathlib.Path) -> list[dict[str, Any]]:
    text = (run / "events.jsonl").read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def client_of(run: pathlib.Path, node: pathlib.Path) -> int | None:
    """Return the client that a node has become, or None before it has received a job."""
    found = re.search(r"SuperNode ID: (\d+)", (node / "state" / "logs" / "supernode.log").read_text())
    lines = events(run) if found else []
    return next((line["client"] for line in lines if found and line.get("node") == found[1]), None)


def arrivals(run: pathlib.Path, client: int) -> int:
    """Return how many updates of a client have arrived."""
    sent = {line["sent"] for line in events(run) if line.get("client") == client}
    return sum(line.get("arrived") in sent for line in events(run))


_STDOUT = threading.Lock()


def replay(run: pathlib.Path) -> str:
    with _STDOUT:  # the runner redirects the output of the whole process
        result = CliRunner().invoke(main, ["replay", str(run)])
    assert result.exit_code == 0, result.output
    return result.output


def start_proxy(commands: Commands, server: pathlib.Path, listen: int) -> None:
    """Start nginx in front of the SuperLink with the config of the bundle, apart from its paths."""
    text = (server / "nginx.conf").read_text().replace("/bundle/", f"{server}/").replace(":8000;", f":{listen};")
    conf = commands.folder / "nginx.conf"
    conf.write_text(f"pid {commands.folder}/nginx.pid;\nerror_log {commands.folder}/nginx.log;\ndaemon off;\n{text}")
    commands.started.append(
        subprocess.Popen([str(NGINX), "-c", str(conf), "-p", str(commands.folder)], env=commands.env)
    )


def http_status(port: int, ca: pathlib.Path, path: str) -> int:
    context = ssl.create_default_context(cafile=ca)
    with contextlib.closing(http.client.HTTPSConnection("localhost", port, context=context, timeout=30)) as connection:
        connection.request("POST", path)
        return connection.getresponse().status


def durable(commands: Commands) -> None:
    tmp_path = commands.folder
    (port, inner), deployment = free_ports(2), tmp_path / "deployment"
    assert commands.run("deploy", "init", deployment, "--port", port, "--nodes", 3)[0] == 0
    server, run, first = deployment / "server", deployment / "server" / "run", deployment / "client-0"
    (server / "nodes" / "node-2.pub").unlink()
    (server / "experiment.toml").write_text(EXPERIMENT.format(rounds=1000, algorithm="fedbuff"))
    for node in (0, 1):
        (deployment / f"client-{node}" / "mine.py").write_text(SLOW_DATA)
    if NGINX:
        start_proxy(commands, server, inner)
    serve = ("deploy", "server", server, "--listen", f"127.0.0.1:{inner if NGINX else port}")
    serving = commands.start("server", *serve)
    for node in (0, 1):
        commands.start(f"client-{node}", "deploy", "client", deployment / f"client-{node}", "--data", "mine:load")
    unregistered = commands.start("client-2", "deploy", "client", deployment / "client-2")
    until(
        lambda: "Failed to activate SuperNode" in commands.output("client-2"),
        "an unregistered node is refused",
        unregistered,
    )
    unregistered.terminate()
    until(lambda: version(run) >= 1, "a version", serving)
    if NGINX:
        statuses = [http_status(at, server / "ca.crt", "/v1/control/list-runs") for at in (inner, port)]
        assert statuses[1] == 404 != statuses[0], "the proxy hides the Control API"

    until(lambda: client_of(run, first) is not None, "a job for the first node", serving)
    client = client_of(run, first)
    assert client is not None
    (node,) = commands.processes("flower-supernode", first / "state")
    os.kill(node, signal.SIGKILL)
    (superlink,), before = commands.processes("flower-superlink", server / "state"), version(run)
    os.kill(superlink, signal.SIGKILL)
    until(lambda: version(run) > before, "a version without the node, after the SuperLink was restarted", serving)
    assert "SuperLink exited (SIGKILL); restarting it" in commands.output("server")

    (app,) = commands.processes("flwr-serverapp", server / "state")
    os.kill(app, signal.SIGKILL)
    shutil.copytree(run, tmp_path / "copy")
    before = version(run)
    replay(tmp_path / "copy")  # compares the checkpoint with the log
    until(lambda: version(run) > before, "a server app that resumes the run", serving)
    versions = [line["version"] for line in metrics(run)]
    assert versions == list(range(len(versions)))

    # The job of the dead node is lost while the node is offline; if the server app was down at that time, it sends the
    # job again. Either way the client must not stay busy: it takes part again once its node has been restarted.
    until(lambda: commands.processes("flower-supernode", first / "state"), "the node is restarted", serving)
    count = arrivals(run, client)
    until(lambda: arrivals(run, client) > count, "an update of the restarted node", serving)
    serving.send_signal(signal.SIGTERM)
    assert serving.wait(TIMEOUT) == 130
    assert max(line["accuracy"] for line in metrics(run)) > 0.85
    replay(run)


def local(commands: Commands) -> None:
    tmp_path = commands.folder
    (tmp_path / "custom.py").write_text(FAILS_ONCE)
    (tmp_path / "digits.toml").write_text(
        EXPERIMENT.format(rounds=2, algorithm="ca2fl") + '[model]\nname="custom:make"'
    )
    command = ("deploy", "local", "digits.toml", "--clients", 2, "--out", "run")
    first = commands.start("first", *command)
    until(lambda: version(tmp_path / "run") >= 1, "a version", first)
    until(lambda: "the client app raised an exception" in commands.output("first"), "the error of the client", first)
    first.send_signal(signal.SIGINT)
    assert first.wait(TIMEOUT) == 130
    output = commands.output("first")
    assert "the first attempt fails" in output
    assert "resume with: offbeat deploy local digits.toml" in output
    assert not commands.processes()
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "interrupted"
    assert (tmp_path / "run" / "logs" / "node-1.log").is_file()
    replay(tmp_path / "run")
    status, output = commands.run(*command)
    assert status == 0, output
    assert "resuming run" in output
    assert "run  run" in output
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["accuracy"] > 0.85
    assert replay(tmp_path / "run") == "version 2, 2 updates: the models are identical, bit for bit\n"


def stock(commands: Commands) -> None:
    with Programs() as programs:
        found = start_federation(programs, commands.folder, 2, "tests.deploy.stock_app", {"out": ""}, [ROOT]).run()
    before, after = found["server"]
    assert after > 0.5 > before
    assert found["train_metrics"] == 2
    assert found["clients"]


def run_in(folder: pathlib.Path, scenario: Callable[[Commands], None]) -> None:
    with commands_in(folder) as commands:
        scenario(commands)


@pytest.fixture(scope="module")
def deployments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[None]]]:
    """Start all deployments at once."""
    with ThreadPoolExecutor() as pool:
        yield {scenario.__name__: pool.submit(run_in, tmp_path_factory.mktemp("deployment"), scenario)
               for scenario in (durable, local, stock)}  # fmt: skip


def test_a_stock_client_app_trains_asynchronously(deployments: dict[str, Future[None]]) -> None:
    """A client app that does not know offbeat trains with AsyncStrategy."""
    deployments["stock"].result()


def test_a_federation_on_this_machine(deployments: dict[str, Future[None]]) -> None:
    """CA²FL with a user's model: a client app fails, and the run is interrupted and resumed."""
    deployments["local"].result()


def test_a_durable_deployment_survives(deployments: dict[str, Future[None]]) -> None:
    """SuperNode, SuperLink and server app are killed with SIGKILL, and an unregistered node is refused.

    The deployment uses TLS and node keys, behind nginx if it is installed.
    """
    deployments["durable"].result()


@pytest.mark.skipif(NGINX is None, reason="needs nginx: the durable deployment ran without a proxy")
def test_the_durable_deployment_runs_behind_nginx(deployments: dict[str, Future[None]]) -> None:
    """Make a skip visible where the deployment above was not tested behind a proxy."""
    deployments["durable"].result()
