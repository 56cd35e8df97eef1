"""The interface of the built-in datasets."""

from __future__ import annotations

import pathlib
from abc import ABC, abstractmethod

from offbeat.data.dataset import Dataset
from offbeat.options import Options


class Source(Options, ABC):
    """Interface for sources of data."""

    @abstractmethod
    def load(self, folder: pathlib.Path) -> Dataset:
        """Read the dataset, downloading it if necessary.

        Args:
            folder: The folder of all datasets.

        Returns:
            The dataset.

        Raises:
            DataError: The files are missing and cannot be downloaded, or are damaged.
        """
