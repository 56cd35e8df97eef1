"""The server of the live page: what it serves and what it rejects."""

from __future__ import annotations

import asyncio
import json
import pathlib
import shutil
import signal
import subprocess
import sys
import urllib.request

import pytest

pytest.importorskip("starlette", reason="needs the extra 'serve'")
pytest.importorskip("uvicorn", reason="needs the extra 'serve'")

import httpx

from offbeat.report.live import app as live
from offbeat.report.live.app import application
from offbeat.report.live.watch import Change, WatchedFolder


class Client:
    """A client of the application without a network."""

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


def test_runs_are_listed_with_their_problems(client: Client) -> None:
    rows = {row["folder"]: row for row in client.get("/api/runs").json()["runs"]}
    assert rows["lossy"]["state"] == "finished"
    assert rows["killed"]["state"] == "killed"
    assert rows["garbled"]["state"] == "broken"
    assert "is not an evaluation" in rows["garbled"]["problem"]


def name_of(client: Client, folder: str) -> str:
    return next(row["id"] for row in client.get("/api/runs").json()["runs"] if row["folder"] == folder)  # type: ignore[no-any-return]


def test_a_curve_can_be_requested_from_a_given_evaluation(client: Client) -> None:
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


def test_comparisons(client: Client) -> None:
    rows = {row["label"]: row["id"] for row in client.get("/api/runs").json()["runs"] if row["state"] == "finished"}
    two = f"/api/comparison?runs={rows['cafga']},{rows['fedluck']}"
    found = client.get(f"{two}&metric=&axis=virtual_seconds&baseline=cafga").json()
    (row,) = found["rows"]
    assert (row["label"], row["baseline"], row["seeds"], row["p"]) == ("fedluck", "cafga", 1, None)
    assert any("single seed" in note for note in found["notes"])
    assert any(note.startswith("budgets") for note in found["remarks"])
    assert client.get(f"{two}&metric=unknown").status_code == 400
    assert client.get(f"{two}&axis=hours").status_code == 400
    assert client.get("/api/comparison?runs=../../etc").status_code == 404


def test_it_only_reads(client: Client) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert client.request(method, "/api/runs").status_code == 405


def test_a_foreign_host_header_is_rejected(client: Client) -> None:
    """DNS rebinding must not let a foreign page read anything."""
    assert client.get("/api/runs", headers={"host": "evil.example"}).status_code == 400
    for here in ("localhost:8000", "127.0.0.1", "[::1]:80"):
        assert client.get("/api/runs", headers={"host": here}).status_code == 200


def test_security_headers(client: Client) -> None:
    headers = client.get("/").headers
    assert "script-src 'self'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_one_broken_folder_does_not_affect_the_others(client: Client, mixed: pathlib.Path) -> None:
    """Invalid numbers, invalid text, and tables in unexpected places."""
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
    watched, again = WatchedFolder(mixed), WatchedFolder(mixed)
    watched.poll()
    again.poll()
    assert watched.records.keys() == again.records.keys(), "also for a server that is started again"
    before = next(name for name, record in watched.records.items() if record.path.name == "lossy")
    shutil.rmtree(mixed / "lossy")
    shutil.copytree(mixed / "cafga", mixed / "lossy")
    (mixed / "lossy" / "config.toml").touch()
    assert watched.poll().relisted
    assert before not in watched.records


def test_polling_continues_after_an_error(mixed: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "POLL_SECONDS", 0.02)
    looks: list[int] = []

    def poll(self: WatchedFolder) -> Change:
        looks.append(1)
        if len(looks) in (2, 3):
            raise MemoryError
        return Change([], False)

    monkeypatch.setattr(WatchedFolder, "poll", poll)

    async def wait() -> None:
        app = application(mixed)
        async with app.router.lifespan_context(app):
            while len(looks) < 6:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(wait(), 300))


def test_the_id_of_a_run_is_stable(mixed: pathlib.Path) -> None:
    watched = WatchedFolder(mixed)
    first = watched.poll()
    assert first.relisted
    before = {record.path: number for number, record in watched.records.items()}
    assert sorted(first.changed) == sorted(before.values())
    again = watched.poll()
    assert (again.changed, again.relisted) == ([], False)
    shutil.rmtree(mixed / "cafga")
    shutil.copytree(mixed / "lossy", mixed / "aaa")
    with (mixed / "lossy" / "metrics.jsonl").open("a") as file:
        file.write((mixed / "lossy" / "metrics.jsonl").read_text().splitlines()[-1] + "\n")
    third = watched.poll()
    after = {record.path: number for number, record in watched.records.items()}
    assert third.relisted
    assert set(third.changed) == {after[mixed / "aaa"], after[mixed / "lossy"]}
    assert mixed / "cafga" not in after
    assert all(after[path] == number for path, number in before.items() if path in after)


def test_changes_are_streamed(mixed: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "POLL_SECONDS", 0.05)

    async def listen() -> list[str]:
        app = application(mixed)
        async with app.router.lifespan_context(app):
            news = app.state.live._stream()
            lines = [await anext(news)]
            with (mixed / "lossy" / "metrics.jsonl").open("a") as file:
                file.write((mixed / "lossy" / "metrics.jsonl").read_text().splitlines()[-1] + "\n")
            waiting = asyncio.ensure_future(anext(news))
            lines.append(await asyncio.wait_for(waiting, 300))
            app.state.live.close_streams()
            async for line in news:
                lines.append(line)
        return lines

    lines = asyncio.run(listen())
    told = json.loads(lines[1].removeprefix("data: "))
    assert [row["folder"] for row in told["runs"]] == ["lossy"]
    assert told["relisted"] is False
    assert told["runs"][0]["evaluations"] == 8
    assert len(lines) == 2


def test_ctrl_c_ends_the_server_while_a_client_listens(mixed: pathlib.Path) -> None:
    command = [sys.executable, "-m", "offbeat", "serve", str(mixed), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            assert server.stdout
            address = server.stdout.readline().split()[0]
            assert address.startswith("http://127.0.0.1:")
            with urllib.request.urlopen(f"{address}events", timeout=300) as news:
                assert news.readline() == b"retry: 1000\n"
                server.send_signal(signal.SIGINT)
                assert server.wait(timeout=300) == 0, "it ends although the stream is still open"
            assert server.stdout.read() == ""
        finally:
            server.kill()
