"""CSV and Parquet files as data sets."""

from __future__ import annotations

import gzip
import hashlib
import pathlib
from typing import Any

import numpy as np
import pytest
import torch

import offbeat as ob
from offbeat.data import Tabular
from offbeat.data.partitions import Natural
from offbeat.runs import api, config

ROWS = [("f", "20", "h1", "yes"), ("m", "40", "h2", "no"), ("f", "60", "h1", "no"), ("x", "80", "h2", "maybe")]
TEXT = "sex,age,place,ill\n" + "".join(",".join(row) + "\n" for row in ROWS)


def table(folder: pathlib.Path, text: str = TEXT, name: str = "t.csv") -> pathlib.Path:
    (folder / name).write_text(text)
    return folder


def load(folder: pathlib.Path, **more: Any) -> ob.Dataset:
    settings: dict[str, Any] = {"file": "t.csv", "label": "ill", "test_share": 0.0}
    return Tabular(**(settings | more)).load(folder)


def test_columns_become_inputs_and_text_becomes_classes(tmp_path: pathlib.Path) -> None:
    data = load(table(tmp_path), owner="place")
    ages = (np.array([20, 40, 60, 80]) - 50) / np.std([20, 40, 60, 80])
    x = torch.tensor([[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1]], dtype=torch.float32)
    assert isinstance(data.x, torch.Tensor)
    torch.testing.assert_close(data.x, torch.cat([x, torch.tensor(ages, dtype=torch.float32)[:, None]], dim=1))
    assert data.y.tolist() == [2, 1, 1, 0], "maybe, no, yes"
    assert data.classes == 3
    assert data.owners is not None
    assert data.owners.tolist() == [0, 1, 0, 1]
    plain = load(tmp_path, standardize=False, drop=("sex", "place"))
    assert plain.x.tolist() == [[20], [40], [60], [80]]


def test_a_test_file_uses_the_columns_and_scales_of_the_training_file(tmp_path: pathlib.Path) -> None:
    table(tmp_path)
    table(tmp_path, "age,ill,place,sex\n50,yes,h2,z\n", "test.csv")
    data = load(tmp_path, test_file="test.csv", owner="place")
    assert data.test_x.tolist() == [[0, 0, 0, 0]], "an unknown category and the mean age"
    assert data.test_y.tolist() == [2]
    assert data.test_owners is not None
    assert data.test_owners.tolist() == [1]
    table(tmp_path, "age,ill,place\n50,yes,h2\n", "test.csv")
    with pytest.raises(ob.DataError, match=r"test\.csv has no column 'sex', unlike t\.csv"):
        load(tmp_path, test_file="test.csv")


def test_a_share_of_the_rows_is_for_testing(tmp_path: pathlib.Path) -> None:
    table(tmp_path, "a,y\n" + "".join(f"{n},{n % 2}\n" for n in range(100)))
    data = load(tmp_path, label="y", test_share=0.3, standardize=False)
    assert (len(data), len(data.test_y)) == (70, 30)
    both = [*data.x.flatten().tolist(), *data.test_x.flatten().tolist()]
    assert sorted(both) == list(range(100))


def test_real_numbers_are_targets(tmp_path: pathlib.Path) -> None:
    data = load(table(tmp_path, "a,y\n1,0.5\n2,1.5\n"), label="y")
    assert data.classes is None
    assert data.y.tolist() == [[0.5], [1.5]]


def test_gzip_and_parquet_give_the_same_data(tmp_path: pathlib.Path) -> None:
    plain = load(table(tmp_path))
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(TEXT.encode()))
    assert torch.equal(load(tmp_path, file="t.csv.gz").x, plain.x)
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = list(zip(*ROWS, strict=True))
    typed = {"sex": columns[0], "age": [int(a) for a in columns[1]], "place": columns[2], "ill": columns[3]}
    parquet.write_table(pyarrow.table(typed), tmp_path / "t.parquet")
    data = load(tmp_path, file="t.parquet")
    assert torch.equal(data.x, plain.x)
    assert torch.equal(data.y, plain.y)


def test_a_checksum_is_verified(tmp_path: pathlib.Path) -> None:
    digest = hashlib.sha256(table(tmp_path).joinpath("t.csv").read_bytes()).hexdigest()
    assert len(load(tmp_path, sha256=digest)) == 4
    with pytest.raises(ob.DataError, match=f"sha256 {digest}, expected 12"):
        load(tmp_path, sha256="12")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "t.csv has no rows"),
        ("a,ill\n", "t.csv has no rows"),
        ("a,ill\n1\n", "line 2 has 1 values for 2 columns"),
        ("a,a,ill\n1,2,3\n", "two columns have the name 'a'"),
        ("age,ill\n1,0\n,1\n", "column 'age' has empty or infinite values; fill or drop it"),
    ],
)
def test_damaged_tables_are_explained(text: str, message: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(ob.DataError, match=message):
        load(table(tmp_path, text))


def test_mistakes_are_explained(tmp_path: pathlib.Path) -> None:
    table(tmp_path)
    with pytest.raises(ob.ConfigError, match=r"t\.csv has no column 'il'.* Did you mean 'ill'\?"):
        load(tmp_path, label="il")
    with pytest.raises(ob.DataError, match=r"none\.csv is neither in .* nor in .*--data-dir"):
        load(tmp_path, file="none.csv")
    with pytest.raises(ob.ConfigError, match=r"data\.label: missing"):
        config.parse({"data": {"name": "tabular", "file": "t.csv"}})
    with pytest.raises(ob.ConfigError, match="no column that could be an input"):
        load(tmp_path, drop=("sex", "age", "place"))


def test_a_table_is_run_by_owner(tmp_path: pathlib.Path) -> None:
    table(tmp_path, "a,who,y\n" + "".join(f"{n % 7},h{n % 5},{n % 7 > 3:d}\n" for n in range(200)))
    data = {"name": "tabular", "file": "t.csv", "label": "y", "owner": "who", "partition": "natural"}
    experiment = config.parse({"rounds": 3, "data": data, "scheduler": {"concurrency": 4, "buffer": 2}})
    assert isinstance(experiment.data.partition, Natural)
    assert api.execute(experiment, data_dir=tmp_path).summary["clients"] == 5
