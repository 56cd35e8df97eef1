"""The report and the live page in a real browser: Debian's chromium, driven by Playwright."""

from __future__ import annotations

import json
import pathlib
import re
import threading
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.run_folders import experiment, with_epsilon

from offbeat.report import html, read
from offbeat.runs import config
from offbeat.runs.api import execute

pytest.importorskip("starlette", reason="needs the extra 'serve'")
pytest.importorskip("playwright.sync_api", reason="needs playwright")

from tests.support.browser import Visit, browser, report, served

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["browser", "report", "served"]

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def test_the_report_shows_the_runs(browser: Browser, report: str, runs: pathlib.Path) -> None:
    visit = Visit(browser, report)
    visit.wait_for_curves(5)  # labels; seeds share a curve
    rows = visit.page.locator("section[aria-labelledby=runs-title] tbody tr")
    for row, record in zip(rows.all(), read.records([runs]), strict=True):
        cells = row.locator("td").all_inner_texts()
        assert cells[1].strip() == record.label
        assert cells[4] == f"{100 * record.summary['accuracy']:.1f}"
        assert cells[3] == "finished"
    titles = ["Staleness", "Staleness over time", "Busy clients and waiting updates", "Participation", "Job durations"]
    for title, shown in zip(titles, visit.texts("#details figcaption"), strict=False):
        assert shown.startswith(title)
    assert all(
        visit.page.evaluate(
            "() => [...document.querySelectorAll('#details .chart')].map((c) => c.childElementCount > 0)"
        )
    )
    visit.end()


def test_axis_metric_and_target_can_be_switched(browser: Browser, report: str) -> None:
    visit = Visit(browser, report)
    assert "virtual time (s)" in visit.axis()
    visit.page.get_by_label("uploaded bytes", exact=True).check()
    assert "uploaded bytes" in visit.axis()
    assert "virtual time (s)" not in visit.axis()
    visit.page.get_by_label("rounds", exact=True).check()
    assert "round" in visit.axis()
    visit.page.get_by_label("loss", exact=True).check()
    assert "test loss" in visit.axis()
    assert "%" not in visit.page.locator("output").inner_text()  # the target is one of the loss now
    visit.page.get_by_label("accuracy", exact=True).check()
    before = visit.texts("#reached tbody tr")
    slider = visit.page.get_by_role("slider")
    slider.focus()
    slider.press("End")  # by the keyboard: 100 %
    assert visit.page.locator("output").inner_text() == "100 %"
    after = visit.texts("#reached tbody tr")
    assert before != after
    assert all("never" in row for row in after)
    visit.end()


def test_checkboxes_add_and_remove_curves(browser: Browser, report: str) -> None:
    visit = Visit(browser, report)
    visit.page.get_by_label("Select all runs").uncheck()
    visit.wait_for_curves(0)
    visit.page.get_by_label("Compare CA2FL, seed 0").check()
    visit.page.wait_for_function("() => document.querySelectorAll('#reached tbody tr').length === 1")
    visit.wait_for_curves(1)
    visit.page.get_by_label("Compare cafga, seed 0").check()
    visit.page.wait_for_function("() => document.querySelectorAll('#reached tbody tr').length === 2")
    visit.wait_for_curves(2)
    visit.end()


def test_every_kind_of_run_has_a_detail_view(browser: Browser, report: str) -> None:
    visit = Visit(browser, report)
    wanted = {
        "cafga": {"Network", "Consensus"},
        "fedluck": {"Device 0"},
        "CA2FL": {"Age of cached updates", "Gradients"},
    }
    for label, titles in wanted.items():
        option = next(text for text in visit.texts("#which option") if text.startswith(label))
        visit.page.locator("#which").select_option(label=option)
        for title in titles:
            visit.page.locator("#details figcaption", has_text=title).first.wait_for()
        assert "τ_max" in visit.texts("#theory td")
    visit.end()


def test_private_runs_show_epsilon(browser: Browser, runs: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "report.html").write_text(html.page(read.records([with_epsilon(runs, tmp_path / "private")])))
    visit = Visit(browser, (tmp_path / "report.html").as_uri())
    visit.page.locator("#details figcaption", has_text="Privacy").first.wait_for()
    visit.end()


def test_trips_are_zoomed_by_the_keyboard(browser: Browser, report: str) -> None:
    visit = Visit(browser, report)
    shown = """() => {
        const all = [...document.querySelectorAll('#details figure')];
        const trips = all.find((f) => f.textContent.startsWith('Jobs'));
        const { start, end } = echarts.getInstanceByDom(trips.querySelector('.chart')).getOption().dataZoom[0];
        return [start, end];
    }"""
    assert visit.page.evaluate(shown) == [0, 100]
    for name, expected in (("Zoom in", [25, 75]), ("Later", [50, 100]), ("Earlier", [25, 75]), ("Zoom out", [0, 100])):
        button = visit.page.get_by_role("button", name=name)
        button.focus()
        button.press("Enter")
        assert visit.page.evaluate(shown) == expected
    visit.end()


def test_hostile_names_in_a_folder_are_harmless(browser: Browser, mixed: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "mixed.html").write_text(html.page(read.records([mixed])), encoding="utf-8")
    visit = Visit(browser, (tmp_path / "mixed.html").as_uri())
    assert visit.page.title() == "offbeat report"
    assert any("</script>" in name for name in visit.texts("td.name"))
    assert visit.page.locator("img").count() == 0
    assert any("not valid JSON" in text for text in visit.texts("td.problem"))
    option = next(text for text in visit.texts("#which option") if "</script>" in text)
    visit.page.locator("#which").select_option(label=option)
    visit.page.locator("#details figcaption").first.wait_for()
    assert visit.page.title() == "offbeat report"
    visit.end()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone(browser: Browser, report: str, scheme: str) -> None:
    visit = Visit(browser, report, viewport={"width": 360, "height": 740}, color_scheme=scheme)
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 360
    ink, paper = (
        visit.page.evaluate(f"getComputedStyle(document.body).{name}") for name in ("color", "backgroundColor")
    )
    assert _light(ink) != _light(paper)
    assert _light(paper) == (scheme == "light")
    visit.end()


def _light(color: str) -> bool:
    return sum(int(part) for part in color.strip("rgb()").split(",")) > 380


def test_a_new_run_appears_and_grows(browser: Browser, served: tuple[str, pathlib.Path]) -> None:
    address, folder = served
    visit = Visit(browser, address)
    visit.wait_for_curves(2)
    assert len(visit.texts("section[aria-labelledby=runs-title] tbody tr")) == 4
    go_on, shown = threading.Event(), threading.Event()

    def watch(snapshot: Any) -> None:
        if len(snapshot.metrics) == 3:
            shown.set()
            go_on.wait(300)

    table = experiment("ca2fl", seed=7, rounds=20)
    training = threading.Thread(target=lambda: execute(config.parse(table), out=folder / "new", watch=watch))
    training.start()
    try:
        assert shown.wait(300)
        box = visit.page.get_by_label("Compare ca2fl, seed 7")
        box.wait_for()
        row = visit.page.locator("section[aria-labelledby=runs-title] tbody tr", has=box)
        assert "running" in row.inner_text()
        box.check()
        visit.page.wait_for_function("() => document.querySelectorAll('#reached tbody tr').length === 3")
        visit.wait_for_curves(3)
    finally:
        go_on.set()
        training.join()
    row.locator("td", has_text="finished").wait_for()
    summary = json.loads((folder / "new" / "summary.json").read_text())
    assert f"{100 * summary['accuracy']:.1f}" in row.inner_text()
    last = visit.page.locator("#reached tbody tr", has_text=re.compile("^ca2fl")).inner_text()
    assert f"{100 * summary['accuracy']:.1f}" in last
    with visit.page.expect_navigation():
        row.get_by_role("link", name="report").click()
    visit.page.wait_for_selector("body[data-ready=yes]")
    assert visit.texts("section[aria-labelledby=runs-title] td.name") == ["ca2fl"]
    visit.end()


@pytest.mark.parametrize("width", [390, 1200])
def test_figures_per_client_and_label(browser: Browser, tmp_path: pathlib.Path, width: int) -> None:
    table = experiment("fedbuff", rounds=4, evaluation={"every": 2, "per_client": True, "per_label": True})
    execute(config.parse(table), out=tmp_path / "run")
    (tmp_path / "report.html").write_text(html.page(read.records([tmp_path / "run"])), encoding="utf-8")
    visit = Visit(browser, (tmp_path / "report.html").as_uri(), viewport={"width": width, "height": 900})
    for title in ("Accuracy per client", "Fairness over time", "Accuracy per label"):
        figure = visit.page.locator("#details figure", has_text=title)
        figure.locator(".chart svg path").first.wait_for(state="attached")
        box = figure.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
    assert "12 clients at version 4: mean" in visit.page.locator("#details").inner_text()
    visit.end()
