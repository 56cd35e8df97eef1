"""Data in the format of LEAF (Caldas et al., 2018): JSON files with the examples of each user."""

from __future__ import annotations

import json
import pathlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offbeat.data.create import from_arrays
from offbeat.data.dataset import Dataset
from offbeat.data.source import Source
from offbeat.errors import DataError

CLASSES, SIDE = 62, 28
User = tuple[NDArray[np.float32], NDArray[np.int64]]
"""The inputs and labels of a user."""


@dataclass(kw_only=True, frozen=True)
class FEMNIST(Source):
    """FEMNIST of LEAF: handwritten characters, 28×28 grayscale in 62 classes, each with its writer as the owner.

    LEAF samples it from EMNIST by a script, so there are no official files: run `preprocess.sh` in its folder
    `data/femnist` and copy `data/train` and `data/test` into `femnist/`. The partition `natural` gives each client a
    writer.
    """

    def load(self, folder: pathlib.Path) -> Dataset:
        """Read the dataset."""
        place = folder / "femnist"
        train, test = (_users(place / split) for split in ("train", "test"))
        number = {name: index for index, name in enumerate(train)}
        x, test_x = (np.concatenate([user[0] for user in split.values()]) for split in (train, test))
        y, test_y = (np.concatenate([user[1] for user in split.values()]) for split in (train, test))
        owners, test_owners = (
            np.repeat([number.get(name, -1) for name in split], [len(user[1]) for user in split.values()])
            for split in (train, test)
        )
        known = test.keys() <= train.keys()  # else the split is by user
        return from_arrays(
            x, y, test_x, test_y, classes=CLASSES, owners=owners, test_owners=test_owners if known else None
        )


def _users(folder: pathlib.Path) -> dict[str, User]:
    """Return the examples of the users in all files of a folder."""
    files = sorted(folder.glob("*.json"))
    if not files:
        raise DataError(
            f"{folder} has no JSON files. Run preprocess.sh of LEAF (github.com/TalwalkarLab/leaf, data/femnist) and "
            f"copy its data/{folder.name} there, or choose another folder with --data-dir or OFFBEAT_DATA."
        )
    users: dict[str, User] = {}
    for file in files:
        try:
            for name, data in json.loads(file.read_text(encoding="utf-8"))["user_data"].items():
                x = np.asarray(data["x"], dtype=np.float32).reshape(-1, 1, SIDE, SIDE)
                y = np.asarray(data["y"], dtype=np.int64)
                if y.shape != (len(x),) or (len(y) and not 0 <= y.min() <= y.max() < CLASSES):
                    raise ValueError(f"user {name!r} has {len(x)} images, and labels of shape {y.shape}")
                users[name] = (x, y)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{file} is not a file of LEAF's FEMNIST: {error!r}") from error
    return users
