"""The web application: routes, and what stands around them. Knows requests; what a page says is built elsewhere.

GET /                         the overview            GET /fragment    its live part (poll fallback)
GET /api/poise/v1/overview    its JSON twin           GET /events      the live part at every change (SSE)
GET /metrics                  this process            GET /healthz     process alive   GET /readyz   exporter has answered
GET /static/…                 vendored and own files  GET /runbooks/NAME  what an alert means (its runbook_url leads here)
GET /alerts/NAME              why an alert fires, and its runbook (links in notifications lead here)
GET /api/v1/…                 Prometheus' API         GET /api/poise/v1/alerts/…  why an alert fires, silences
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from markupsafe import Markup
from poise.dashboard import assets, runbook_pages
from poise.dashboard.alert_explained import AlertPage
from poise.dashboard.live import Live
from poise.dashboard.overview import overview
from poise.dashboard.rendering import Renderer, document
from poise.dashboard.security import HostCheck, SecurityHeaders
from poise.dashboard.texts import ENGLISH, Texts
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

#: Seconds of silence after which a stream says that it lives. Below the 30 to 60 s after which proxies close idle connections.
HEARTBEAT = 10.0
#: Static files carry their hash in the URL, so a browser never asks twice.
FOREVER = "public, max-age=31536000, immutable"

Result = TypeVar("Result")


def create_app(
    live: Live,
    *,
    root_path: str = "",
    allowed_hosts: frozenset[str] | None = None,
    texts: Texts = ENGLISH,
    heartbeat: float = HEARTBEAT,
    routers: Sequence[APIRouter] = (),
    alert_page: AlertPage | None = None,
) -> FastAPI:
    """The application over `live`, which somebody else runs.

    `root_path` is the prefix under which a proxy shows it ("/poise"); `allowed_hosts` are the Host names that it answers to, None for
    any; `heartbeat` in seconds is the longest silence of a stream; `routers` are further routes (/api/v1, /api/poise/v1/alerts); `alert_page` says
    why an alert fires.
    """
    root_path = root_path.rstrip("/")
    # No interactive API page: it loads its scripts from another host.
    app = FastAPI(title="Poise", docs_url=None, redoc_url=None, openapi_url=None)
    static = assets.load()
    site = _Site(live, Renderer(texts, static, root_path, heartbeat), texts, root_path, heartbeat)

    app.add_middleware(_BelowPrefix, prefix=root_path)
    app.add_middleware(GZipMiddleware, minimum_size=1_000, compresslevel=6)
    app.add_middleware(SecurityHeaders)
    app.add_middleware(HostCheck, allowed=allowed_hosts)

    for router in routers:
        app.include_router(router)

    @app.get("/", response_class=HTMLResponse)
    async def page() -> Response:
        return HTMLResponse(site.page(), headers={"Cache-Control": "no-store"})

    @app.get("/fragment", response_class=HTMLResponse)
    async def fragment() -> Response:
        return HTMLResponse(site.fragment(), headers={"Cache-Control": "no-store"})

    @app.get("/events")
    async def events(request: Request, seen: str = "") -> Response:
        seen = request.headers.get("last-event-id", seen)
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(site.events(seen), media_type="text/event-stream", headers=headers)

    @app.get("/api/poise/v1/overview")
    async def overview_document() -> Response:
        return Response(site.document(), media_type="application/json", headers={"Cache-Control": "no-store"})

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(live.metrics.render(), media_type=live.metrics.content_type)

    @app.get("/healthz")
    async def healthz() -> Response:
        return PlainTextResponse("ok\n")

    @app.get("/readyz")
    async def readyz() -> Response:
        if live.scraped:
            return PlainTextResponse("ok\n")
        return PlainTextResponse("the exporter has not answered yet\n", status_code=503)

    @app.get("/runbooks", response_class=HTMLResponse)
    async def runbook_list() -> Response:
        return HTMLResponse(site.runbook_list())

    @app.get("/runbooks/{alert}", response_class=HTMLResponse)
    async def runbook(alert: str) -> Response:
        text = site.runbook(alert)
        return PlainTextResponse("no such runbook\n", status_code=404) if text is None else HTMLResponse(text)

    @app.get("/alerts/{alert}", response_class=HTMLResponse)
    async def alert(alert: str, request: Request) -> Response:
        explained = None if alert_page is None else await alert_page(alert, request.query_params)
        text = site.alert(alert, explained)
        return (
            PlainTextResponse("no such alert\n", status_code=404)
            if text is None
            else HTMLResponse(text, headers={"Cache-Control": "no-store"})
        )

    @app.get("/favicon.ico")
    async def favicon(request: Request) -> Response:
        return _static_answer(static["favicon.svg"], request)

    @app.get("/static/{name}")
    async def static_file(name: str, request: Request) -> Response:
        asset = static.get(name)
        return PlainTextResponse("no such file\n", status_code=404) if asset is None else _static_answer(asset, request)

    return app


class _BelowPrefix:
    """Names the proxy's prefix to the router, which then finds routes whether the proxy strips it from paths or not."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self._app = app
        self._prefix = prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        await self._app({**scope, "root_path": self._prefix} if self._prefix else scope, receive, send)


class _Site:
    """The pages of one `Live`; the fragment is rendered once per state, however many tabs wait for it."""

    def __init__(self, live: Live, renderer: Renderer, texts: Texts, root_path: str, heartbeat: float) -> None:
        self._heartbeat = heartbeat
        self._live = live
        self._renderer = renderer
        self._texts = texts
        self._root_path = root_path
        self._rendered = ("", "")

    def page(self) -> str:
        version = self._live.version
        return self._timed(lambda: self._renderer.page(overview(self._live.observation(), self._texts), version))

    def fragment(self) -> str:
        if self._rendered[0] != self._live.version:
            version = self._live.version
            fragment = self._timed(lambda: self._renderer.fragment(overview(self._live.observation(), self._texts)))
            self._rendered = (version, fragment)
        return self._rendered[1]

    def document(self) -> str:
        return document(overview(self._live.observation(), self._texts))

    def runbook(self, alert: str) -> str | None:
        """The page of an alert, None when there is no such alert."""
        body = runbook_pages.body(alert)
        return None if body is None else self._renderer.runbook(alert, body)

    def alert(self, alert: str, explained: Markup | None) -> str | None:
        """The page that notifications link to: why it fires or not, then its runbook; None when there is neither."""
        runbook = runbook_pages.body(alert)
        if explained is None and runbook is None:
            return None
        return self._renderer.runbook(alert, Markup("<hr>").join(part for part in (explained, runbook) if part is not None))

    def runbook_list(self) -> str:
        """All of them."""
        return self._renderer.runbook(self._texts.runbooks, runbook_pages.listing(self._texts.runbooks, self._root_path))

    async def events(self, seen: str) -> AsyncIterator[str]:
        """The stream: unnamed messages hold the fragment, "heartbeat" shows that the stream lives."""
        with self._live.metrics.streams.track_inprogress():
            yield "retry: 1000\n\n"
            async for version in self._live.versions(seen, self._heartbeat):
                yield _message(version, self.fragment()) if version else "event: heartbeat\ndata:\n\n"

    def _timed(self, build: Callable[[], Result]) -> Result:
        began = time.perf_counter()
        result = build()
        self._live.metrics.page_seconds.observe(time.perf_counter() - began)
        return result


def _message(version: str, text: str) -> str:
    """One event. A carriage return would end a line of the stream as a line feed does."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return f"id: {version}\n" + "".join(f"data: {line}\n" for line in lines) + "\n"


def _static_answer(asset: assets.Asset, request: Request) -> Response:
    headers = {
        "Cache-Control": FOREVER if "v" in request.query_params else "no-cache",
        "ETag": f'"{asset.digest}"',
        "Vary": "Accept-Encoding",
    }
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    if asset.compressed is not None and "gzip" in request.headers.get("accept-encoding", ""):
        return Response(asset.compressed, media_type=asset.content_type, headers={**headers, "Content-Encoding": "gzip"})
    return Response(asset.body, media_type=asset.content_type, headers=headers)
