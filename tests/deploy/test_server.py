"""The server's side, on a grid without a network."""

from __future__ import annotations

import itertools
import json
import pathlib
import tomllib
from typing import Any

import pytest
import torch
from tests.deploy.double import Double, unreliable
from tests.support.flower_server import BASE, grid, serve, toml

from offbeat.errors import ConfigError, RunFolderError
from offbeat.flower import app
from offbeat.flower.server import replay
from offbeat.runs.api import execute
from offbeat.runs.callbacks import Callback, RunInfo, RunOutcome
from offbeat.runs.config import parse
from offbeat.server import checkpoint


@pytest.mark.parametrize("algorithm", ["fedbuff", "ca2fl", "mifa"])
def test_a_deployment_learns_and_is_replayed_to_the_last_bit(algorithm: str, tmp_path: pathlib.Path) -> None:
    text = toml(
        f'[algorithm]\nname = "{algorithm}"\neta = 0.5\n[scheduler]\nname = "buffered"\nconcurrency = 4\nbuffer = 2\n'
    )
    double = grid(text)
    result = serve(parse(tomllib.loads(text)), double, tmp_path / "run")
    assert result.accuracy > 0.85
    again = replay(tmp_path / "run")
    assert again.same
    assert torch.equal(again.x, result.x)
    assert (again.version, again.updates) == (16, 32)
    assert double.most == 1, "one job in flight a node"


def test_failures_free_the_client_and_are_logged(tmp_path: pathlib.Path) -> None:
    text = toml('[algorithm]\nname = "fedbuff"\n[scheduler]\nname = "continuous"\nconcurrency = 4\nbuffer = 2\n')
    result = serve(parse(tomllib.loads(text)), grid(text, fate=unreliable(0, 0.4)), tmp_path / "run")
    assert result.summary["lost"] > 3
    lines = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    reasons = {line["reason"] for line in lines if "lost" in line}
    assert "the node is gone: by chance" in reasons
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
    "bits": ('[algorithm]\nname = "mf-ca2fl"\neta = 0.5\nbits = 4\n', "", "buffered", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_rules_codes_and_memories_with_real_clients(case: str, tmp_path: pathlib.Path) -> None:
    """Each learns, and is replayed to the last bit; a code's bytes are those that were sent."""
    algorithm, client, scheduler, more = CASES[case]
    busy = "" if scheduler == "anarchic" else "concurrency = 4\n"
    base = BASE if not client else BASE[: BASE.index("[client]")] + client + "lr = 0.1\nepochs = 2\nbatch_size = 32\n"
    text = base + algorithm + f'[scheduler]\nname = "{scheduler}"\n{busy}buffer = 2\n' + more
    result = serve(parse(tomllib.loads(text)), grid(text), tmp_path / "run", patience=20.0)
    assert result.accuracy > 0.6
    assert replay(tmp_path / "run").same
    whole = 4 * 650
    bytes_up = result.summary["bytes_up"] / result.summary["updates"]
    expected = {"scaffold": 2 * whole, "top-k": 0.2 * whole, "qsgd": whole / 4, "both ways": whole / 4}
    assert bytes_up == pytest.approx(expected.get(case, whole), abs=250), "the head of a payload is small"


def test_clients_of_equal_speed_are_the_simulation(tmp_path: pathlib.Path) -> None:
    """One client: there is no order of arrivals that could differ."""
    text = toml('[algorithm]\nname = "fedasync"\n[scheduler]\nname = "per-arrival"\nconcurrency = 1\n')
    text = text.replace("clients = 4", "clients = 1")
    real = serve(parse(tomllib.loads(text)), grid(text, 1), tmp_path / "run")
    simulated = execute(parse(tomllib.loads('executor = "sequential"\n' + text)))
    assert torch.equal(real.x, simulated.x)


def test_callbacks_hear_how_a_deployment_goes(tmp_path: pathlib.Path) -> None:
    heard: list[Any] = []

    class Ear(Callback):
        def on_evaluation(self, run: RunInfo, line: dict[str, Any]) -> None:
            heard.append(line)

        def on_run_end(self, run: RunInfo, ending: RunOutcome) -> None:
            heard.append((run.name, ending.state))

    text = toml('[algorithm]\nname = "fedbuff"\n[scheduler]\nname = "buffered"\nconcurrency = 4\nbuffer = 2\n')
    result = serve(parse(tomllib.loads(text)), grid(text), tmp_path / "run", callbacks=[Ear()])
    assert heard == [*result.metrics, ("run", "finished")]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # files that nobody closes
def test_a_killed_server_goes_on_at_the_same_version(tmp_path: pathlib.Path) -> None:
    text = toml('[algorithm]\nname = "ca2fl"\neta = 0.5\n[scheduler]\nname = "buffered"\nconcurrency = 4\nbuffer = 2\n')
    experiment = parse(tomllib.loads(text))
    double, calls = grid(text), itertools.count()

    def kill(glance: object) -> None:
        if next(calls) == 2:
            raise MemoryError("as good as kill -9: nothing is tidied up")

    with pytest.raises(MemoryError):
        serve(experiment, double, tmp_path / "run", watch=kill)
    state = checkpoint.load(tmp_path / "run" / "checkpoint", "cpu")
    assert state is not None
    version = state["loop"]["algorithm"]["version"]
    assert 0 < version < 16
    assert replay(tmp_path / "run").version == version
    result = serve(experiment, grid(text, first=5000), tmp_path / "run")
    assert result.summary["rounds"] == 16
    versions = [line["version"] for line in result.metrics]
    assert versions == sorted(set(versions))
    assert replay(tmp_path / "run").same
    with pytest.raises(RunFolderError, match="is finished"):
        serve(experiment, grid(text), tmp_path / "run")


def test_what_cannot_be_deployed_is_refused(tmp_path: pathlib.Path) -> None:
    text = toml('[algorithm]\nname = "afga"\n[scheduler]\nname = "rounds"\nconcurrency = 4\n').replace(
        "epochs = 2", "steps = 2"
    )
    with pytest.raises(ConfigError, match="talk to the server alone"):
        serve(parse(tomllib.loads(text)), grid(text), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_client_app_that_raises_tells_why(tmp_path: pathlib.Path) -> None:
    text = toml('[algorithm]\nname = "fedbuff"\n[scheduler]\nname = "continuous"\nconcurrency = 2\nbuffer = 1\n')
    double = Double(app.client, [{"partition-id": 0}, {"data": "nowhere:load"}], {"experiment": json.dumps(text)})
    serve(parse(tomllib.loads(text)), double, tmp_path / "run")
    lines = (tmp_path / "run" / "events.jsonl").read_text()
    assert "the client app raised an exception: ConfigError: data: 'nowhere:load': No module named 'nowhere'" in lines
