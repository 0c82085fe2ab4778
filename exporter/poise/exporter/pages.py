"""What the exporter answers under each path: /metrics, /checks, /healthz, /readyz and a landing page. Knows no socket."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from poise.exporter import landing
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
        return Response(HTTPStatus.OK, "text/html; charset=utf-8", landing.document(self._version, self._latest()), landing.HEADERS)
