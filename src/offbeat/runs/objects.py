"""Objects that were passed from Python and have no name: hashes of what they do, to recognize them again.

`config.toml` cannot describe a lambda, a module or an array. Without these hashes, a changed model in a notebook would
look like the one whose result is stored.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offbeat.data import PartitionedDataset
from offbeat.runs.assembly import Assembly
from offbeat.runs.custom import PYTHON
from offbeat.runs.experiment import first_examples
from offbeat.trees import call, map_tensors, size, tensors
from offbeat.vectors import copied

OBJECTS = "objects"  # in setting.json


def objects(config: str, assembly: Assembly) -> dict[str, Any]:
    """Return hashes of the model, the data and the losses, as an entry of `setting.json`.

    Only those of `forward` and `partition` may depend on the seed.

    Args:
        config: The experiment as TOML; without an object that has no name, nothing is returned.
        assembly: The experiment.
    """
    if f'"{PYTHON}' not in config:
        return {}
    hashes = {"model": _model, "forward": _forward, "data": _data, "partition": _partition, "task": _losses}
    return {OBJECTS: {name: made(assembly) for name, made in hashes.items()}}


def _model(assembly: Assembly) -> str:
    """Hash the structure of the model; not its initial weights, which may be random."""
    context = assembly.context
    return _hash(str(context.module), context.layout.fingerprint)


def _forward(assembly: Assembly) -> str:
    """Hash the frozen weights of the model and its outputs with fixed other weights."""
    context = assembly.context
    module = copied(context.module).eval()
    context.layout.write(module, _pattern(torch.empty(context.layout.dim)) - 0.5)
    with torch.no_grad():
        outputs = call(module, _first(assembly)[0])
    return _hash(context.fixed_fingerprint, *_rounded(outputs))


def _data(assembly: Assembly) -> str:
    """Hash the first examples, the number of examples and the class labels."""
    dataset = assembly.context.data.dataset
    labels = dataset.labels if dataset.has_class_labels and dataset.reader is None else ()
    return _hash(len(dataset), *tensors(first_examples(dataset)), np.asarray(labels))


def _partition(assembly: Assembly) -> str:
    data = assembly.context.data
    return _hash(data.clients, *((data.order, data.offsets) if isinstance(data, PartitionedDataset) else ()))


def _losses(assembly: Assembly) -> str:
    """Hash the names of the metrics and the losses of fixed outputs."""
    task, (inputs, labels) = assembly.experiment.task, _first(assembly)
    with torch.no_grad():
        outputs = map_tensors(_pattern, call(copied(assembly.context.module).eval(), inputs))
        try:
            losses = task.losses(outputs, labels, size(labels))
        except Exception:  # a loss may refuse such outputs
            losses = None
    return _hash(*(info.name for info in task.metric_infos()), *_rounded(losses))


def _first(assembly: Assembly) -> Any:
    """Return the first examples on the device of the run."""
    context = assembly.context
    return map_tensors(lambda each: each.to(context.device), first_examples(context.data.dataset))


def _pattern(like: Tensor) -> Tensor:
    """Return fixed values between 0 and 1 in the shape of a tensor."""
    values = 0.5 + 0.4 * torch.sin(torch.arange(like.numel(), dtype=torch.float64))
    return values.to(like).view(like.shape) if like.is_floating_point() else like


def _rounded(tree: Any) -> list[str]:
    return [f"{value:.4e}" for tensor in tensors(tree) for value in tensor.double().flatten().tolist()]


def _hash(*values: Any) -> str:
    found = hashlib.sha256()
    for value in values:
        array = value.detach().cpu().double().numpy() if isinstance(value, Tensor) else value
        found.update(np.ascontiguousarray(array).tobytes() if isinstance(array, np.ndarray) else str(array).encode())
        found.update(b";")
    return found.hexdigest()[:16]
