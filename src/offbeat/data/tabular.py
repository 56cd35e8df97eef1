"""Tables: CSV and Parquet files with one example per row."""

from __future__ import annotations

import csv
import gzip
import hashlib
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from offbeat.data.create import from_arrays
from offbeat.data.dataset import Dataset
from offbeat.data.source import Source
from offbeat.errors import ConfigError, DataError, nearest
from offbeat.options import Interval
from offbeat.random import stream

Column = NDArray[Any]
Table = Mapping[str, Column]
MAX_CATEGORIES = 1000  # of one column, for inputs


@dataclass(kw_only=True, frozen=True)
class Tabular(Source):
    """A table: a CSV file, gzipped or not, with a header, or a Parquet file. Each row is an example.

    Columns of numbers are inputs as they are, or standardized; columns of text become one input per category. Labels
    that are text or integers are classes; real numbers, such as 3.0, are targets for the task `regression`. Parquet
    needs pyarrow.
    """

    file: str
    """Path of the training examples, in the folder of the datasets or relative to the working directory."""
    label: str
    """Column of the labels."""
    test_file: str | None = None
    """Path of the test examples; without one, a random share of the training examples is used."""
    test_share: Annotated[float, Interval(ge=0, lt=1)] = 0.2
    """Share of the rows that are test examples, if there is no `test_file`."""
    owner: str | None = None
    """Column that names the owner of an example, for the partition `natural`."""
    drop: tuple[str, ...] = ()
    """Columns that are not inputs, such as identifiers."""
    standardize: bool = True
    """Whether columns of numbers get mean 0 and standard deviation 1 over the training examples."""
    sha256: str | None = None
    """Checksum that `file` must have."""

    def load(self, folder: pathlib.Path) -> Dataset:
        """Read the dataset."""
        train = _read(_place(folder, self.file), self.sha256)
        for name in (self.label, *((self.owner,) if self.owner else ()), *self.drop):
            if name not in train:
                raise ConfigError(f"{self.file} has no column {name!r}; {nearest(name, train)}", key="data")
        if self.test_file is not None:
            test = _read(_place(folder, self.test_file))
            if missing := train.keys() - test.keys():
                raise DataError(f"{self.test_file} has no column {min(missing)!r}, unlike {self.file}")
        else:
            train, test = self._split(train)
        y, test_y, classes = _labels(train[self.label], test[self.label])
        owners, test_owners = self._owners(train, test)
        x, test_x = self._inputs(train, test)
        some = len(test_y) > 0
        return from_arrays(
            x, y, test_x if some else None, test_y if some else None, classes=classes, owners=owners,
            test_owners=test_owners if some else None,
        )  # fmt: skip

    def _split(self, table: Table) -> tuple[Table, Table]:
        """Divide the rows into those for training and those for testing."""
        rows = len(table[self.label])
        order = stream("tabular").permutation(rows)
        cut = round(rows * self.test_share)
        parts = np.sort(order[cut:]), np.sort(order[:cut])
        train, test = ({name: column[part] for name, column in table.items()} for part in parts)
        return train, test

    def _owners(self, train: Table, test: Table) -> tuple[NDArray[np.int64] | None, NDArray[np.int64] | None]:
        if self.owner is None:
            return None, None
        names = np.unique(train[self.owner].astype(str))
        train_owners, test_owners = (_positions(names, table[self.owner].astype(str)) for table in (train, test))
        return train_owners, test_owners if (test_owners >= 0).all() else None

    def _inputs(self, train: Table, test: Table) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the inputs of both splits, from the same columns."""
        names = [name for name in train if name not in (self.label, self.owner, *self.drop)]
        if not names:
            raise ConfigError(f"{self.file} has no column that could be an input", key="data")
        pairs = [self._encoded(name, train[name], test[name]) for name in names]
        x, test_x = (np.concatenate(parts, axis=1, dtype=np.float32) for parts in zip(*pairs, strict=True))
        return x, test_x

    def _encoded(self, name: str, train: Column, test: Column) -> tuple[Column, Column]:
        """Return a column of both splits as inputs (rows, n)."""
        if train.dtype.kind in "fiub" and test.dtype.kind in "fiub":
            both = [column.astype(np.float64)[:, None] for column in (train, test)]
            if not all(np.isfinite(column).all() for column in both):
                raise DataError(f"{self.file}: column {name!r} has empty or infinite values; fill or drop it")
            if self.standardize and len(train):
                mean, std = both[0].mean(), both[0].std()
                both = [(column - mean) / (std or 1.0) for column in both]
            return both[0], both[1]
        texts = [column.astype(str) for column in (train, test)]
        categories = np.unique(texts[0])
        if len(categories) > MAX_CATEGORIES:
            raise ConfigError(
                f"column {name!r} of {self.file} has {len(categories):,} different texts; add it to drop",
                key="data.drop",
            )
        one, other = ((text[:, None] == categories).astype(np.float32) for text in texts)
        return one, other


def _labels(train: Column, test: Column) -> tuple[Column, Column, int | None]:
    """Return the labels of both splits, and the number of classes unless they are real numbers."""
    if train.dtype.kind == "f":
        return train.astype(np.float32)[:, None], test.astype(np.float32)[:, None], None
    as_text = train.dtype.kind not in "iub"
    values = np.unique(np.concatenate([each.astype(str) if as_text else each for each in (train, test)]))
    y, test_y = (_positions(values, each.astype(str) if as_text else each) for each in (train, test))
    return y, test_y, len(values)


def _positions(values: Column, column: Column) -> NDArray[np.int64]:
    """Return the position of each entry among sorted values, or -1."""
    place = np.searchsorted(values, column).clip(max=max(0, len(values) - 1))
    return np.where(values[place] == column, place, -1).astype(np.int64)


def _place(folder: pathlib.Path, name: str) -> pathlib.Path:
    for path in (folder / name, pathlib.Path(name)):
        if path.is_file():
            return path
    raise DataError(
        f"{name} is neither in {folder} nor in {pathlib.Path.cwd()}; choose the folder with --data-dir or OFFBEAT_DATA."
    )


def _read(path: pathlib.Path, sha256: str | None = None) -> Table:
    """Read a table.

    Raises:
        DataError: The file is damaged, is no table, or has another checksum.
    """
    try:
        if sha256 is not None and (found := hashlib.sha256(path.read_bytes()).hexdigest()) != sha256.lower():
            raise DataError(f"{path}: sha256 {found}, expected {sha256}")
        table = _parquet(path) if path.suffix == ".parquet" else _csv(path)
    except (OSError, EOFError, ValueError, csv.Error) as error:
        raise DataError(f"{path} is not a table: {error}") from error
    if not table or not len(next(iter(table.values()))):
        raise DataError(f"{path} has no rows")
    return table


def _csv(path: pathlib.Path) -> Table:
    opened: Any = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file)
        header = [name.strip() for name in next(rows, [])]
        if len(set(header)) < len(header):
            raise ValueError(f"two columns have the name {next(n for n in header if header.count(n) > 1)!r}")
        body = []
        for row in filter(None, rows):
            if len(row) != len(header):
                raise ValueError(f"line {rows.line_num} has {len(row)} values for {len(header)} columns")
            body.append(row)
    return {name: _typed([row[place].strip() for row in body]) for place, name in enumerate(header)}


def _typed(values: list[str]) -> Column:
    """Return the values as integers, else as numbers with NaN for empty ones, else as text."""
    for kind, given in ((np.int64, values), (np.float64, [value or "nan" for value in values])):
        try:
            return np.array([kind(value) for value in given])
        except (ValueError, OverflowError):
            continue
    return np.array(values)


def _parquet(path: pathlib.Path) -> Table:
    try:
        import pyarrow.parquet as parquet  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise DataError(f"reading {path.name} needs pyarrow; install it with: pip install pyarrow") from error
    table = parquet.read_table(path)
    columns = {name: table.column(name).to_numpy() for name in table.column_names}
    return {
        name: _typed([*map(str, column)]) if column.dtype.kind == "O" else column for name, column in columns.items()
    }
