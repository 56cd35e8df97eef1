"""Comparisons in a real browser: paired differences, settings, notes, axes and downloads."""

from __future__ import annotations

import csv
import dataclasses
import json
import pathlib
import re
import statistics
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("starlette", reason="needs the extra 'serve'")
pytest.importorskip("playwright.sync_api", reason="needs playwright")

from tests.support.browser import Visit, browser, report, served

from offbeat.metric_info import ACCURACY, LOSS
from offbeat.report import html, notes, paired, read, tables

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["browser", "report", "served"]

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

COMPARE = "section[aria-labelledby=compare-title]"


def only_the_sweep(visit: Visit) -> None:
    visit.page.get_by_label("Select all runs").uncheck()
    for label in ("FEDBUFF", "CA2FL"):
        for seed in (0, 1):
            visit.page.get_by_label(f"Compare {label}, seed {seed}", exact=True).check()
    visit.page.wait_for_function("() => document.querySelectorAll('#reached tbody tr').length === 2")


def test_the_table_has_mean_deviation_and_number_of_the_summaries(
    browser: Browser, report: str, runs: pathlib.Path
) -> None:
    visit = Visit(browser, report)
    for metric in ("accuracy", "loss"):
        visit.page.get_by_label(metric, exact=True).check()
        for kind in ("fedbuff", "ca2fl"):
            files = [runs / "sweep" / kind / f"seed-{seed}" / "summary.json" for seed in (0, 1)]
            values = [json.loads(file.read_text())[metric] for file in files]
            row = visit.page.locator("#reached tbody tr", has_text=re.compile(f"^{kind.upper()}"))
            info = ACCURACY if metric == "accuracy" else LOSS
            expected = f"{info.format(statistics.fmean(values))} ± {info.format(statistics.stdev(values))}"
            assert row.locator("td").all_inner_texts()[1:3] == [expected, "2"]
    assert "bands: from the lowest to the highest seed" in visit.page.locator("#legend").inner_text()
    visit.end()


@pytest.mark.parametrize("live", [False, True])
def test_paired_differences_are_those_of_the_module(
    browser: Browser, report: str, served: tuple[str, pathlib.Path], runs: pathlib.Path, live: bool
) -> None:
    visit = Visit(browser, served[0] if live else report)
    only_the_sweep(visit)
    records = read.records([runs / "sweep"])
    cells = visit.page.locator("#paired tbody tr", has_text="CA2FL − FEDBUFF").locator("td")
    for name, at in (
        ("at the end of each run", None),
        ("where the shortest run ends", paired.shared_point(records, "virtual_seconds")),
    ):
        visit.page.get_by_label(name).check()
        (row,) = paired.compare(records, at=at).differences
        wanted = tables.signed(read.records([runs])[0].metric, row.mean)
        visit.page.locator("#paired tbody tr", has_text=wanted).first.wait_for()
        assert cells.all_inner_texts()[1:3] == ["2", wanted]
        assert ("at the last evaluation up to" in visit.page.locator(COMPARE).inner_text()) == (at is not None)
    visit.page.get_by_label("Baseline").select_option("CA2FL")
    visit.page.locator("#paired td", has_text="FEDBUFF − CA2FL").wait_for()
    for note in notes.differences(records) if live else notes.differences(read.records([runs])):
        assert note in visit.texts("#notes li")
    visit.end()


def test_settings_that_differ_follow_the_selection(browser: Browser, report: str) -> None:
    visit = Visit(browser, report)
    only_the_sweep(visit)
    rows = [row.locator("td").all_inner_texts() for row in visit.page.locator("#settings tbody tr").all()]
    head = visit.page.locator("#settings thead th").all_inner_texts()
    assert dict(zip(head, next(row for row in rows if row[0] == "algorithm.name"), strict=True)) == {
        "setting": "algorithm.name", "CA2FL": "ca2fl", "FEDBUFF": "fedbuff",
    }  # fmt: skip
    assert not any(row[0].startswith(("data", "seed", "scheduler")) for row in rows), "these are the same"
    visit.page.get_by_label("Select all runs").check()
    visit.page.get_by_label("Select all runs").uncheck()
    visit.page.locator("#settings").wait_for(state="detached")
    assert visit.page.locator("#paired").count() == 0
    visit.end()


def test_the_axis_can_be_logarithmic_and_limited(browser: Browser, report: str) -> None:
    visit = Visit(browser, report)
    options = """() => {
        const [x] = echarts.getInstanceByDom(document.querySelector('.chart.tall')).getOption().xAxis;
        return [x.type, x.max ?? null];
    }"""
    assert visit.page.evaluate(options) == ["value", None]
    visit.page.get_by_label("up to").fill("3")
    visit.page.get_by_label("logarithmic axis").check()
    assert visit.page.evaluate(options) == ["log", 3]
    visit.wait_for_curves(5)
    for name in ("rounds", "uploaded bytes", "virtual time"):
        visit.page.get_by_label(name, exact=True).check()
        assert visit.page.evaluate(options) == ["log", None], "3 was a time"
        visit.wait_for_curves(5)
    visit.end()


def test_charts_can_be_downloaded(browser: Browser, report: str, runs: pathlib.Path, tmp_path: pathlib.Path) -> None:
    visit = Visit(browser, report)
    starts = {"PNG": b"\x89PNG", "SVG": b"<svg", "CSV": b"series,"}
    for title in ("comparison", "Staleness", "Jobs", "Labels by client", "Participation"):
        for kind, start in starts.items():
            with visit.page.expect_download() as waiting:
                visit.page.get_by_label(f"Download {title} as {kind}", exact=True).click()
            waiting.value.save_as(tmp_path / waiting.value.suggested_filename)
            place = tmp_path / f"{title.lower().replace(' ', '-')}.{kind.lower()}"
            assert place.read_bytes().startswith(start)
            assert place.stat().st_size > 40
    with (tmp_path / "comparison.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["series"] == "cafga"]
    (record,) = [each for each in read.records([runs]) if each.label == "cafga"]
    assert [float(row["virtual time (s)"]) for row in rows] == pytest.approx(
        [line["virtual_seconds"] for line in record.metrics], rel=1e-5
    )
    assert [float(row["mean of test accuracy (%)"]) for row in rows] == pytest.approx(
        [100 * line["accuracy"] for line in record.metrics], rel=1e-5
    )
    visit.end()


def test_an_experiment_keeps_its_color(browser: Browser, report: str) -> None:
    visit = Visit(browser, report)
    color = "() => document.querySelector('#reached tbody tr:last-child .swatch').style.borderTopColor"
    before = visit.page.evaluate(color)
    last = visit.texts("#reached tbody tr:last-child td.name")
    visit.page.get_by_label("Select all runs").uncheck()
    visit.page.get_by_label(f"Compare {last[0]}, seed 0", exact=True).check()
    visit.page.wait_for_function("() => document.querySelectorAll('#reached tbody tr').length === 1")
    assert visit.page.evaluate(color) == before
    visit.end()


def test_a_long_list_says_that_it_goes_on(browser: Browser, runs: pathlib.Path, tmp_path: pathlib.Path) -> None:
    first = read.records([runs])[0]
    states = ["finished"] * 19 + ["running"]
    many = [dataclasses.replace(first, seed=seed, state=state) for seed, state in enumerate(states)]
    (tmp_path / "many.html").write_text(html.page(many), encoding="utf-8")
    visit = Visit(browser, (tmp_path / "many.html").as_uri())
    height = "() => document.querySelector('section[aria-labelledby=runs-title] .scroll').clientHeight"
    before = visit.page.evaluate(height)
    visit.page.get_by_role("button", name="Show all 20 runs").click()
    assert visit.page.evaluate(height) > before
    visit.page.get_by_role("button", name="Show fewer").click()
    assert visit.page.evaluate(height) == before
    rows = visit.texts("section[aria-labelledby=runs-title] tbody tr td:nth-child(4)")
    assert rows == ["running", *["finished"] * 19]
    visit.end()
