"""Data sets and how they are divided among clients."""

from offbeat.data.augment import AUGMENTS, Augment, CropFlip
from offbeat.data.dataset import Dataset, Federated, from_arrays, from_datasets
from offbeat.data.files import data_dir
from offbeat.data.partition import IID, ByOwner, Classes, Dirichlet, Partition, Quantity
from offbeat.data.population import Population, Sampled
from offbeat.data.sources import CIFAR10, DATASETS, MNIST, Digits, FashionMNIST, Shakespeare, Source, Synthetic

PARTITIONS: dict[str, type[Partition]] = {
    "iid": IID,
    "dirichlet": Dirichlet,
    "classes": Classes,
    "quantity": Quantity,
    "natural": ByOwner,
    "sampled": Sampled,
}
Divided = Federated | Population
"""A data set and who has what of it."""

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
    "Divided",
    "FashionMNIST",
    "Federated",
    "Partition",
    "Population",
    "Quantity",
    "Sampled",
    "Shakespeare",
    "Source",
    "Synthetic",
    "data_dir",
    "from_arrays",
    "from_datasets",
]
