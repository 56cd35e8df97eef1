"""The commands `offbeat report` and `offbeat compare`."""

from __future__ import annotations

import json
import pathlib

import pytest
from click.testing import CliRunner, Result

from offbeat.cli import main


def offbeat(*words: object, columns: int = 100) -> Result:
    return CliRunner(env={"COLUMNS": str(columns)}).invoke(main, [str(word) for word in words])


def test_a_report_and_its_pictures(runs: pathlib.Path, tmp_path: pathlib.Path) -> None:
    some = (runs / "sweep" / "ca2fl" / "seed-1", runs / "cafga")
    made = offbeat("report", *some, "--html", tmp_path / "a.html", "--png", tmp_path / "pictures")
    assert made.exit_code == 0, made.output
    assert "<title>2 runs</title>" in (tmp_path / "a.html").read_text()
    names = {path.name for path in (tmp_path / "pictures").iterdir()}
    assert {
        "accuracy-virtual_seconds.svg",
        "accuracy-bytes_up.png",
        "CA2FL-seed1-ages.png",
        "cafga-seed0-network.svg",
    } <= names


def test_chosen_figures_in_the_width_of_a_page(
    runs: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = offbeat("report", runs / "sweep", "--only", "loss, staleness", "--pdf", "--width", "page")
    assert made.exit_code == 0, made.output
    names = {path.name for path in pathlib.Path("figures").iterdir()}
    axes = [f"loss-{over}" for over in ("virtual_seconds", "version", "bytes_up")]
    single = [f"{label}-seed{seed}-staleness" for label in ("FEDBUFF", "CA2FL") for seed in (0, 1)]
    assert names == {f"{name}.{kind}" for name in axes + single for kind in ("png", "svg", "pdf")}
    assert not pathlib.Path("report.html").exists()
    for name in (axes[0], single[0]):
        header = pathlib.Path(f"figures/{name}.png").read_bytes()[16:20]  # the width in pixels
        assert int.from_bytes(header) == 7.0 * 300
    for words, message in (
        (("--only", "loss,f1"), "there is no figure 'f1'; there are accuracy, loss, staleness"),
        (("--pdf", "--width", "wide"), "--width: 'wide' is not column, page or a number of centimeters"),
    ):
        told = offbeat("report", runs / "sweep", *words)
        assert (told.exit_code, message in told.output) == (2, True), told.output


def test_pictures_alone(runs: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert offbeat("report", runs / "lossy", "--png", "pictures").exit_code == 0
    assert not pathlib.Path("report.html").exists()
    assert offbeat("report", runs / "lossy").exit_code == 0
    assert "<title>lossy</title>" in pathlib.Path("report.html").read_text()


def test_broken_runs_are_mentioned_next_to_the_report(mixed: pathlib.Path, tmp_path: pathlib.Path) -> None:
    made = offbeat("report", mixed, "--html", tmp_path / "a.html")
    assert made.exit_code == 0, made.output
    told = [line for line in made.output.splitlines() if line.startswith("broken")]
    assert {pathlib.Path(line.split()[1].rstrip(":")).name for line in told} == {"cut", "garbled", "nameless"}
    some = [mixed / name for name in ("cut", "garbled", "nameless", "hostile")]
    made = offbeat("report", *some, "--png", tmp_path / "p")
    assert made.exit_code == 0, made.output
    names = [path.relative_to(tmp_path / "p").as_posix() for path in (tmp_path / "p").rglob("*")]
    assert names
    assert not any(".." in name or set(name) & set("<>'\"/") for name in names), names


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("report", "nowhere"), "nowhere is not a folder"),
        (("compare", "."), "no runs found in ."),
        (("serve", "nowhere"), "nowhere is not a folder"),
    ],
)
def test_mistakes_get_one_line(
    words: tuple[str, ...], message: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told = offbeat(*words)
    assert (told.exit_code, told.output) == (2, f"offbeat: {message}\n")


def test_a_report_that_cannot_be_written(runs: pathlib.Path, tmp_path: pathlib.Path) -> None:
    told = offbeat("report", runs / "lossy", "--html", tmp_path / "no" / "a.html")
    assert told.exit_code == 2
    assert "cannot write the report" in told.output


def test_runs_side_by_side(runs: pathlib.Path) -> None:
    table = offbeat("compare", runs / "sweep").output
    for kind in ("fedbuff", "ca2fl"):
        metrics = [
            [
                json.loads(line)
                for line in (runs / "sweep" / kind / f"seed-{seed}" / "metrics.jsonl").read_text().splitlines()
            ]
            for seed in (0, 1)
        ]
        row = next(line for line in table.splitlines() if line.strip().startswith(kind.upper()))
        mean = 50 * sum(lines[-1]["accuracy"] for lines in metrics)
        first = [next(line for line in lines if line["accuracy"] >= 0.3) for lines in metrics]
        assert f"{mean:.1f} ±" in row
        assert f" {sum(line['version'] for line in first) / 2:,.0f} " in row
    words = " ".join(table.split())
    assert "± over 2 seeds" in words
    assert "until 30 %" in words


def test_targets_that_are_never_reached_and_incomplete_runs(mixed: pathlib.Path) -> None:
    table = offbeat("compare", mixed, "--target", "100").output
    assert "never" in table
    assert "broken" in table
    assert "killed" in table


@pytest.mark.parametrize("columns", [30, 40, 60])
def test_a_narrow_terminal_has_fewer_columns_and_all_names(runs: pathlib.Path, columns: int) -> None:
    table = offbeat("compare", runs, columns=columns).output
    assert all(len(line.rstrip()) <= columns for line in table.splitlines())
    assert "…" not in table
    assert all(name in table for name in ("FEDBUFF", "CA2FL", "cafga", "fedluck"))
    assert ("in a wider terminal" in " ".join(table.split("difference")[0].split())) == (columns < 50)


def finals(runs: pathlib.Path, kind: str, place: str = "virtual_seconds", most: float = 1e99) -> list[float]:
    """Return the accuracies of the last evaluations up to a point, by seed."""
    files = [runs / "sweep" / kind / f"seed-{seed}" / "metrics.jsonl" for seed in (0, 1)]
    lines = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    return [[line["accuracy"] for line in each if line[place] <= most][-1] for each in lines]


@pytest.mark.parametrize("at", [None, 4])
def test_differences_seed_by_seed(runs: pathlib.Path, at: int | None) -> None:
    words = () if at is None else ("--at", f"version={at}")
    shown = offbeat("compare", runs / "sweep", "--markdown", "--baseline", "FEDBUFF", *words)
    assert shown.exit_code == 0, shown.output
    values = [finals(runs, kind, "version", at or 1e99) for kind in ("ca2fl", "fedbuff")]
    mean = 50 * sum(a - b for a, b in zip(*values, strict=True))
    (row,) = (line for line in shown.output.splitlines() if line.startswith("| CA2FL − FEDBUFF"))
    assert f"| 2 | {mean:+.2f} |".replace("-", "−") in row
    (row,) = (line for line in shown.output.splitlines() if line.startswith("| CA2FL |"))
    assert f"| {50 * sum(values[0]):.1f} ±" in row
    assert "| algorithm.name | fedbuff | ca2fl |" in shown.output
    assert ("up to version = 4" in shown.output) == (at is not None)


def test_tables_for_latex_and_another_metric(runs: pathlib.Path) -> None:
    shown = offbeat("compare", runs / "sweep", "--latex", "--metric", "loss")
    assert shown.output.count(r"\begin{tabular}") == 3
    assert "Loss of the last evaluation" in shown.output
    assert "until" not in shown.output, "the target is one of accuracy"
    notes = [line for line in shown.output.splitlines() if "seeds the sign test" in line]
    assert notes == ["% with 2 seeds the sign test cannot give a p-value below 0.5"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--at", "100"), "--at: '100' is not an axis and a number"),
        (("--at", "hours=3"), "at: there is no axis 'hours'; valid: version"),
        (("--metric", "f1"), "metric: the runs have no 'f1'; valid: accuracy, loss"),
        (("--baseline", "x"), "baseline: there is no experiment 'x'; there are FEDBUFF, CA2FL"),
    ],
)
def test_mistakes_in_a_comparison(runs: pathlib.Path, words: tuple[str, ...], message: str) -> None:
    shown = offbeat("compare", runs / "sweep", *words)
    assert (shown.exit_code, shown.output.splitlines()[0][: len(message) + 9]) == (2, f"offbeat: {message}")
