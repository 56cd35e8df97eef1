"""The report and the live page in a real browser: Debian's chromium, driven by Playwright."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from offbeat.report import html, read

pytest.importorskip("starlette", reason="needs the extra 'serve'")
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("needs chromium", allow_module_level=True)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

WAIT = 300_000  # milliseconds, so that only a page that hangs fails


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with playwright.sync_playwright() as driver:
        # Chromium has no sandbox for root; the pages are our own.
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"] if os.geteuid() == 0 else [])
        yield browser
        browser.close()


class Visit:
    """An open page with its errors and unexpected requests."""

    def __init__(self, browser: Browser, address: str, **more: Any) -> None:
        self.complaints: list[str] = []
        self.page: Page = browser.new_page(**({"viewport": {"width": 1200, "height": 900}} | more))
        self.page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", self._asked)
        self.page.set_default_timeout(WAIT)
        self.page.goto(address)
        self.page.wait_for_selector("body[data-ready=yes]")

    def _asked(self, request: Any) -> None:
        if not request.url.startswith(("http://127.0.0.1:", "file://", "data:", "blob:")):
            self.complaints.append(f"asked for {request.url}")

    def texts(self, selector: str) -> list[str]:
        return [text.strip() for text in self.page.locator(selector).all_text_contents()]

    def wait_for_curves(self, count: int) -> None:
        """Wait until the chart that compares runs has this number of thick lines; it may still be drawing them."""
        self.page.wait_for_function(
            """(count) => [...document.querySelectorAll('section[aria-labelledby=compare-title] .chart svg path')]
            .filter((p) => p.getAttribute('stroke-width') === '1.8' && p.getTotalLength() > 100).length === count""",
            arg=count,
        )

    def axis(self) -> str:
        return " ".join(self.texts("section[aria-labelledby=compare-title] .chart svg text"))

    def end(self) -> None:
        self.page.close()
        assert self.complaints == []


@pytest.fixture
def report(runs: pathlib.Path, tmp_path: pathlib.Path) -> str:
    (tmp_path / "report.html").write_text(html.page(read.records([runs])), encoding="utf-8")
    return (tmp_path / "report.html").as_uri()


@pytest.fixture
def served(runs: pathlib.Path, tmp_path: pathlib.Path) -> Iterator[tuple[str, pathlib.Path]]:
    """Serve the live page of a folder of runs in a separate process."""
    folder = tmp_path / "live"
    shutil.copytree(runs / "sweep", folder / "sweep")
    command = [sys.executable, "-m", "offbeat", "serve", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        try:
            yield server.stdout.readline().split()[0], folder
        finally:
            server.terminate()
