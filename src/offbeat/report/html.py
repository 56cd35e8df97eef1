"""The report as one self-contained HTML file, which loads nothing from the network."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

from offbeat.report import payload
from offbeat.report.notes import differences, distinct
from offbeat.report.read import Record
from offbeat.version import __version__

SCRIPTS = ("echarts.min.js", "charts.js", "download.js", "differences.js", "view.js", "report.js")


def page(records: Sequence[Record], title: str = "offbeat report") -> str:
    """Return the HTML of a report on the given runs, without those that were done twice."""
    records, remarks = distinct(records)
    data = {
        "version": __version__,
        "runs": [payload.row(record, str(number)) for number, record in enumerate(records)],
        "curves": [payload.thinned(payload.curve(record)) for record in records],
        "notes": [*remarks, *differences(records)],
        "comparisons": payload.comparisons(records),
        "details": [payload.detail(record) for record in records],
    }
    scripts = [static(name) for name in SCRIPTS]
    allowed = " ".join(f"'sha256-{_hash(script)}'" for script in scripts)
    policy = f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"
    return static("page.html").format(
        policy=html.escape(policy, quote=True),
        title=html.escape(title),
        head=f"<style>{static('style.css')}</style>",
        data=f'<script type="application/json" id="data">{_embed(data)}</script>',
        scripts="".join(f"<script>{script}</script>" for script in scripts),
    )


def static(name: str) -> str:
    """Return the text of a file in `report/static`."""
    return (resources.files("offbeat.report") / "static" / name).read_text(encoding="utf-8")


def _embed(data: Any) -> str:
    """Return JSON that cannot close the script element around it."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
