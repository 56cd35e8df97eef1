"""The data set of an experiment and its partition among clients."""

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
    """A data set and its partition. Both may be custom."""

    source: Source = field(default_factory=Digits)
    """The data set."""
    clients: PositiveInt | None = None
    """Number of clients. A list of indices determines it; with `natural`, the default is one client per owner."""
    partition: Partition = field(default_factory=IID)
    """How examples are distributed among clients."""
    augment: Augment | None = None
    """Augmentation of the training images."""

    def load(self, folder: pathlib.Path, seed: int) -> FederatedData:
        """Read the data set and partition it.

        Args:
            folder: The data directory.
            seed: Seed of the partition.

        Raises:
            ConfigError: The partition or the augmentation does not fit the data.
        """
        dataset = _read(self.source, folder)
        if self.augment is not None:
            try:
                self.augment.check(dataset)
            except ConfigError as error:
                raise error.within("data.augment") from None
        keys = self._partition_keys(dataset)
        partition = self.partition.on(dataset) if isinstance(self.partition, CustomPartition) else self.partition
        fixed = partition.fixed if isinstance(partition, CustomPartition) else None
        if self.clients is not None and fixed is not None and self.clients != fixed:
            raise ConfigError(f"{self.clients} clients, but the partition has {fixed} parts", key="data.clients")
        clients = self.clients or fixed or (len(np.unique(keys)) if isinstance(self.partition, Natural) else None)
        if clients is None:
            raise ConfigError("missing; give the number of clients, such as clients = 100", key="data.clients")
        if isinstance(self.partition, Sampled):
            return Population(dataset, clients, self.partition, key(seed, "partition"))
        if clients > len(dataset):
            raise ConfigError(f"{clients} clients for {len(dataset)} examples: at most one each", key="data.clients")
        try:
            parts = partition.split(keys, clients, stream(seed, "partition"))
        except ConfigError as error:
            raise error.within("data.partition") from None
        if len(parts) != clients:
            raise ConfigError(f"it returned {len(parts)} parts for {clients} clients", key="data.partition")
        return PartitionedDataset.of(dataset, parts)

    def _partition_keys(self, dataset: Dataset) -> NDArray[np.int64]:
        """Return what the partition is based on: the label of each training example, or its owner."""
        if not isinstance(self.partition, Natural):
            if dataset.has_class_labels:
                return dataset.labels
            if not self.partition.needs_labels:
                return np.zeros(len(dataset), dtype=np.int64)
            raise ConfigError(
                f"{type(self.partition).__name__} distributes class labels, but the data has labels of another kind; "
                "use iid, natural, or one array of indices per client",
                key="data.partition.name",
            )
        if dataset.owners is None:
            raise ConfigError(
                "'natural' needs data with owners, such as shakespeare; pass owners=… to from_arrays",
                key="data.partition.name",
            )
        return dataset.owners.numpy()


def _read(source: Source, folder: pathlib.Path) -> Dataset:
    """Read a data set; built-in ones are cached, because the runs of a sweep share them."""
    name = next((name for name, kind in DATASETS.items() if type(source) is kind), "data")
    with preparing(name):
        return source.load(folder) if isinstance(source, CustomSource) else _cached(source, folder)


@functools.lru_cache(maxsize=2)
def _cached(source: Source, folder: pathlib.Path) -> Dataset:
    return source.load(folder)
