"""What is learnt, and who has it."""

from __future__ import annotations

import functools
import pathlib
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from offbeat.data import (
    DATASETS,
    IID,
    Augment,
    Dataset,
    Digits,
    FederatedData,
    Natural,
    Partition,
    PartitionedDataset,
    Population,
    Sampled,
    Source,
)
from offbeat.data.preparing import preparing
from offbeat.errors import ConfigError
from offbeat.options import Options, PositiveInt
from offbeat.random import key, stream
from offbeat.runs.custom import CustomPartition, CustomSource


@dataclass(kw_only=True, frozen=True)
class Data(Options):
    """A data set and how it is divided.  Both may be the user's own."""

    source: Source = field(default_factory=Digits)
    """The data set."""
    clients: PositiveInt | None = None
    """Number of clients; with a partition that is a list of indices it follows from the list, and with `natural` all
    owners are clients unless fewer are asked for."""
    partition: Partition = field(default_factory=IID)
    """Who has which examples."""
    augment: Augment | None = None
    """What is done to the images of every batch in training."""

    def load(self, folder: pathlib.Path, seed: int) -> FederatedData:
        """Read the data and divide it; the division depends on the seed."""
        dataset = _read(self.source, folder)
        if self.augment is not None:
            try:
                self.augment.check(dataset)
            except ConfigError as error:
                raise error.within("data.augment") from None
        marks = self._marks(dataset)
        fixed = self.partition.fixed if isinstance(self.partition, CustomPartition) else None
        if self.clients is not None and fixed is not None and self.clients != fixed:
            raise ConfigError(f"{self.clients}, but the partition has {fixed} parts", key="data.clients")
        clients = self.clients or fixed or (len(np.unique(marks)) if isinstance(self.partition, Natural) else None)
        if clients is None:
            raise ConfigError("missing: how many clients?", key="data.clients")
        if isinstance(self.partition, Sampled):
            return Population(dataset, clients, self.partition, key(seed, "partition"))
        if clients > len(dataset.y):
            raise ConfigError(f"{clients} clients for {len(dataset.y)} examples: at most one each", key="data.clients")
        try:
            parts = self.partition.split(marks, clients, stream(seed, "partition"))
        except ConfigError as error:
            raise error.within("data.partition") from None
        if len(parts) != clients:
            raise ConfigError(f"gave {len(parts)} parts for {clients} clients", key="data.partition")
        return PartitionedDataset.of(dataset, parts)

    def _marks(self, dataset: Dataset) -> NDArray[np.int64]:
        """What the partition goes by: the label of every training example, or whose it is."""
        if not isinstance(self.partition, Natural):
            return dataset.y.numpy()
        if dataset.owners is None:
            raise ConfigError(
                "'natural' needs data that says whose its examples are, such as shakespeare; "
                "from_arrays takes owners=…",
                key="data.partition.name",
            )
        return dataset.owners.numpy()


def _read(source: Source, folder: pathlib.Path) -> Dataset:
    """Read a data set; offbeat's own are kept, since the runs of a sweep share them."""
    name = next((name for name, kind in DATASETS.items() if type(source) is kind), "data")
    with preparing(name):
        return source.load(folder) if isinstance(source, CustomSource) else _cached(source, folder)


@functools.lru_cache(maxsize=2)
def _cached(source: Source, folder: pathlib.Path) -> Dataset:
    return source.load(folder)
