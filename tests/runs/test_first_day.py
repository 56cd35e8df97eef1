"""What people run into on the first day."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from tests.support import Quadratics, interrupt_after
from torch import Tensor, nn

import offbeat as ob
from offbeat.algorithms.workload import Workload
from offbeat.cli import main
from offbeat.client.context import TrainingContext
from offbeat.client.runtime import ClientRuntime
from offbeat.data import PartitionedDataset, Synthetic
from offbeat.environment import Battery, Bernoulli, Constant, Speeds
from offbeat.executors import choose
from offbeat.models import LR
from offbeat.scheduling.schedulers import Available
from offbeat.server.loop import Loop
from offbeat.simulation.transport import SimulatedTransport

CPU = torch.device("cpu")


def settings(**more: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "data": Synthetic(examples=300, test_examples=60, features=12, classes=3),
        "clients": 6,
        "model": LR(),
        "algorithm": ob.FedBuff(),
        "client": ob.SGD(lr=0.1, epochs=1, batch_size=8),
        "scheduler": ob.Buffered(concurrency=4, buffer=2),
        "rounds": 20,
        "evaluation": 5,
    }
    return base | more


class Mixing(nn.Module):
    """An example's output depends on the rest of its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.layer(x)
        return z - z.mean(dim=0)


def test_a_model_that_mixes_its_batch_is_not_stacked() -> None:
    """Padding has weight zero in the loss, but it would count in the batch's statistics."""
    dataset = Synthetic(examples=300, test_examples=60, features=12, classes=3).load(pathlib.Path())
    for module in (Mixing(), nn.Sequential(nn.BatchNorm1d(12, track_running_stats=False), nn.Linear(12, 3))):
        work = ClientRuntime(
            TrainingContext(module, PartitionedDataset.of(dataset, [range(10), range(10, 23)]), ob.SGD(), CPU)
        )
        assert choose("auto", work, 4, 10_000)[0] in ("sequential", "processes")
        with pytest.raises(ob.ConfigError, match="mixes the examples of a batch"):
            choose("vectorized", work, 4, 10_000)
    dropout = nn.Sequential(nn.Linear(12, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    work = ClientRuntime(
        TrainingContext(dropout, PartitionedDataset.of(dataset, [range(10), range(10, 23)]), ob.SGD(), CPU)
    )
    assert choose("vectorized", work, 4, 10_000)[0] == "vectorized", "dropout does not mix"


class Counting(nn.Module):
    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
        out: Tensor = self.layer(x)
        return out


@pytest.mark.parametrize(
    "module",
    [
        Counting(),
        nn.Sequential(nn.BatchNorm1d(12), nn.Linear(12, 3)),
        nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(12, 3))),
    ],
    ids=["counter", "batch norm", "spectral norm"],
)
def test_buffers_that_training_changes_are_not_stacked(module: nn.Module) -> None:
    with pytest.raises(ob.ConfigError, match=r"executor: 'vectorized' cannot run this model: (it mixes|training chan)"):
        ob.run(**settings(model=module, executor="vectorized"))
    assert ob.run(**settings(model=module, executor="sequential")).summary["rounds"] > 0


def test_constant_buffers_and_scalars_are_fine() -> None:
    class Scaled(nn.Module):
        shift: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.layer, self.scale = nn.Linear(12, 3), nn.Parameter(torch.tensor(1.0))
            self.register_buffer("shift", torch.ones(12))

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.scale * self.layer(x + self.shift)
            return out

    assert ob.run(**settings(model=Scaled, executor="vectorized")).summary["executor"] == "vectorized"


@pytest.mark.parametrize(
    ("partition", "expected"),
    [
        ([np.zeros(300, dtype=bool)] * 2, "client 0 has bool, integers expected; convert a mask"),
        ([[0.5, 1.0], [2.0]], "client 0 has float64"),
        ({0: [1, 2], 1: [3]}, "one array of indices per client expected, got dict"),
        (np.arange(6), "client 0 has an array of shape"),
        ([["a"], ["b"]], "integers expected"),
        ([[0, 1], []], "client 1 has no data"),
        ([[0, 999]], "client 0: index 999"),
    ],
)
def test_what_only_looks_like_a_partition_is_refused(partition: Any, expected: str) -> None:
    with pytest.raises(ob.DataError, match=expected):
        ob.run(**settings(partition=partition, clients=None))


def test_a_run_with_objects_of_python_goes_on_with_the_same_call(tmp_path: pathlib.Path) -> None:
    torch.manual_seed(3)
    own = settings(model=nn.Linear(12, 3), partition=[np.arange(i, 300, 6) for i in range(6)], clients=None)
    whole = ob.run(**own, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt, match="interrupted at round"):
        ob.run(**own, out=tmp_path / "cut", watch=interrupt_after(7))
    with pytest.raises(ob.ConfigError, match=r"Linear was given from Python .* with resume=True"):
        ob.resume(tmp_path / "cut")
    with pytest.raises(ob.RunFolderError, match="holds another experiment"):
        ob.run(**(own | {"rounds": 21}), out=tmp_path / "cut", resume=True)
    again = ob.run(**own, out=tmp_path / "cut", resume=True)
    assert torch.equal(again.x, whole.x)
    assert (tmp_path / "cut/updates.npy").read_bytes() == (tmp_path / "whole/updates.npy").read_bytes()


def test_virtual_time_is_not_overshot() -> None:
    result = ob.run(
        **settings(rounds=10_000, virtual_seconds=9.5, environment=ob.Environment(delay=Constant(value=1.0)))
    )
    assert result.summary["virtual_seconds"] == 9.5
    assert result.summary["rounds"] == 9 * 2, "four clients a second, two a step; what would arrive at 10 s does not"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (ob.Environment(availability=Bernoulli(probability=0.0)), "nobody is ever awake"),
        (
            ob.Environment(availability=Bernoulli(probability=(0.5, 0.5))),
            "environment.availability.probability: 2 values for 6 clients",
        ),
        (
            ob.Environment(delay=Speeds(seconds_per_step=(0.1,))),
            "environment.delay.seconds_per_step: 1 values for 6 clients",
        ),
    ],
)
def test_worlds_that_do_not_fit_are_refused_at_once(
    environment: ob.Environment, expected: str, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(ob.ConfigError, match=expected):
        ob.run(**settings(environment=environment), out=tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_a_world_in_which_nothing_ever_arrives_ends_with_a_message(tmp_path: pathlib.Path) -> None:
    environment = ob.Environment(delay=Constant(value=1.0), trip_timeout=0.5)
    with pytest.raises(ob.ConfigError, match=r"brought no accepted update.*see environment\.trip_timeout"):
        ob.run(**settings(environment=environment), out=tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_few_awake_of_many_cost_little() -> None:
    """10,000 clients of which one in twenty is awake, 1,000 wanted: a slot is looked through once, not once a place."""
    environment = ob.Environment(delay=Constant(value=0.1), availability=Bernoulli(probability=0.05, slot=1.0))
    algorithm = ob.FedBuff()
    algorithm.start(torch.zeros(2), 10_000)
    trainer = Quadratics(torch.ones((10_000, 2)), lr=0.1, steps=1)
    loop = Loop(
        algorithm=algorithm,
        scheduler=ob.Continuous(concurrency=1000, buffer=10),
        environment=environment,
        transport=SimulatedTransport(environment, trainer, 0),
        clients=10_000,
        workload=lambda _: Workload(1),
        seed=0,
    )
    loop.start()
    started = time.perf_counter()
    for _ in range(2000):
        loop.turn()
    assert time.perf_counter() - started < 10, "it was 0.6 s a turn"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            {"executor": "vectorised"},
            "executor: 'vectorised' is not one of 'auto', 'sequential', 'vectorized', 'graphs', 'processes', 'ray'",
        ),
        ({"device": "gpu"}, "device: 'gpu' is not one of"),
        ({"rounds": 2.5}, "rounds: 2.5 is not an integer ≥ 1"),
        ({"clients": 20.0}, "clients: 20.0 is not an integer ≥ 1"),
        ({"algorithm": ob.FedBuff}, "is not an algorithm object"),
        ({"environment": {}}, "environment: {} is not a Environment"),
        ({"roundz": 3}, "roundz: unknown setting; .*Did you mean 'rounds'"),
        ({"evaluation": ob.Evaluation(target=0.5), "client": None}, "client: None is not a ClientRule"),
    ],
)
def test_python_users_get_messages_too(change: dict[str, Any], expected: str) -> None:
    with pytest.raises(ob.ConfigError, match=expected):
        ob.run(**settings(**change))
    for wrong in (lambda: ob.SGD(lr="0.1"), lambda: ob.algorithms.MFCA2FL(bits=3), lambda: ob.Evaluation(target=85)):  # type: ignore[arg-type]
        with pytest.raises(ob.ConfigError):
            wrong()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            {"algorithm": ob.algorithms.FedLuck(), "scheduler": ob.Periodic()},
            r"compression\.upload: FedLuck chooses the compression rate",
        ),
        (
            {
                "algorithm": ob.algorithms.FedDyn(alpha=1.0),
                "client": ob.client_rules.Dyn(),
                "scheduler": ob.Rounds(concurrency=2),
            },
            r"algorithm\.alpha: 1, but client\.alpha is 0\.01",
        ),
        (
            {
                "algorithm": ob.algorithms.DuDeASGD(),
                "client": ob.SGD(steps=1),
                "scheduler": ob.schedulers.PerArrival(concurrency=2),
                "environment": ob.Environment(local_work=Battery()),
            },
            r"environment\.local_work: DuDeASGD determines",
        ),
        ({"scheduler": ob.Rounds(concurrency=2, probabilities=(0.0,) * 6)}, r"scheduler\.probabilities"),
        (
            {"algorithm": ob.algorithms.DuDeASGD(), "scheduler": ob.schedulers.PerArrival(concurrency=2)},
            r"client\.steps: DuDeASGD is defined",
        ),
    ],
)
def test_rules_that_need_something_say_so(change: dict[str, Any], expected: str) -> None:
    with pytest.raises(ob.ConfigError, match=expected):
        ob.run(**settings(**change))


def test_numpy_numbers_are_numbers(tmp_path: pathlib.Path) -> None:
    result = ob.run(
        **settings(seed=np.int64(1), rounds=np.int32(2), client=ob.SGD(lr=np.float64(0.125))), out=tmp_path / "run"
    )
    assert result.summary["seed"] == 1
    assert "lr = 0.125" in (tmp_path / "run/config.toml").read_text()


def test_own_modules_beside_the_file_are_found_again(tmp_path: pathlib.Path) -> None:
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
            cwd=elsewhere, capture_output=True, text=True, timeout=120, check=False,
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
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0


def test_every_name_of_the_package_is_there() -> None:
    for name in dir(ob):
        assert getattr(ob, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ob.nothing  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"offbeat\.FedPer is now offbeat\.algorithms\.FedLuckFixed"):
        _ = ob.FedPer  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"offbeat\.MFCA2FL is now offbeat\.algorithms\.MFCA2FL"):
        _ = ob.MFCA2FL  # type: ignore[attr-defined]
    assert ob.schedulers.Available is Available
