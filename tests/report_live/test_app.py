"""The live page's server: what it answers, and what it does not."""

from __future__ import annotations

import asyncio
import json
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import urllib.request

import pytest

pytest.importorskip("starlette", reason="needs the extra 'serve'")
pytest.importorskip("uvicorn", reason="needs the extra 'serve'")

import httpx

from offbeat.report.live import app as live
from offbeat.report.live.app import application
from offbeat.report.live.watch import Change, Watched


class Client:
    """Asks the application without a network."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root = root

    def request(self, method: str, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
        async def ask() -> httpx.Response:
            app = application(self.root)
            transport = httpx.ASGITransport(app)
            async with (
                app.router.lifespan_context(app),
                httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client,
            ):
                return await client.request(method, path, headers=headers)

        return asyncio.run(ask())

    def get(self, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
        return self.request("GET", path, headers)


@pytest.fixture
def client(mixed: pathlib.Path) -> Client:
    return Client(mixed)


def test_runs_are_listed_with_what_is_wrong(client: Client) -> None:
    rows = {row["folder"]: row for row in client.get("/api/runs").json()["runs"]}
    assert rows["lossy"]["state"] == "finished"
    assert rows["killed"]["state"] == "killed"
    assert rows["garbled"]["state"] == "broken"
    assert "no evaluation" in rows["garbled"]["problem"]


def name_of(client: Client, folder: str) -> str:
    return next(row["id"] for row in client.get("/api/runs").json()["runs"] if row["folder"] == folder)  # type: ignore[no-any-return]


def test_a_curve_can_be_asked_for_from_some_evaluation_on(client: Client) -> None:
    lossy = name_of(client, "lossy")
    whole = client.get(f"/api/runs/{lossy}/curve").json()
    rest = client.get(f"/api/runs/{lossy}/curve?from=3").json()
    assert rest == {name: values[3:] for name, values in whole.items()}
    assert len(whole["accuracy"]) == 7
    for odd in ("-1;drop", "9" * 5000):
        assert client.get(f"/api/runs/{lossy}/curve?from={odd}").json() == whole


def test_details_and_reports(client: Client) -> None:
    lossy, cafga = name_of(client, "lossy"), name_of(client, "cafga")
    assert client.get(f"/api/runs/{lossy}/detail").json()["trips"] > 0
    report = client.get(f"/report?runs={lossy},{cafga},{lossy}")
    assert report.status_code == 200
    assert report.text.count('"evaluations":') == 2
    assert "sha256-" in report.text
    assert report.headers["content-security-policy"] == "frame-ancestors 'none'"  # beside the page's own


@pytest.mark.parametrize(
    "path",
    [
        "/api/runs/999/curve", "/api/runs/-1/detail", "/api/runs/..%2f..%2fetc/detail", "/report", "/report?runs=999",
        "/report?runs=../../etc", "/static/../app.py", "/static/page.html", "/static/%2e%2e/%2e%2e/app.py",
        "/etc/passwd", "/static//etc/passwd", "/passwd/hostname",
    ],
)  # fmt: skip
def test_nothing_else_is_served(client: Client, path: str) -> None:
    assert client.get(path).status_code == 404


def test_it_only_reads(client: Client) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert client.request(method, "/api/runs").status_code == 405


def test_another_host_s_name_is_refused(client: Client) -> None:
    """A page elsewhere whose name is made to point here must learn nothing."""
    assert client.get("/api/runs", headers={"host": "evil.example"}).status_code == 400
    for here in ("localhost:8000", "127.0.0.1", "[::1]:80"):
        assert client.get("/api/runs", headers={"host": here}).status_code == 200


def test_what_the_answers_allow(client: Client) -> None:
    headers = client.get("/").headers
    assert "script-src 'self'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_one_bad_folder_does_not_take_the_others_down(client: Client, mixed: pathlib.Path) -> None:
    """Numbers that are none, text that is none, and tables where none belong."""
    files = {
        "nan": ("summary.json", '{"accuracy": NaN, "best_accuracy": 1e999, "lost": {"a": [1]}}'),
        "text": ("status.json", '{"state": "finished", "error": "\\ud800", "deep": [[[[[[[[[[1]]]]]]]]]]}'),
        "config": ("config.toml", "rounds = nan\nalgorithm = 5\nevaluation = 1979-05-27\nseed = 2"),
    }
    for name, (file, text) in files.items():
        shutil.copytree(mixed / "lossy", mixed / name)
        (mixed / name / file).write_text(text)
    rows = client.get("/api/runs").json()["runs"]
    assert files.keys() <= {row["folder"] for row in rows}
    for row in rows:
        assert client.get(f"/api/runs/{row['id']}/curve").status_code == 200
        assert client.get(f"/api/runs/{row['id']}/detail").status_code == 200
    assert client.get("/report?runs=" + ",".join(row["id"] for row in rows)).status_code == 200


def test_another_run_in_the_same_folder_is_another_run(mixed: pathlib.Path) -> None:
    watched, again = Watched(mixed), Watched(mixed)
    watched.look()
    again.look()
    assert watched.records.keys() == again.records.keys(), "also for a server that is started again"
    before = next(name for name, record in watched.records.items() if record.path.name == "lossy")
    shutil.rmtree(mixed / "lossy")
    shutil.copytree(mixed / "cafga", mixed / "lossy")
    (mixed / "lossy" / "config.toml").touch()
    assert watched.look().other
    assert before not in watched.records


def test_a_look_that_fails_is_not_the_last(mixed: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "SECONDS", 0.02)
    looks: list[int] = []

    def look(self: Watched) -> Change:
        looks.append(1)
        if len(looks) in (2, 3):
            raise MemoryError
        return Change([], False)

    monkeypatch.setattr(Watched, "look", look)

    async def wait() -> None:
        app = application(mixed)
        async with app.router.lifespan_context(app):
            while len(looks) < 6:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(wait(), 20))


def test_a_run_s_name_stays(mixed: pathlib.Path) -> None:
    watched = Watched(mixed)
    first = watched.look()
    assert first.other
    before = {record.path: number for number, record in watched.records.items()}
    assert sorted(first.changed) == sorted(before.values())
    again = watched.look()
    assert (again.changed, again.other) == ([], False)
    shutil.rmtree(mixed / "cafga")
    shutil.copytree(mixed / "lossy", mixed / "aaa")
    with (mixed / "lossy" / "metrics.jsonl").open("a") as file:
        file.write((mixed / "lossy" / "metrics.jsonl").read_text().splitlines()[-1] + "\n")
    third = watched.look()
    after = {record.path: number for number, record in watched.records.items()}
    assert third.other
    assert set(third.changed) == {after[mixed / "aaa"], after[mixed / "lossy"]}
    assert mixed / "cafga" not in after
    assert all(after[path] == number for path, number in before.items() if path in after)


def test_news_are_told(mixed: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "SECONDS", 0.05)

    async def listen() -> list[str]:
        app = application(mixed)
        async with app.router.lifespan_context(app):
            news = app.state.live._news()
            lines = [await anext(news)]
            with (mixed / "lossy" / "metrics.jsonl").open("a") as file:
                file.write((mixed / "lossy" / "metrics.jsonl").read_text().splitlines()[-1] + "\n")
            waiting = asyncio.ensure_future(anext(news))
            lines.append(await asyncio.wait_for(waiting, 10))
            app.state.live.end()
            async for line in news:
                lines.append(line)
        return lines

    lines = asyncio.run(listen())
    told = json.loads(lines[1].removeprefix("data: "))
    assert [row["folder"] for row in told["runs"]] == ["lossy"]
    assert told["other"] is False
    assert told["runs"][0]["evaluations"] == 8
    assert len(lines) == 2


def test_ctrl_c_ends_it_while_somebody_listens(mixed: pathlib.Path) -> None:
    command = [sys.executable, "-m", "offbeat", "serve", str(mixed), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            assert server.stdout
            address = server.stdout.readline().split()[0]
            assert address.startswith("http://127.0.0.1:")
            with urllib.request.urlopen(f"{address}events", timeout=20) as news:
                assert news.readline() == b"retry: 1000\n"
                begun = time.monotonic()
                server.send_signal(signal.SIGINT)
                assert server.wait(timeout=20) == 0
            assert time.monotonic() - begun < 15
            assert server.stdout.read() == ""
        finally:
            server.kill()
