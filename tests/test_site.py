"""The documentation site builds without warnings, is complete, and loads nothing from other servers."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from html.parser import HTMLParser
from urllib.parse import unquote, urldefrag, urljoin

import pytest
from tests.support.pages import ROOT

pytest.importorskip("mkdocs", reason="the site needs: pip install 'offbeat[docs]'")
pytest.importorskip("mkdocstrings", reason="the site needs: pip install 'offbeat[docs]'")


class Page(HTMLParser):
    """The links, loaded resources and anchors of a page."""

    def __init__(self, path: pathlib.Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loads: set[str] = set()
        self.anchors = {""}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the attributes of an element."""
        values = {name: value for name, value in attrs if value is not None}
        self.anchors |= {values["id"]} if "id" in values else set()
        if tag == "a":
            self.links |= {values["href"]} if "href" in values else set()
        else:
            self.loads |= {values[name] for name in ("src", "srcset", "href", "data") if name in values}


def test_the_site(tmp_path: pathlib.Path) -> None:
    """Check everything in one test, because building the site takes most of the time."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pages = {f"/{path.relative_to(tmp_path)}": Page(path) for path in tmp_path.rglob("*.html")}
    del pages["/404.html"]  # its links are relative to the root of the site
    check_pages(tmp_path)
    check_links(pages)
    check_loads(tmp_path, pages)
    check_generated_parts(tmp_path)


def check_pages(site: pathlib.Path) -> None:
    """Every Markdown file has a page."""
    for page in (ROOT / "docs").rglob("*.md"):
        path = page.relative_to(ROOT / "docs").with_suffix("")
        assert (site / (path.parent if path.name == "index" else path) / "index.html").is_file()
    assert not list(site.rglob("*.py"))


def check_links(pages: dict[str, Page]) -> None:
    """Every internal link has a target."""
    for address, page in pages.items():
        for link in page.links:
            url, anchor = urldefrag(urljoin(address, link))
            if "://" in url:
                continue
            target = url + "index.html" if url.endswith("/") else url
            if target in pages:
                assert unquote(anchor) in pages[target].anchors, f"{address}: {link}"
            else:
                assert target.endswith((".png", ".svg", ".ipynb")), f"{address}: {link}"


def check_loads(site: pathlib.Path, pages: dict[str, Page]) -> None:
    """No page or style sheet loads anything from another server."""
    for address, page in pages.items():
        assert not [one for one in page.loads if "://" in one or one.startswith("//")], address
    for sheet in site.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        assert "url(http" not in text
        assert "@import" not in text


def check_generated_parts(site: pathlib.Path) -> None:
    """All generated parts are on their pages."""
    for path in site.rglob("*.html"):
        assert "<!-- generated:" not in path.read_text(encoding="utf-8"), path
    for page, anchor in (("configuration", "algorithm-ca2fl"), ("cli", "offbeat-sweep"), ("examples", "the-algorithm")):
        assert f'id="{anchor}"' in (site / page / "index.html").read_text(encoding="utf-8")
