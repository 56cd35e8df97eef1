"""Data sets and how they are divided among clients."""

from offbeat.data.augment import AUGMENTS, Augment, CropFlip
from offbeat.data.dataset import Dataset, Federated, from_arrays, from_datasets
from offbeat.data.files import data_dir
from offbeat.data.partition import IID, PARTITIONS, ByOwner, Classes, Dirichlet, Partition, Quantity
from offbeat.data.sources import CIFAR10, DATASETS, MNIST, Digits, FashionMNIST, Shakespeare, Source, Synthetic

__all__ = [
    "AUGMENTS",
    "CIFAR10",
    "DATASETS",
    "IID",
    "MNIST",
    "PARTITIONS",
    "Augment",
    "ByOwner",
    "Classes",
    "CropFlip",
    "Dataset",
    "Digits",
    "Dirichlet",
    "FashionMNIST",
    "Federated",
    "Partition",
    "Quantity",
    "Shakespeare",
    "Source",
    "Synthetic",
    "data_dir",
    "from_arrays",
    "from_datasets",
]
