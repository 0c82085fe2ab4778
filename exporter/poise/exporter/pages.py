"""What the exporter answers under each path: /metrics, /checks, /healthz, /readyz and a landing page. Knows no socket."""

from __future__ import annotations

import html
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from poise.exporter.assemble import Published
from poise.exporter.checks.document import document
from poise.exporter.collect import Groups
from poise.exporter.exposition import Exposition, negotiate

_METHODS = "GET, HEAD"


@dataclass(frozen=True, slots=True)
class Response:
    """An answer: status, content type, body, and more headers."""

    status: HTTPStatus
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked: method, path and query as they came, and the Accept header (empty without one)."""

    method: str
    path: str
    query: str = ""
    accept: str = ""


def plain(status: HTTPStatus, text: str, *headers: tuple[str, str]) -> Response:
    """A line of text."""
    return Response(status, "text/plain; charset=utf-8", f"{text}\n".encode(), headers)


class Pages:
    """What each path answers. Pure but for the newest snapshot and the clock, which are passed in.

    `groups`: what `/metrics?collect[]=` can choose among.
    """

    def __init__(
        self,
        latest: Callable[[], Published | None],
        exposition: Exposition,
        version: str,
        wall: Callable[[], float] = time.time,
        groups: Groups | None = None,
    ):
        self._latest = latest
        self._exposition = exposition
        self._version = version
        self._wall = wall
        self._groups = groups or Groups({})

    def answer(self, request: Request) -> Response:
        """The answer to a request."""
        pages: dict[str, Callable[[Request], Response]] = {
            "/": lambda request: self._landing(),
            "/metrics": self._metrics,
            "/checks": lambda request: self._checks(),
            "/healthz": lambda request: plain(HTTPStatus.OK, "alive"),
            "/readyz": lambda request: self._ready(),
        }
        page = pages.get(request.path)
        if page is None:
            return plain(HTTPStatus.NOT_FOUND, f"no such page; there are {' '.join(sorted(pages))}")
        if request.method not in ("GET", "HEAD"):
            return plain(HTTPStatus.METHOD_NOT_ALLOWED, f"only {_METHODS}", ("Allow", _METHODS))
        return page(request)

    def _metrics(self, request: Request) -> Response:
        try:
            chosen = self._groups.chosen(request.query)
        except ValueError as error:
            return plain(HTTPStatus.BAD_REQUEST, str(error))
        published = self._latest()
        if published is None:
            return self._not_ready()
        form = negotiate(request.accept)
        results = published.outcome.results if published.outcome else ()
        return Response(HTTPStatus.OK, form.value, self._exposition.render(published.snapshot, results, self._wall(), form, chosen))

    def _checks(self) -> Response:
        published = self._latest()
        if published is None:
            return self._not_ready()
        if published.outcome is None:
            return plain(HTTPStatus.SERVICE_UNAVAILABLE, "the checks failed; see the log")
        body = json.dumps(document(published.snapshot, published.outcome), ensure_ascii=False, indent=1, allow_nan=False)
        return Response(HTTPStatus.OK, "application/json", body.encode("utf-8", "replace"))

    def _ready(self) -> Response:
        return plain(HTTPStatus.OK, "ready") if self._latest() else self._not_ready()

    def _not_ready(self) -> Response:
        return plain(HTTPStatus.SERVICE_UNAVAILABLE, "starting: no snapshot yet", ("Retry-After", "1"))

    def _landing(self) -> Response:
        published = self._latest()
        rows = [("Version", self._version)]
        if published is not None:
            snapshot = published.snapshot
            expected = "" if snapshot.gpus_expected is None else f" of {snapshot.gpus_expected} expected"
            rows += [
                ("Node", snapshot.node),
                ("Driver", snapshot.driver.driver or snapshot.driver.error),
                ("Cards", f"{sum(gpu.up for gpu in snapshot.gpus)}{expected}{' (simulated)' if snapshot.simulated else ''}"),
                ("Engines", ", ".join(engine.identity.engine for engine in snapshot.engines) or "none found"),
            ]
            if published.outcome is not None:
                rows.append(("Verdict", published.outcome.verdict.summary))
        table = "".join(f"<tr><th>{html.escape(name)}<td>{html.escape(value)}" for name, value in rows)
        body = _LANDING.replace("ROWS", table)
        return Response(HTTPStatus.OK, "text/html; charset=utf-8", body.encode("utf-8", "replace"), _PAGE_HEADERS)


_PAGE_HEADERS = (("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'"),)
_LANDING = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">
<title>Poise exporter</title>
<style>
:root { color-scheme: light dark } body { font: 16px/1.5 system-ui, sans-serif; max-width: 42rem; margin: 3rem auto; padding: 0 1rem }
th { text-align: left; padding-right: 1.5rem; vertical-align: top; font-weight: 600 } td { overflow-wrap: anywhere }
</style>
<h1>Poise exporter</h1>
<table>ROWS</table>
<p><a href="/metrics">/metrics</a> · <a href="/checks">/checks</a> · <a href="/healthz">/healthz</a> · <a href="/readyz">/readyz</a>
</html>
"""
