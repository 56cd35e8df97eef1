"""Web servers on the loopback interface."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator, Mapping

import pytest
from tests.support.data_files import Answer, Serve


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Serve files by name and return the base address; unknown names are answered with 404."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    servers: list[http.server.ThreadingHTTPServer] = []

    def start(files: Mapping[str, bytes]) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = files.get(self.path.removeprefix("/"))
                self.send_response(404 if body is None else 200)
                self.send_header("Content-Length", str(len(body or b"")))
                self.end_headers()
                self.wfile.write(body or b"")

            def log_message(self, *args: object) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}/"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Answer]:
    """Answer one request with raw bytes, as a server that breaks off or sends garbage; return the base address."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    threads: list[threading.Thread] = []

    def start(raw: bytes) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listener.settimeout(10)

        def once() -> None:
            with listener, listener.accept()[0] as connection:
                connection.recv(1 << 16)
                connection.sendall(raw)

        threads.append(threading.Thread(target=once, daemon=True))
        threads[-1].start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}/"

    yield start
    for thread in threads:
        thread.join(timeout=10)


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return an address at which no server listens."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}/"
