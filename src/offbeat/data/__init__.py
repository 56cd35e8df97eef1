"""Data sets and how they are divided among clients."""

from offbeat.data.dataset import Dataset, Federated, from_arrays, from_datasets
from offbeat.data.files import data_dir
from offbeat.data.partition import IID, PARTITIONS, ByOwner, Classes, Dirichlet, Partition, Quantity
from offbeat.data.sources import CIFAR10, DATASETS, MNIST, Digits, FashionMNIST, Shakespeare, Source, Synthetic

__all__ = [
    "CIFAR10",
    "DATASETS",
    "IID",
    "MNIST",
    "PARTITIONS",
    "ByOwner",
    "Classes",
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
