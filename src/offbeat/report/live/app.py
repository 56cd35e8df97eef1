"""A page that shows runs as they go, and the little that it asks for.

It only reads, and only what `find` has found under its folder: a run is asked for by a name that says nothing, never by
a path.
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

from offbeat.report import html as report
from offbeat.report import payload
from offbeat.report.live.watch import Watched
from offbeat.report.read import Record

SECONDS = 1.0  # between two looks at the folder
KEEP_ALIVE = 15.0  # seconds without news after which a line is sent, so that a connection that is gone is noticed
STATIC = {
    "echarts.min.js": "text/javascript",
    "charts.js": "text/javascript",
    "view.js": "text/javascript",
    "live.js": "text/javascript",
    "style.css": "text/css",
}
MOST_REPORTED = 100  # runs
_LOG = logging.getLogger("offbeat")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def serve(root: pathlib.Path, host: str, port: int, told: Callable[[str], None]) -> None:
    """Serve until Ctrl-C; `told` hears the address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen()  # who comes before the server is up waits a moment
        shown = f"[{host}]" if family == socket.AF_INET6 else host
        told(f"http://{shown}:{listening.getsockname()[1]}/")
        app = application(root, None if host in EVERYWHERE else {host, shown})
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
        with contextlib.suppress(KeyboardInterrupt):
            _Server(config).run(sockets=[listening])


class _Server(uvicorn.Server):
    """Ends the streams of news before it waits for everybody to be served."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.config.app.state.live.end()  # type: ignore[union-attr]
        super().handle_exit(sig, frame)


LOOPBACK = {"127.0.0.1", "localhost", "[::1]"}
EVERYWHERE = {"0.0.0.0", "::"}


def application(root: pathlib.Path, hosts: Collection[str] | None = LOOPBACK) -> Starlette:
    """The page for the runs under a folder, for whoever asks for one of the hosts or this machine; None: for all."""
    live = _Live(root)
    routes = [
        Route("/", live.page),
        Route("/static/{name}", live.static),
        Route("/api/runs", live.runs),
        Route("/api/runs/{name}/curve", live.curve),
        Route("/api/runs/{name}/detail", live.detail),
        Route("/report", live.report),
        Route("/events", live.events),
    ]
    middleware = [Middleware(_Hosts, hosts=None if hosts is None else {*hosts, *LOOPBACK}), Middleware(_Headers)]
    app = Starlette(routes=routes, middleware=middleware, lifespan=live.lifespan)
    app.state.live = live
    return app


class _Live:
    def __init__(self, root: pathlib.Path) -> None:
        self.root = root
        self.watched = Watched(root)
        self.listeners: set[asyncio.Queue[dict[str, Any] | None]] = set()  # None: there will be no more
        self.loop: asyncio.AbstractEventLoop | None = None

    def end(self) -> None:
        """No more news; may be called from a signal."""
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self._tell, None)

    def _tell(self, news: dict[str, Any] | None) -> None:
        for listener in self.listeners:
            listener.put_nowait(news)

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self.loop = asyncio.get_running_loop()
        await asyncio.to_thread(self.watched.look)
        looking = asyncio.create_task(self._look())
        try:
            yield
        finally:
            looking.cancel()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(SECONDS)
            try:
                change = await asyncio.to_thread(self.watched.look)
            except Exception:  # a folder that cannot be looked at now may be whole again later
                _LOG.exception("the runs under %s could not be read", self.root)
                continue
            if change.changed or change.other:
                self._tell({"runs": [self._row(name) for name in change.changed], "other": change.other})

    # What is asked for -------------------------------------------------------------------------------------------

    async def page(self, _: Request) -> Response:
        title = html.escape(f"offbeat · {self.root.resolve().name}")
        scripts = "".join(f'<script src="/static/{name}"></script>' for name in STATIC if name.endswith(".js"))
        head = '<link rel="stylesheet" href="/static/style.css">'
        policy = html.escape(POLICY.partition("; frame-ancestors")[0], quote=True)  # that one is for headers alone
        text = report.static("page.html").format(policy=policy, title=title, head=head, data="", scripts=scripts)
        return HTMLResponse(text)

    async def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in STATIC:
            raise HTTPException(404)
        return Response(report.static(name), media_type=STATIC[name])

    async def runs(self, _: Request) -> Response:
        rows = [self._row(name) for name in self.watched.records]
        return JSONResponse({"runs": rows})

    async def curve(self, request: Request) -> Response:
        begin = request.query_params.get("from", "0")
        record = self._record(request.path_params["name"])
        return JSONResponse(payload.curve(record, int(begin) if re.fullmatch("[0-9]{1,9}", begin) else 0))

    async def detail(self, request: Request) -> Response:
        record = self._record(request.path_params["name"])
        return JSONResponse(await asyncio.to_thread(payload.detail, record))

    async def report(self, request: Request) -> Response:
        asked = dict.fromkeys(request.query_params.get("runs", "").split(","))
        records = [self._record(name) for name in asked]
        if len(records) > MOST_REPORTED:
            raise HTTPException(400, f"at most {MOST_REPORTED} runs in a report")
        return HTMLResponse(await asyncio.to_thread(report.page, records))

    async def events(self, _: Request) -> Response:
        return StreamingResponse(
            self._news(),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    async def _news(self) -> AsyncIterator[str]:
        listener: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self.listeners.add(listener)
        try:
            yield "retry: 1000\n\n"
            while True:
                try:
                    news = await asyncio.wait_for(listener.get(), KEEP_ALIVE)
                except TimeoutError:
                    yield ": nothing new\n\n"
                else:
                    if news is None:
                        return
                    yield f"data: {json.dumps(news)}\n\n"
        finally:
            self.listeners.discard(listener)

    def _record(self, name: str) -> Record:
        record = self.watched.records.get(name)
        if record is None:
            raise HTTPException(404)
        return record

    def _row(self, name: str) -> dict[str, Any]:
        return payload.row(self.watched.records[name], name)


class _Hosts:
    """Only these may be asked for: a page elsewhere whose name is made to point here must learn nothing."""

    def __init__(self, app: ASGIApp, hosts: Collection[str] | None) -> None:
        self.app, self.hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self.hosts is not None:
            asked = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
            if re.sub(r":\d*$", "", asked) not in self.hosts:
                await Response("another host\n", 400)(scope, receive, send)
                return
        await self.app(scope, receive, send)


class _Headers:
    """What every answer says to browsers; a report brings its own policy."""

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
