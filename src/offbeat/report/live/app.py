"""The web application of the live page.

It never writes, and it reads only the runs that `find` returns: a request names a run by an opaque ID, never by a path.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import json
import logging
import pathlib
import re
import socket
from collections.abc import AsyncIterator, Callable, Collection
from types import FrameType
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from offbeat.errors import OffbeatError
from offbeat.report import html as report
from offbeat.report import notes, payload
from offbeat.report.live.watch import WatchedFolder
from offbeat.report.read import Record

POLL_SECONDS = 1.0
KEEP_ALIVE = 15.0  # seconds without events after which a comment is sent, which reveals a closed connection
STATIC = {
    "echarts.min.js": "text/javascript",
    "charts.js": "text/javascript",
    "download.js": "text/javascript",
    "differences.js": "text/javascript",
    "view.js": "text/javascript",
    "live.js": "text/javascript",
    "style.css": "text/css",
}
MAX_REPORTED = 100  # runs in one report
_LOG = logging.getLogger("offbeat")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


LOOPBACK = {"127.0.0.1", "localhost", "[::1]"}
WILDCARDS = {"0.0.0.0", "::"}


def serve(root: pathlib.Path, host: str, port: int, on_ready: Callable[[str], None]) -> None:
    """Serve the live page until Ctrl-C.

    Args:
        root: Folder that contains the runs.
        host: Address to listen on.
        port: Port to listen on; 0 selects a free one.
        on_ready: Receives the URL of the page.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen()  # early requests wait until the server is up
        shown = f"[{host}]" if family == socket.AF_INET6 else host
        on_ready(f"http://{shown}:{listening.getsockname()[1]}/")
        app = application(root, None if host in WILDCARDS else {host, shown})
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
        with contextlib.suppress(KeyboardInterrupt):
            _Server(config).run(sockets=[listening])


class _Server(uvicorn.Server):
    """A server that closes event streams on exit, because a graceful shutdown would wait for them."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Close the event streams, then shut down."""
        self.config.app.state.live.close_streams()  # type: ignore[union-attr]
        super().handle_exit(sig, frame)


def application(root: pathlib.Path, hosts: Collection[str] | None = LOOPBACK) -> Starlette:
    """Return the application for the runs under a folder.

    Args:
        root: Folder that contains the runs.
        hosts: Host names that a request may address, in addition to the loopback names; None allows all.
    """
    live = _Live(root)
    routes = [
        Route("/", live.page),
        Route("/static/{name}", live.static),
        Route("/api/runs", live.runs),
        Route("/api/runs/{name}/curve", live.curve),
        Route("/api/runs/{name}/detail", live.detail),
        Route("/api/comparison", live.comparison),
        Route("/report", live.report),
        Route("/events", live.events),
    ]
    middleware = [Middleware(_Hosts, hosts=None if hosts is None else {*hosts, *LOOPBACK}), Middleware(_Headers)]
    app = Starlette(routes=routes, middleware=middleware, lifespan=live.lifespan)
    app.state.live = live
    return app


class _Live:
    """The request handlers and the background task that polls the folder."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root = root
        self.watched = WatchedFolder(root)
        self.listeners: set[asyncio.Queue[dict[str, Any] | None]] = set()  # None ends a stream
        self.loop: asyncio.AbstractEventLoop | None = None

    def close_streams(self) -> None:
        """End all event streams; safe to call from a signal handler."""
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self._publish, None)

    def _publish(self, event: dict[str, Any] | None) -> None:
        for listener in self.listeners:
            listener.put_nowait(event)

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Poll the folder while the application runs."""
        self.loop = asyncio.get_running_loop()
        await asyncio.to_thread(self.watched.poll)
        polling = asyncio.create_task(self._poll())
        try:
            yield
        finally:
            polling.cancel()

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                change = await asyncio.to_thread(self.watched.poll)
            except Exception:  # the folder may be readable again at the next poll
                _LOG.exception("cannot read the runs under %s", self.root)
                continue
            if change.changed or change.relisted:
                self._publish({"runs": [self._row(name) for name in change.changed], "relisted": change.relisted})

    # Requests -----------------------------------------------------------------------------------------------------

    async def page(self, _: Request) -> Response:
        """Return the live page."""
        title = html.escape(f"offbeat · {self.root.resolve().name}")
        scripts = "".join(f'<script src="/static/{name}"></script>' for name in STATIC if name.endswith(".js"))
        head = '<link rel="stylesheet" href="/static/style.css">'
        policy = html.escape(POLICY.partition("; frame-ancestors")[0], quote=True)  # valid in a header only
        text = report.static("page.html").format(policy=policy, title=title, head=head, data="", scripts=scripts)
        return HTMLResponse(text)

    async def static(self, request: Request) -> Response:
        """Return a script or style sheet."""
        name = request.path_params["name"]
        if name not in STATIC:
            raise HTTPException(404)
        return Response(report.static(name), media_type=STATIC[name])

    async def runs(self, _: Request) -> Response:
        """Return the list of runs."""
        rows = [self._row(name) for name in self.watched.records]
        return JSONResponse({"runs": rows})

    async def curve(self, request: Request) -> Response:
        """Return the evaluations of a run, from a given one on."""
        begin = request.query_params.get("from", "0")
        record = self._record(request.path_params["name"])
        return JSONResponse(payload.curve(record, int(begin) if re.fullmatch("[0-9]{1,9}", begin) else 0))

    async def detail(self, request: Request) -> Response:
        """Return the details of a run."""
        record = self._record(request.path_params["name"])
        return JSONResponse(await asyncio.to_thread(payload.detail, record))

    async def report(self, request: Request) -> Response:
        """Return a self-contained report on the requested runs."""
        records = self._requested(request)
        if len(records) > MAX_REPORTED:
            raise HTTPException(400, f"a report can show at most {MAX_REPORTED} runs")
        return HTMLResponse(await asyncio.to_thread(report.page, records))

    async def comparison(self, request: Request) -> Response:
        """Return paired differences of the requested runs, and notes on their comparison."""
        records, remarks = notes.distinct(self._requested(request))
        metric, axis, baseline = (request.query_params.get(name) or None for name in ("metric", "axis", "baseline"))
        try:
            found = await asyncio.to_thread(payload.comparison, records, metric, axis, baseline)
        except OffbeatError as error:
            raise HTTPException(400, str(error)) from error
        return JSONResponse(found | {"remarks": [*remarks, *notes.differences(records)]})

    async def events(self, _: Request) -> Response:
        """Return a stream of changes as server-sent events."""
        return StreamingResponse(
            self._stream(),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    async def _stream(self) -> AsyncIterator[str]:
        listener: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self.listeners.add(listener)
        try:
            yield "retry: 1000\n\n"
            while True:
                try:
                    event = await asyncio.wait_for(listener.get(), KEEP_ALIVE)
                except TimeoutError:
                    yield ": keep-alive\n\n"
                else:
                    if event is None:
                        return
                    yield f"data: {json.dumps(event)}\n\n"
        finally:
            self.listeners.discard(listener)

    def _requested(self, request: Request) -> list[Record]:
        requested = dict.fromkeys(request.query_params.get("runs", "").split(","))
        return [self._record(name) for name in requested]

    def _record(self, name: str) -> Record:
        record = self.watched.records.get(name)
        if record is None:
            raise HTTPException(404)
        return record

    def _row(self, name: str) -> dict[str, Any]:
        return payload.row(self.watched.records[name], name)


class _Hosts:
    """Reject requests for other host names, which prevents DNS rebinding attacks."""

    def __init__(self, app: ASGIApp, hosts: Collection[str] | None) -> None:
        self.app, self.hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self.hosts is not None:
            host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
            if re.sub(r":\d*$", "", host) not in self.hosts:
                await Response("this server does not answer for that host name\n", 400)(scope, receive, send)
                return
        await self.app(scope, receive, send)


class _Headers:
    """Add security headers to every response. A report contains its own content security policy."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = "frame-ancestors 'none'" if scope["path"] == "/report" else POLICY
                policy = [(b"content-security-policy", own.encode())]
                message["headers"] += [
                    (b"x-content-type-options", b"nosniff"),
                    (b"referrer-policy", b"no-referrer"),
                    *policy,
                ]
            await send(message)

        await self.app(scope, receive, with_headers if scope["type"] == "http" else send)
