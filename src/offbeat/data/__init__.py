"""Datasets and their partitions among clients."""

from offbeat.data.augment import AUGMENTS, Augment, CropFlip
from offbeat.data.create import from_arrays, from_datasets
from offbeat.data.dataset import Dataset, PartitionedDataset
from offbeat.data.files import data_dir
from offbeat.data.huggingface import from_hugging_face
from offbeat.data.partitions import IID, Dirichlet, LabelShards, Natural, Partition, QuantitySkew
from offbeat.data.population import Population, Sampled
from offbeat.data.sources import (
    CIFAR10,
    CIFAR100,
    DATASETS,
    FEMNIST,
    MNIST,
    Digits,
    FashionMNIST,
    Shakespeare,
    Source,
    Synthetic,
    Tabular,
)

PARTITIONS: dict[str, type[Partition]] = {
    "iid": IID,
    "dirichlet": Dirichlet,
    "label-shards": LabelShards,
    "quantity-skew": QuantitySkew,
    "natural": Natural,
    "sampled": Sampled,
}
FederatedData = PartitionedDataset | Population
"""A dataset together with the assignment of its examples to clients."""

__all__ = [
    "AUGMENTS",
    "CIFAR10",
    "CIFAR100",
    "DATASETS",
    "FEMNIST",
    "IID",
    "MNIST",
    "PARTITIONS",
    "Augment",
    "CropFlip",
    "Dataset",
    "Digits",
    "Dirichlet",
    "FashionMNIST",
    "FederatedData",
    "LabelShards",
    "Natural",
    "Partition",
    "PartitionedDataset",
    "Population",
    "QuantitySkew",
    "Sampled",
    "Shakespeare",
    "Source",
    "Synthetic",
    "Tabular",
    "data_dir",
    "from_arrays",
    "from_datasets",
    "from_hugging_face",
]
