"""Data, models, timing and output that all compared systems share.

Each `*_peer.py` in this folder defines one function, `train(task, module, data) -> (seconds, module)`, and passes it to
`main`. This module needs only torch and NumPy; the models are offbeat's own, from the repository's `src`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import pathlib
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "src"))

import numpy as np
import torch
from torch import Tensor, nn

from offbeat.models import CNN, LR, MLP, Model

MNIST, CIFAR = (1, 28, 28), (3, 32, 32)
MODELS: dict[str, tuple[Model, tuple[int, int, int]]] = {
    "lr": (LR(), MNIST),
    "mlp": (MLP(), MNIST),
    "cnn": (CNN(), CIFAR),
    "lr-cifar": (LR(), CIFAR),
    "mlp-cifar": (MLP(hidden=(200,)), CIFAR),
}
CLASSES, SEED = 10, 0
BUFFER = 10  # arrivals per step of FedBuff


@dataclass(frozen=True)
class Task:
    """The work to do. A round is one cohort of clients: one step of FedAvg, or cohort/BUFFER steps of FedBuff."""

    model: str
    algorithm: str
    rounds: int
    warmup: int
    device: str
    users: int
    samples: int
    cohort: int
    batch_size: int
    lr: float
    threads: int | None

    @property
    def local_steps(self) -> int:
        """Local steps of one client."""
        return -(-self.samples // self.batch_size)

    @property
    def per_version(self) -> int:
        """Clients per server step."""
        return self.cohort if self.algorithm == "fedavg" else BUFFER

    @property
    def server_rate(self) -> float:
        """Server rate η, with which the FedBuff steps of one cohort go as far as one step of FedAvg.

        With η = 1 stale updates overshoot and the loss rises.
        """
        return self.per_version / self.cohort

    @property
    def warmup_versions(self) -> int:
        """Server steps of the warm-up."""
        return self.warmup * self.cohort // self.per_version

    @property
    def versions(self) -> int:
        """Server steps, including the warm-up."""
        return (self.warmup + self.rounds) * self.cohort // self.per_version

    @property
    def timed_steps(self) -> int:
        """Local steps of all clients after the warm-up."""
        return (self.versions - self.warmup_versions) * self.per_version * self.local_steps


@dataclass(frozen=True)
class Data:
    """Examples on the CPU; user i has those from i·samples to (i + 1)·samples."""

    x: Tensor
    y: Tensor
    samples: int

    def user(self, i: int) -> tuple[Tensor, Tensor]:
        """Return the inputs and labels of a user."""
        part = slice(i * self.samples, (i + 1) * self.samples)
        return self.x[part], self.y[part]


def make_data(model: str, users: int, samples: int) -> Data:
    """Return noisy images of ten coarse patterns, easy enough for the loss to fall at once.

    A fifth of the labels are random, so that gradients do not vanish: denormal numbers would be slow.
    """
    rng = np.random.default_rng(SEED)
    _, (channels, height, width) = MODELS[model]
    coarse = rng.standard_normal((CLASSES, channels, 4, 4))
    patterns = np.kron(coarse, np.ones((height // 4, width // 4))).astype(np.float32)
    y = rng.integers(CLASSES, size=users * samples)
    x = rng.standard_normal((len(y), channels, height, width), dtype=np.float32)
    x += patterns[y]
    x *= 0.3
    y = np.where(rng.random(len(y)) < 0.2, rng.integers(CLASSES, size=len(y)), y)
    return Data(torch.from_numpy(x), torch.from_numpy(y), samples)


def make_model(name: str) -> nn.Module:
    """Return a model with fixed initial weights."""
    torch.manual_seed(SEED)
    model, shape = MODELS[name]
    return model.build(shape, CLASSES)


@torch.no_grad()
def training_loss(module: nn.Module, data: Data) -> float:
    """Return the mean cross-entropy on the first thousand training examples, to see that a system trains at all."""
    module = module.cpu().eval()
    return nn.functional.cross_entropy(module(data.x[:1000]), data.y[:1000]).item()


class FinishedError(Exception):
    """Raised by a clock to end a run that would continue."""


class Clock:
    """Records when each server step is done.

    Args:
        task: The work.
        stop: Raise `FinishedError` after the last step, for systems that would continue.
    """

    def __init__(self, task: Task, *, stop: bool = False) -> None:
        self.task, self.stop = task, stop
        self.stamps: list[float] = []

    def tick(self) -> None:
        """Record the end of a server step."""
        if self.task.device == "cuda":
            torch.cuda.synchronize()
        self.stamps.append(time.perf_counter())
        if self.stop and len(self.stamps) == self.task.versions:
            raise FinishedError

    @property
    def seconds(self) -> float:
        """Seconds from the end of the warm-up to the end of the last step."""
        if len(self.stamps) < self.task.versions:
            raise RuntimeError(f"{len(self.stamps)} server steps, {self.task.versions} expected")
        return self.stamps[self.task.versions - 1] - self.stamps[self.task.warmup_versions - 1]


Train = Callable[[Task, nn.Module, Data], tuple[float, nn.Module]]


def parser(description: str, algorithms: tuple[str, ...]) -> argparse.ArgumentParser:
    """Return a parser with the options that all systems share."""
    p = argparse.ArgumentParser(description=description.splitlines()[0])
    p.add_argument("--model", choices=list(MODELS), default="cnn")
    p.add_argument("--algorithm", choices=algorithms, default=algorithms[0])
    p.add_argument("--rounds", type=int, default=10, help="timed rounds of one cohort each")
    p.add_argument("--warmup", type=int, default=2, help="rounds before the timer starts; at least one")
    p.add_argument("--repeat", type=int, default=1)
    p.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    p.add_argument("--users", type=int, default=1000)
    p.add_argument("--samples", type=int, default=50, help="examples per user")
    p.add_argument(
        "--cohort", type=int, default=50, help="clients per round; with fedbuff clients that train at a time"
    )
    p.add_argument("--batch-size", type=int, default=10)
    p.add_argument("--lr", type=float, default=0.1)
    p.add_argument("--threads", type=int, help="torch threads of each process (default: the system's choice)")
    return p


def main(system: str, package: str, args: argparse.Namespace, train: Train, *, silent: bool = False) -> None:
    """Train `--repeat` times from the same start and print one line of JSON each; other output goes to stderr.

    Args:
        system: Name of the system.
        package: Package whose version is reported.
        args: Options of `parser`.
        train: The system's training function.
        silent: Print nothing.
    """
    names = Task.__dataclass_fields__
    task = Task(**{name: value for name, value in vars(args).items() if name in names})
    if task.warmup < 1 or task.rounds < 1:
        raise SystemExit(f"--warmup {task.warmup} --rounds {task.rounds}: at least one each")
    if task.threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(task.threads)
        torch.set_num_threads(task.threads)
    data = make_data(task.model, task.users, task.samples)
    before = training_loss(make_model(task.model), data)
    for _ in range(args.repeat):
        module = make_model(task.model)
        with contextlib.redirect_stdout(sys.stderr):
            seconds, trained = train(task, module, data)
        line = {
            "system": system,
            "version": importlib.metadata.version(package) if package != "offbeat" else _own_version(),
            **asdict(task),
            "processes": getattr(args, "processes", 1),
            "parameters": sum(p.numel() for p in module.parameters()),
            "client_steps": task.timed_steps,
            "seconds": seconds,
            "client_steps_per_second": task.timed_steps / seconds,
            "loss_before": before,
            "loss_after": training_loss(trained, data),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "machine": torch.cuda.get_device_name() if task.device == "cuda" else f"{os.cpu_count()} cores",
        }
        if not silent:
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()


def _own_version() -> str:
    from offbeat.version import __version__

    return __version__
