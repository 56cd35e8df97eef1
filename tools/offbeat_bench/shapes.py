"""Local steps per second of models of given shapes, from a checkout with only torch and NumPy installed.

    PYTHONPATH=src:tools python -m offbeat_bench.shapes vit gpt lora --device cuda

Each case trains on random examples under `sequential` and `vectorized`. A line is printed as soon as it is known: the
median of the repetitions with the least and the most, the time to set up, and the peak memory of a GPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from offbeat.client.context import TrainingContext
from offbeat.client.rules import SGD, AdamW, ClientRule
from offbeat.client.runtime import ClientRuntime
from offbeat.data import Dataset, PartitionedDataset, from_arrays
from offbeat.models import CNN, GPT, ConvMixer, LoRA, Model, ResNet18, ViT
from offbeat.tasks import TASKS
from offbeat_bench.train import measure

STEPS = 10  # batches per client


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model with its data and clients."""

    model: Model
    small: Model
    """A model of the same kind for a trial on a CPU."""
    clients: int
    batch: int
    rule: ClientRule
    length: int | None = None
    """Tokens of a sequence; None for images of 3×32×32."""
    vocabulary: int = 80

    def data(self, small: bool) -> Dataset:
        """Return random examples, enough for all clients."""
        rng, n = np.random.default_rng(0), self.clients * self.batch * STEPS
        if self.length is None:
            x = rng.integers(256, size=(n, 3, 32, 32), dtype=np.uint8)
            return from_arrays(x, rng.integers(10, size=n), classes=10)
        words, length = (80, 16) if small else (self.vocabulary, self.length)
        tokens = rng.integers(words, size=(n, length + 1))
        return from_arrays(tokens[:, :-1], tokens[:, 1:], vocabulary=words)

    def runtime(self, device: str, precision: Any, small: bool) -> ClientRuntime:
        """Return the client runtime with the model on a device."""
        dataset = self.data(small)
        torch.manual_seed(0)
        model = self.small if small else self.model
        module = model.build(dataset.shape, dataset.outputs, dataset.vocabulary)
        data = PartitionedDataset.of(dataset, np.array_split(np.arange(len(dataset)), self.clients))
        task = TASKS["classification" if self.length is None else "language-modeling"]()
        return ClientRuntime(
            TrainingContext(module, data, self.rule, torch.device(device), precision=precision, task=task)
        )


def _sgd(batch: int) -> SGD:
    return SGD(lr=0.01, batch_size=batch)


SMALL_GPT = GPT(width=16, depth=1, heads=2)
LARGE_GPT = GPT(width=768, depth=12, heads=12)
CASES = {
    "vit": Case(
        model=ViT(width=256, depth=6, heads=4), small=ViT(width=16, depth=1, heads=2),
        clients=16, batch=32, rule=_sgd(32),
    ),
    "gpt": Case(
        model=GPT(width=320, depth=8, heads=5), small=SMALL_GPT,
        clients=16, batch=16, rule=_sgd(16), length=128,
    ),
    "lora": Case(
        model=LoRA(model=LARGE_GPT, targets=("qkv", "attention_out")), small=LoRA(model=SMALL_GPT, targets=("qkv",)),
        clients=16, batch=8, rule=_sgd(8), length=128, vocabulary=16_384,
    ),
    "lora-all": Case(
        model=LoRA(model=LARGE_GPT, targets=("qkv", "attention_out", "hidden", "hidden_out")),
        small=LoRA(model=SMALL_GPT, targets=("qkv", "hidden")),
        clients=16, batch=8, rule=_sgd(8), length=128, vocabulary=16_384,
    ),
    "cnn-sgd": Case(model=CNN(), small=CNN(hidden=(8,)), clients=50, batch=10, rule=_sgd(10)),
    "cnn-adamw": Case(
        model=CNN(), small=CNN(hidden=(8,)), clients=50, batch=10, rule=AdamW(lr=0.001, batch_size=10)
    ),
    "convmixer": Case(
        model=ConvMixer(norm="batch"), small=ConvMixer(dim=8, depth=1, norm="batch"),
        clients=5, batch=50, rule=_sgd(50),
    ),
    "resnet18": Case(
        model=ResNet18(norm="batch"), small=ResNet18(width=4, norm="batch"), clients=16, batch=50, rule=_sgd(50)
    ),
}  # fmt: skip


def lines(
    names: list[str], executors: list[str], device: str, precision: Any, seconds: float, repeat: int,
    compiled: bool = False, small: bool = False,
) -> Iterator[str]:  # fmt: skip
    """Yield one line per case and executor.

    Args:
        names: Names of cases.
        executors: Names of executors.
        device: "cpu" or "cuda".
        precision: Precision of matrix products and convolutions on a GPU.
        seconds: Duration of each measurement.
        repeat: Measurements per line, of which the median counts.
        compiled: Whether to compile the steps of `vectorized` on a GPU.
        small: Whether to use tiny models, to try the program.
    """
    for name in names:
        case, first = CASES[name], 0.0
        work = case.runtime(device, precision, small)
        module, trained = work.context.module, work.context.layout.dim
        frozen = sum(p.nbytes for p in module.parameters() if not p.requires_grad)
        yield (
            f"{name}: {sum(p.numel() for p in module.parameters()):,} parameters, {trained:,} trained, "
            f"{case.clients} clients × batch {case.batch}, {device}, {precision}; {frozen / 2**20:,.0f} MiB frozen, "
            f"{4 * trained * case.clients / 2**20:,.1f} MiB trained by all clients"
        )
        for executor in executors:
            if device == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            started = time.perf_counter()
            found = measure(executor, work, case.clients, seconds, repeat, compiled)
            if "refused" in found:
                yield f"  {executor:12} refused: {found['refused']}"
                continue
            rate = found["client_steps_per_second"]
            first = first or rate
            yield (
                f"  {executor:12}{' compiled' if found['compiled'] else ''} {rate:10,.1f} client-steps/s "
                f"({found['least']:,.1f} – {found['most']:,.1f}), {rate / first:.2f} × the first, "
                f"set up in {found['setup_seconds']:.1f} s, {time.perf_counter() - started:.0f} s in all"
                f"{_memory(device)}"
            )
        del work, module


def _memory(device: str) -> str:
    if device != "cuda":
        return ""
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    return f", peak {allocated / 2**20:,.0f} MiB allocated, {reserved / 2**20:,.0f} MiB reserved"


def main() -> None:
    """Parse the command line and print the lines."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="CASE", help=f"of {', '.join(CASES)}")
    parser.add_argument("--executor", action="append", help="executor to measure; repeatable")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--precision", default="tf32", choices=["float32", "tf32", "bfloat16"])
    parser.add_argument("--seconds", type=float, default=2.0, help="duration of a measurement")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--compile", action="store_true", help="compile the steps on a GPU")
    parser.add_argument("--small", action="store_true", help="tiny models, to try the program")
    given = parser.parse_args()
    if unknown := set(given.cases) - CASES.keys():
        parser.error(f"unknown case {min(unknown)!r}; valid: {', '.join(CASES)}")
    for line in lines(
        given.cases, given.executor or ["sequential", "vectorized"], given.device, given.precision, given.seconds,
        given.repeat, given.compile, given.small,
    ):  # fmt: skip
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
