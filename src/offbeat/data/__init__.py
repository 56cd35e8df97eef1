"""Data sets and how they are divided among clients."""

from offbeat.data.dataset import Dataset, Federated, from_arrays, from_datasets
from offbeat.data.files import data_dir
from offbeat.data.partition import IID, PARTITIONS, Classes, Dirichlet, Partition, Quantity
from offbeat.data.sources import CIFAR10, DATASETS, MNIST, Digits, FashionMNIST, Source, Synthetic

__all__ = [
    "CIFAR10",
    "DATASETS",
    "IID",
    "MNIST",
    "PARTITIONS",
    "Classes",
    "Dataset",
    "Digits",
    "Dirichlet",
    "FashionMNIST",
    "Federated",
    "Partition",
    "Quantity",
    "Source",
    "Synthetic",
    "data_dir",
    "from_arrays",
    "from_datasets",
]
