"""The command line from a user's point of view."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import tomllib
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from tests.support import SHARED, wait_until

from offbeat.algorithms import ALGORITHMS
from offbeat.cli import main, tools

TOML = """
rounds = 4
[algorithm]
name = "fedbuff"
[scheduler]
concurrency = 6
buffer = 3
[data]
name = "digits"
clients = 10
partition = { name = "dirichlet", alpha = 0.3 }
[evaluation]
every = 2
"""


@pytest.fixture
def toml(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.toml").write_text(TOML)
    return "my.toml"


def offbeat(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def refused(*arguments: str) -> str:
    before = sorted(pathlib.Path().rglob("*"))
    result = offbeat(*arguments)
    assert result.exit_code == 2, result.output
    assert sorted(pathlib.Path().rglob("*")) == before, "nothing half-written stays behind"
    assert "Traceback" not in result.output
    return result.output


def summary(folder: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(pathlib.Path(folder, "summary.json").read_text())
    return value


def test_run_with_overrides(toml: str) -> None:
    result = offbeat("run", toml, "--set", "algorithm.eta=0.5", "--set", "rounds=2", "--seed", "7",
                     "--executor", "sequential", "--device", "cpu", "--out", "here")  # fmt: skip
    assert result.exit_code == 0, result.output
    written = tomllib.loads(pathlib.Path("here/config.toml").read_text())
    assert written["algorithm"]["eta"] == 0.5
    assert written["seed"] == 7
    assert written["executor"] == "sequential"
    assert summary("here")["rounds"] == 2
    assert "here" in result.output
    assert f"{100 * summary('here')['accuracy']:.1f}" in result.output


def test_a_written_config_gives_the_same_run_again(toml: str) -> None:
    assert offbeat("run", toml, "--out", "one", "--quiet").output == ""
    assert offbeat("run", "one/config.toml", "--out", "two").exit_code == 0
    assert pathlib.Path("one/model.safetensors").read_bytes() == pathlib.Path("two/model.safetensors").read_bytes()


def test_without_out_a_new_folder_is_made_each_time(toml: str) -> None:
    for _ in range(2):
        assert offbeat("run", toml, "--quiet").exit_code == 0
    assert sorted(p.name for p in pathlib.Path("runs").iterdir()) == ["my-seed0", "my-seed0-2"]


def test_presets(toml: str) -> None:
    shown = offbeat("show", "digits-demo")
    assert shown.exit_code == 0
    pathlib.Path("copy.toml").write_text(shown.output)
    assert offbeat("run", "copy.toml", "--set", "rounds=3", "--out", "a", "--quiet").exit_code == 0
    assert offbeat("run", "preset:digits-demo", "--set", "rounds=3", "--out", "b", "--quiet").exit_code == 0
    assert pathlib.Path("a/model.safetensors").read_bytes() == pathlib.Path("b/model.safetensors").read_bytes()
    assert "Did you mean 'digits-demo'" in refused("show", "digit-demo")
    assert "offbeat sweep preset:digits-compare" in refused("run", "preset:digits-compare")


def test_list() -> None:
    names = json.loads(offbeat("list", "--json").output)
    for kind in ("algorithms", "datasets", "partitions", "augmentations", "models", "delays", "presets"):
        assert names[kind]
        assert all(isinstance(name, str) for name in names[kind])
    assert names["algorithms"] == list(ALGORITHMS)
    assert names["presets"][0] == "digits-demo"
    assert {"afl-mnist-lr", "ca2fl-cifar10-cnn"} <= set(names["presets"])
    assert {"resnet18", "convmixer", "lstm"} <= set(names["models"])
    assert ("shakespeare" in names["datasets"], "natural" in names["partitions"]) == (True, True)
    assert names["augmentations"] == ["crop-flip"]
    assert "mf-ca2fl" in offbeat("list").output


def test_sweep_ends_with_a_table_and_a_picture(toml: str) -> None:
    result = offbeat("sweep", toml, "--grid", "algorithm.name=fedbuff,ca2fl", "--seeds", "0,1,2", "--out", "s")
    assert result.exit_code == 0, result.output
    values = [summary(f"s/ca2fl/seed-{seed}")["accuracy"] * 100 for seed in range(3)]
    assert f"{np.mean(values):.1f} ± {np.std(values, ddof=1):.1f}" in result.output
    assert pathlib.Path("s/accuracy.png").read_bytes().startswith(b"\x89PNG")


def test_the_partition_command_plots_the_label_distribution(toml: str) -> None:
    result = offbeat("partition", toml, "--png", "p.png")
    assert result.exit_code == 0, result.output
    assert "10 clients, 1,437 examples, 10 labels" in result.output
    assert pathlib.Path("p.png").read_bytes().startswith(b"\x89PNG")
    assert offbeat("partition", toml, "--png").exit_code == 0
    assert pathlib.Path("partition.png").exists()


def test_bench_engine() -> None:
    figures = json.loads(
        offbeat("bench", "engine", "--arrivals", "500", "--clients", "100", "--concurrency", "20", "--json").output
    )
    assert figures["arrivals"] == 500
    assert figures["arrivals_per_second"] > 0


@pytest.mark.slow
def test_bench_engine_with_several_numbers_of_clients() -> None:
    sizes = ("--clients", "100", "--clients", "200100")
    result = offbeat("bench", "engine", "--arrivals", "500", "--concurrency", "20", *sizes, "--json")
    small, large = map(json.loads, result.output.splitlines())
    assert (small["clients"], large["clients"]) == (100, 200_100)
    assert small["concurrency"] == large["concurrency"] == 20
    assert large["bytes_per_client"] < 200


@pytest.mark.slow
def test_bench_server() -> None:
    arguments = (
        "bench",
        "server",
        "--algorithm",
        "ca2fl",
        "--parameters",
        "1000",
        "--clients",
        "5",
        "--arrivals",
        "10",
    )
    rows = {row["cache"]: row for row in map(json.loads, offbeat(*arguments, "--json").output.splitlines())}
    assert list(rows) == ["dense", "quantized", "disk", "client-side"]
    assert rows["dense"]["bytes_per_arrival"] == 4000 * (1 + 1 + 2 + 2 / 10), "Δ, h_i, a sum, a tenth of the step"
    assert rows["quantized"]["cache_bytes"] <= 0.13 * rows["dense"]["cache_bytes"]
    for row in rows.values():
        expected = row["microseconds_per_arrival"] / row["copy_microseconds"]
        assert row["copies"] == pytest.approx(expected)
    table = offbeat(*arguments).output
    assert "touched" in table
    assert "GB per second" in table


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["rnu", "my.toml"], "unknown command 'rnu'; valid:"),
        (["run", "none.toml"], "cannot read none.toml: No such file"),
        (["run", "my.toml", "--set", "algorithm.name=ca2f"], "Did you mean 'ca2fl'?"),
        (["run", "my.toml", "--set", "scheduler.buffer=7"], "scheduler.buffer: 7"),
        (["run", "my.toml", "--executor", "vectorised"], "vectorized"),
        (["run", "my.toml", "--out", "my.toml"], "my.toml exists"),
        (["run", "my.toml", "--set", "data.name=mnist", "--data-dir", "nowhere"], "train-images-idx3-ubyte.gz"),
        (["sweep", "my.toml", "--seeds", "0,x"], "--seeds: 'x'"),
        (["resume", "."], "is not a run folder"),
        (["bench", "engine", "--algorithm", "fedbof"], "Did you mean 'fedbuff'?"),
        (["bench", "server", "--algorithm", "fedbof"], "Did you mean 'fedbuff'?"),
    ],
)
def test_mistakes_end_with_status_two_and_one_message(toml: str, arguments: list[str], expected: str) -> None:
    assert expected in refused(*arguments)


@pytest.mark.slow
def test_a_run_that_diverges_at_once_says_why_and_the_next_one_takes_its_place(toml: str) -> None:
    result = offbeat("run", toml, "--set", "client.lr=1e38")
    assert result.exit_code == 2
    assert "client.lr" in result.output
    status = json.loads(pathlib.Path("runs/my-seed0/status.json").read_text())
    assert status["state"] == "failed"
    assert "client.lr" in status["error"]
    assert offbeat("run", toml).exit_code == 0
    assert [place.name for place in pathlib.Path("runs").iterdir()] == ["my-seed0"]


def test_ctrl_c_leaves_a_resumable_folder_and_prints_the_command(toml: str) -> None:
    command = [sys.executable, "-m", "offbeat", "run", toml, "--set", "rounds=100000", "--out", "long"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        metrics = pathlib.Path("long/metrics.jsonl")
        wait_until(lambda: process.poll() is not None or (metrics.exists() and metrics.stat().st_size > 0))
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=600)
    assert process.returncode == 130, (output, errors)
    assert "resume with: offbeat resume long" in errors
    assert "Traceback" not in errors
    assert json.loads(pathlib.Path("long/status.json").read_text())["state"] == "interrupted"
    assert len(list(pathlib.Path("long/checkpoint").glob("*.pt"))) == 1


@pytest.mark.slow
def test_the_core_needs_only_torch_and_numpy(tmp_path: pathlib.Path) -> None:
    """It then runs from source on a machine where nothing can be installed."""
    program = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in "pydantic rich click sklearn scipy matplotlib safetensors tomli_w".split():
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Block())
import offbeat as ob
from offbeat.data import Synthetic
from offbeat.models import LR
r = ob.run(data=Synthetic(examples=400, test_examples=100), clients=10, model=LR(), algorithm=ob.CA2FL(), rounds=20)
print(r.accuracy)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 0.5


@pytest.mark.skipif(not (SHARED / "data/mnist").is_dir(), reason="needs MNIST in ../shared/data")
def test_the_mnist_preset_learns(tmp_path: pathlib.Path) -> None:
    result = offbeat("run", "preset:afl-mnist-lr", "--set", "rounds=40", "--data-dir", str(SHARED / "data"),
                     "--out", str(tmp_path / "m"), "--quiet")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert summary(str(tmp_path / "m"))["accuracy"] > 0.7


def test_bench_train() -> None:
    arguments = ("bench", "train", "--model", "lr", "--group", "4", "--seconds", "0.01", "--repeat", "1")
    chosen = ("--executor", "vectorized", "--executor", "graphs")
    good, refused = map(json.loads, offbeat(*arguments, *chosen, "--json").output.splitlines())
    assert good["client_steps_per_second"] > 0
    assert good["parameters"] == 30_730
    assert "cuda" in refused["refused"]
    table = offbeat(*arguments, *chosen).output
    assert "graphs does not apply: CUDA graphs need" in table


@pytest.mark.slow
def test_custom_modules_next_to_the_file_are_found_on_resume(tmp_path: pathlib.Path) -> None:
    place, elsewhere = tmp_path / "with space", tmp_path / "elsewhere"
    place.mkdir()
    elsewhere.mkdir()
    (place / "beside.py").write_text(
        "from torch import nn\ndef make(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    (place / "e.toml").write_text('rounds = 2\nmodel = "beside:make"\n[data]\nname = "digits"\nclients = 12\n')

    def offbeat(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "offbeat", *arguments, "--quiet"],
            cwd=elsewhere, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip

    first = CliRunner().invoke(main, ["run", str(place / "e.toml"), "--out", str(elsewhere / "one"), "--quiet"])
    assert first.exit_code == 0, first.output
    again = offbeat("run", "one/config.toml", "--out", "two")
    assert again.returncode == 0, again.stderr
    (elsewhere / "one/summary.json").unlink()
    resumed = offbeat("resume", "one")
    assert resumed.returncode == 0, resumed.stderr


def test_help_does_not_wait_for_torch() -> None:
    program = "import sys, offbeat.cli; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=600).returncode == 0


@pytest.mark.parametrize("arguments", [["chaos", "my.toml"], ["bench", "engine"]])
def test_developer_tools_need_a_checkout(toml: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "TOOLS", pathlib.Path("nowhere").absolute())
    message = refused(*arguments)
    assert f"`offbeat {arguments[0]}` needs a checkout of the repository" in message
    assert "pip install --editable ." in message
