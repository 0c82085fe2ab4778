"""Answers from a Prometheus, or from what speaks its HTTP API: VictoriaMetrics, Thanos, Mimir.

Owns how questions are sent. What an answer means is read in answers.py, sockets and secrets are fetch.py's.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from poise.exporter import setting_values
from poise.exporter.access import PLAIN, Access
from poise.exporter.engines.credentials import Credentials
from poise.history.durations import format_duration
from poise.history.fetch import Fetcher, FetchError, Request
from poise.history.promql.engine import Matrix, Result
from poise.history.promql.errors import BadQuery, QueryTimeout, Unavailable
from poise.history.promql.labels import Labels
from poise.history.promql.limits import TIMEOUT
from poise.history.querier import answers
from poise.history.querier.door import TRUNCATED, Answer
from poise.history.text_format import Metadata

#: Bytes of an answer, unpacked: 11,000 points of 60 series.
ANSWER_LIMIT = 64_000_000
#: Seconds that an answer may be on its way after the server's own timeout.
GRACE = 2.0
#: From this size on an answer is read in a thread, because that takes longer than the event loop may stand still.
_READ_IN_THREAD = 200_000
_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
#: What a server or a proxy answers that takes no POST; Prometheus' own clients then ask with GET (client_golang, DoGetFallback).
_NO_POST = (405, 501)

Data = TypeVar("Data")
Parameters = Sequence[tuple[str, str]]


class PrometheusQuerier:
    """A `Querier` over HTTP. `url` is what `/api/v1` is below, path prefix included; `tenant` goes to Mimir as X-Scope-OrgID."""

    def __init__(
        self,
        url: str,
        *,
        access: Access = PLAIN,
        environment: Mapping[str, str] | None = None,
        timeout: float = TIMEOUT,
        limit: int = ANSWER_LIMIT,
        tenant: str = "",
    ) -> None:
        """Raises ValueError naming what is wrong with the URL."""
        self.url = setting_values.base_url(url)
        self._fetcher = Fetcher(Credentials(access, environment))
        self._timeout = timeout
        self._limit = limit
        self._headers = {"Accept": "application/json", **({"X-Scope-OrgID": tenant} if tenant else {})}
        self._closed = False

    async def instant(self, query: str, at: float, *, timeout: float | None = None) -> Answer[Result]:
        """As Querier says."""
        seconds = min(self._timeout, timeout or self._timeout)
        parameters = [("query", query), ("time", _text(at)), ("timeout", format_duration(seconds))]
        return await self._ask("query", parameters, answers.result, seconds)

    async def range(self, query: str, start: float, end: float, step: float, *, timeout: float | None = None) -> Answer[Matrix]:
        """As Querier says."""
        seconds = min(self._timeout, timeout or self._timeout)
        parameters = [
            ("query", query),
            ("start", _text(start)),
            ("end", _text(end)),
            ("step", _text(step)),
            ("timeout", format_duration(seconds)),
        ]
        return await self._ask("query_range", parameters, answers.matrix, seconds)

    async def series(self, matches: Sequence[str], start: float, end: float, *, limit: int = 0) -> Answer[list[Labels]]:
        """As Querier says."""
        if not matches:
            raise BadQuery("no match[] parameter provided")
        return _cut(await self._ask("series", _selection(matches, start, end, limit), answers.series), limit)

    async def label_names(self, matches: Sequence[str], start: float, end: float, *, limit: int = 0) -> Answer[list[str]]:
        """As Querier says."""
        return _cut(await self._ask("labels", _selection(matches, start, end, limit), answers.texts), limit)

    async def label_values(self, name: str, matches: Sequence[str], start: float, end: float, *, limit: int = 0) -> Answer[list[str]]:
        """As Querier says."""
        if not _LABEL_NAME.fullmatch(name):
            raise BadQuery(f"invalid label name: {name!r}")
        path = f"label/{quote(name)}/values"
        return _cut(await self._ask(path, _selection(matches, start, end, limit), answers.texts, post=False), limit)

    async def metadata(self, metric: str = "", *, limit: int = 0) -> Answer[Mapping[str, tuple[Metadata, ...]]]:
        """As Querier says."""
        parameters = [*((("metric", metric),) if metric else ()), *((("limit", str(limit)),) if limit else ())]
        return await self._ask("metadata", parameters, answers.metadata, post=False)

    async def close(self) -> None:
        """As Querier says; a request in flight ends with the task that waits for it."""
        self._closed = True

    # ------------------------------------------------------------------------------------------------------------ network
    async def _ask(
        self, path: str, parameters: Parameters, convert: Callable[[Any], Data], timeout: float | None = None, *, post: bool = True
    ) -> Answer[Data]:
        if self._closed:
            raise Unavailable("the querier is closed")
        url, form = f"{self.url}/api/v1/{path}", urlencode(parameters)
        seconds = timeout or self._timeout
        status, body = await self._exchange(url, form, seconds, post=post)
        if post and status in _NO_POST:
            status, body = await self._exchange(url, form, seconds, post=False)
        if len(body) < _READ_IN_THREAD:
            return answers.read(status, body, convert)
        return await asyncio.to_thread(answers.read, status, body, convert)

    async def _exchange(self, url: str, form: str, seconds: float, *, post: bool) -> tuple[int, bytes]:
        if post:
            headers = {**self._headers, "Content-Type": "application/x-www-form-urlencoded"}
            request = Request("POST", headers, form.encode(), compressed=True)
        else:
            url, request = (f"{url}?{form}" if form else url), Request("GET", self._headers, compressed=True)
        try:
            answer = await self._fetcher.exchange(url, request, timeout=seconds + GRACE, limit=self._limit)
        except FetchError as error:
            kind = QueryTimeout if str(error).startswith("no complete answer") else Unavailable
            raise kind(f"{self.url}: {error}") from None
        except ValueError as error:
            raise BadQuery(str(error)) from None
        return answer.status, answer.body


def _text(seconds: float) -> str:
    return f"{seconds:.3f}"


def _selection(matches: Sequence[str], start: float, end: float, limit: int) -> list[tuple[str, str]]:
    """`limit` asks for one more, so that an answer of a server that knows none and of one that does are told apart the same way."""
    cut = [("limit", str(limit + 1))] if limit else []
    return [*(("match[]", match) for match in matches), ("start", _text(start)), ("end", _text(end)), *cut]


def _cut(answer: Answer[list[Data]], limit: int) -> Answer[list[Data]]:
    if not 0 < limit < len(answer.data):
        return answer
    told = tuple(warning for warning in answer.warnings if warning != TRUNCATED)
    return Answer(answer.data[:limit], (*told, TRUNCATED))
