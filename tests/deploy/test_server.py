"""Tests of offbeat.flower.server on a grid without a network."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import tomllib
from typing import Any

import pytest
import torch
from flwr.app import Message
from tests.deploy.fake_grid import FakeGrid, unreliable
from tests.support.flower_server import BASE, grid, serve, toml

from offbeat.errors import ConfigError, RunFolderError
from offbeat.flower import app
from offbeat.flower.client import NodeClient
from offbeat.flower.server import replay
from offbeat.flower.wire import FlatFormat
from offbeat.messages import Job
from offbeat.runs.api import execute
from offbeat.runs.callbacks import Callback, RunInfo, RunOutcome
from offbeat.runs.config import parse
from offbeat.runs.experiment import Evaluation
from offbeat.runs.result import ProgressSnapshot
from offbeat.server import checkpoint


@pytest.mark.parametrize("algorithm", ["fedbuff", "ca2fl", "mifa"])
def test_a_deployment_learns_and_its_replay_is_identical(algorithm: str, tmp_path: pathlib.Path) -> None:
    text = toml(
        f'[algorithm]\nname = "{algorithm}"\neta = 0.5\n[scheduler]\nname = "buffered"\nconcurrency = 4\nbuffer = 2\n'
    )
    fake_grid = grid(text)
    result = serve(parse(tomllib.loads(text)), fake_grid, tmp_path / "run")
    assert result.accuracy > 0.85
    assert (result.summary["cache_age_mean"] is None) == (algorithm == "fedbuff")
    replayed = replay(tmp_path / "run")
    assert replayed.same
    assert torch.equal(replayed.x, result.x)
    assert (replayed.version, replayed.updates) == (16, 32)
    assert fake_grid.max_in_flight == 1, "at most one job in flight per node"


def test_clients_are_idle_again_after_logged_failures(tmp_path: pathlib.Path) -> None:
    text = toml('[algorithm]\nname = "fedbuff"\n[scheduler]\nname = "continuous"\nconcurrency = 4\nbuffer = 2\n')
    result = serve(parse(tomllib.loads(text)), grid(text, behavior=unreliable(0, 0.4)), tmp_path / "run")
    assert result.summary["lost"] > 3
    lines = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    reasons = {line["reason"] for line in lines if "lost" in line}
    assert "the node went offline: by chance" in reasons
    assert replay(tmp_path / "run").same


TOP = '[compression.upload]\nname = "top-k"\nrate = 0.1\n'
CASES = {
    "prox": ('[algorithm]\nname = "fedbuff"\n', '[client]\nname = "prox"\nmu = 0.1\n', "buffered", ""),
    "scaffold": ('[algorithm]\nname = "fedbuff"\n', '[client]\nname = "scaffold"\n', "buffered", ""),
    "dyn": ('[algorithm]\nname = "feddyn"\nalpha = 0.1\n', '[client]\nname = "dyn"\nalpha = 0.1\n', "buffered", ""),
    "top-k": ('[algorithm]\nname = "fedbuff"\n', "", "buffered", "[compression]\nerror_feedback = true\n" + TOP),
    "qsgd": ('[algorithm]\nname = "fedbuff"\n', "", "continuous", '[compression.upload]\nname = "qsgd"\nbits = 8\n'),
    "both ways": (
        '[algorithm]\nname = "fedbuff"\n', "", "buffered",
        '[compression.upload]\nname = "uniform"\n[compression.download]\nname = "uniform"\n',
    ),
    "anarchic": ('[algorithm]\nname = "afa-cd"\neta = 0.5\n', "", "anarchic", ""),
    "disk": ('[algorithm]\nname = "mifa"\neta = 0.3\n[algorithm.cache]\nname = "disk"\n', "", "buffered", ""),
    "clipped": ('[algorithm]\nname = "fedbuff"\naggregator = { name = "clipped", bound = 2.0 }\n', "", "buffered", ""),
    "bits": ('[algorithm]\nname = "mf-ca2fl"\neta = 0.5\nbits = 4\nrange = "tensor"\n', "", "buffered", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_client_rules_codecs_and_caches_in_a_deployment(case: str, tmp_path: pathlib.Path) -> None:
    """Each learns, its replay is identical, and the bytes are those that the codec sent."""
    algorithm, client, scheduler, more = CASES[case]
    concurrency = "" if scheduler == "anarchic" else "concurrency = 4\n"
    base = BASE if not client else BASE[: BASE.index("[client]")] + client + "lr = 0.1\nepochs = 2\nbatch_size = 32\n"
    text = base + algorithm + f'[scheduler]\nname = "{scheduler}"\n{concurrency}buffer = 2\n' + more
    result = serve(parse(tomllib.loads(text)), grid(text), tmp_path / "run", nodes_timeout=20.0)
    assert result.accuracy > 0.6
    assert replay(tmp_path / "run").same
    uncompressed = 4 * 650
    bytes_up = result.summary["bytes_up"] / result.summary["updates"]
    expected = {
        "scaffold": 2 * uncompressed,
        "top-k": 0.2 * uncompressed,
        "qsgd": uncompressed / 4,
        "both ways": uncompressed / 4,
    }
    assert bytes_up == pytest.approx(expected.get(case, uncompressed), abs=250), "heads of payloads are small"


@pytest.mark.parametrize("client", ["sgd", "torch.optim:RMSprop", "tests.support.local_loops:Distill"])
def test_a_deployment_with_one_client_equals_the_simulation(client: str, tmp_path: pathlib.Path) -> None:
    """With one client, the order of arrivals cannot differ."""
    text = toml('[algorithm]\nname = "fedasync"\n[scheduler]\nname = "per-arrival"\nconcurrency = 1\n')
    text = text.replace("clients = 4", "clients = 1").replace('name = "sgd"', f'name = "{client}"')
    assert client in text
    deployed = serve(parse(tomllib.loads(text)), grid(text, 1), tmp_path / "run")
    simulated = execute(parse(tomllib.loads('executor = "sequential"\n' + text)))
    assert torch.equal(deployed.x, simulated.x)


def test_personal_parameters_stay_on_the_node(tmp_path: pathlib.Path) -> None:
    """They are part of the node's Flower context: with one client, x follows the simulation."""
    text = toml('[algorithm]\nname = "fedasync"\n[scheduler]\nname = "per-arrival"\nconcurrency = 1\n')
    text = text.replace("clients = 4", "clients = 1") + '[personalization]\nparameters = ["1.bias"]\nhead_steps = 2\n'
    experiment, nodes = parse(tomllib.loads(text)), grid(text, 1)
    deployed = serve(experiment, nodes, tmp_path / "run")
    simulated = execute(parse(tomllib.loads('executor = "sequential"\n' + text)))
    assert torch.equal(deployed.x, simulated.x)
    assert len(deployed.x) == 640
    (context,) = nodes.contexts.values()
    last = context.state.config_records["offbeat.last-job"]["job"]  # the job after the end may have been trained, too
    record = "offbeat.state" if last == 16 else "offbeat.state-before"
    own = torch.from_numpy(context.state.array_records[record]["personal"].numpy().copy())
    assert torch.equal(own, simulated.personal["0.1.bias"])
    assert not deployed.personal
    node = NodeClient(experiment, {"partition-id": 0})
    job = Job(0, 0, deployed.summary["rounds"], deployed.x, 0, 0, last_accepted_job=16)
    asked = Message(FlatFormat(node.context.split.shared, experiment.compression).content(job), 1, "evaluate")
    (reply,) = node.evaluate(asked, context).content.metric_records.values()
    data = node.context.data.dataset
    module = node.context.module.eval()
    node.context.layout.write(module, torch.cat([deployed.x, own]))
    accuracy = (module(data.prepare(data.x)).argmax(dim=1) == data.y).double().mean()
    assert reply["accuracy"] == pytest.approx(float(accuracy))
    assert replay(tmp_path / "run").same


def test_callbacks_receive_the_events_of_a_deployment(tmp_path: pathlib.Path) -> None:
    events: list[Any] = []

    class Listener(Callback):
        def on_evaluation(self, run: RunInfo, line: dict[str, Any]) -> None:
            events.append(line)

        def on_run_end(self, run: RunInfo, ending: RunOutcome) -> None:
            events.append((run.name, ending.state))

    text = toml('[algorithm]\nname = "fedbuff"\n[scheduler]\nname = "buffered"\nconcurrency = 4\nbuffer = 2\n')
    result = serve(parse(tomllib.loads(text)), grid(text), tmp_path / "run", callbacks=[Listener()])
    assert events == [*result.evaluations, ("run", "finished")]


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # the killed run does not close its files
def test_a_killed_server_resumes_at_its_last_version(tmp_path: pathlib.Path) -> None:
    text = toml('[algorithm]\nname = "ca2fl"\neta = 0.5\n[scheduler]\nname = "buffered"\nconcurrency = 4\nbuffer = 2\n')
    experiment = parse(tomllib.loads(text))

    def kill(snapshot: ProgressSnapshot) -> None:
        if snapshot.counters.version >= 3:
            raise MemoryError("like kill -9, this skips all cleanup")

    with pytest.raises(MemoryError):
        serve(experiment, grid(text), tmp_path / "run", watch=kill)
    state = checkpoint.load(tmp_path / "run" / "checkpoint", "cpu")
    assert state is not None
    version = state["loop"]["algorithm"]["version"]
    assert 0 < version < 16
    assert replay(tmp_path / "run").version == version
    result = serve(experiment, grid(text, first_id=5000), tmp_path / "run")
    assert result.summary["rounds"] == 16
    versions = [line["version"] for line in result.evaluations]
    assert versions == sorted(set(versions))
    assert replay(tmp_path / "run").same
    with pytest.raises(RunFolderError, match="already finished"):
        serve(experiment, grid(text), tmp_path / "run")


def test_decentralized_algorithms_cannot_be_deployed(tmp_path: pathlib.Path) -> None:
    text = toml('[algorithm]\nname = "afga"\n[scheduler]\nname = "rounds"\nconcurrency = 4\n').replace(
        "epochs = 2", "steps = 2"
    )
    with pytest.raises(ConfigError, match="communicate with the server only"):
        serve(parse(tomllib.loads(text)), grid(text), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_server_has_no_gradients_of_the_clients(tmp_path: pathlib.Path) -> None:
    text = toml('[algorithm]\nname = "fedbuff"\n[scheduler]\nconcurrency = 4\nbuffer = 2\n')
    experiment = parse(tomllib.loads(text))
    asking = dataclasses.replace(experiment, evaluation=Evaluation(gradient_clients=2))
    with pytest.raises(ConfigError, match=r"evaluation\.gradient_clients: the training data is on the nodes"):
        serve(asking, grid(text), tmp_path / "run")


def test_exceptions_of_client_apps_are_logged(tmp_path: pathlib.Path) -> None:
    text = toml('[algorithm]\nname = "fedbuff"\n[scheduler]\nname = "continuous"\nconcurrency = 2\nbuffer = 1\n')
    fake_grid = FakeGrid(app.client, [{"partition-id": 0}, {"data": "nowhere:load"}], {"experiment": json.dumps(text)})
    serve(parse(tomllib.loads(text)), fake_grid, tmp_path / "run")
    lines = (tmp_path / "run" / "events.jsonl").read_text()
    assert "the client app raised an exception: ConfigError: data: 'nowhere:load': No module named 'nowhere'" in lines
