"""The site is built without a warning, is whole, and asks nothing of other servers."""

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
    """Where a page leads, what it loads, and which places it has."""

    def __init__(self, path: pathlib.Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loads: set[str] = set()
        self.places = {""}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value is not None}
        self.places |= {given["id"]} if "id" in given else set()
        if tag == "a":
            self.links |= {given["href"]} if "href" in given else set()
        else:
            self.loads |= {given[name] for name in ("src", "srcset", "href", "data") if name in given}


def test_the_site(tmp_path: pathlib.Path) -> None:
    """One test, since building takes longer than looking."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pages = {f"/{path.relative_to(tmp_path)}": Page(path) for path in tmp_path.rglob("*.html")}
    del pages["/404.html"]  # whose links are from the site's root
    every_page_is_there(tmp_path)
    every_link_leads_to_a_place(pages)
    nothing_is_loaded_from_elsewhere(tmp_path, pages)
    what_is_generated_is_there(tmp_path)


def every_page_is_there(site: pathlib.Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        place = page.relative_to(ROOT / "docs").with_suffix("")
        assert (site / (place.parent if place.name == "index" else place) / "index.html").is_file()
    assert not list(site.rglob("*.py"))


def every_link_leads_to_a_place(pages: dict[str, Page]) -> None:
    for address, page in pages.items():
        for link in page.links:
            whole, place = urldefrag(urljoin(address, link))
            if "://" in whole:
                continue
            target = whole + "index.html" if whole.endswith("/") else whole
            if target in pages:
                assert unquote(place) in pages[target].places, f"{address}: {link}"
            else:
                assert target.endswith((".png", ".svg")), f"{address}: {link}"


def nothing_is_loaded_from_elsewhere(site: pathlib.Path, pages: dict[str, Page]) -> None:
    for address, page in pages.items():
        assert not [one for one in page.loads if "://" in one or one.startswith("//")], address
    for sheet in site.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        assert "url(http" not in text
        assert "@import" not in text


def what_is_generated_is_there(site: pathlib.Path) -> None:
    for path in site.rglob("*.html"):
        assert "<!-- generated:" not in path.read_text(encoding="utf-8"), path
    for page, place in (("configuration", "algorithm-ca2fl"), ("cli", "offbeat-sweep"), ("examples", "the-rule")):
        assert f'id="{place}"' in (site / page / "index.html").read_text(encoding="utf-8")
