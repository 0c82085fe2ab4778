"""The parameters of a request to Prometheus' API: from the query string and from a form, checked as Prometheus checks them.

Messages are Prometheus' own where it has one (web/api/v1/api.go), because its clients show them. Knows no route and no answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl

from poise.history import moments
from poise.history.promql.errors import BadQuery
from starlette.requests import Request

#: Bytes of a form and parameters of a request. A query has at most 16 KB.
FORM_LIMIT = 256_000
MOST_PARAMETERS = 1_000
#: Points of one series in a range query (Prometheus' own).
MOST_POINTS = 11_000
#: The times that are meant when none are said: everything. Years 0 and 5138, so that each querier can write them.
EARLIEST, LATEST = -62_135_596_800.0, 99_999_999_999.0


@dataclass(frozen=True, slots=True)
class Range:
    """Start and end in Unix seconds, step in seconds."""

    start: float
    end: float
    step: float


class Parameters:
    """What a request says. Of a name that stands twice the first counts, those of the form before those of the URL. Every method raises BadQuery."""

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        self._pairs = pairs

    def text(self, name: str) -> str:
        """A parameter, "" when it is not given."""
        return next((value for key, value in self._pairs if key == name), "")

    def every(self, name: str) -> list[str]:
        """All of a name."""
        return [value for key, value in self._pairs if key == name]

    def query(self) -> str:
        """`query`, which has to be there."""
        text = self.text("query")
        if not text.strip():
            raise BadQuery('invalid parameter "query": 1:1: parse error: no expression found in input')
        self._refuse("lookback_delta")
        return text

    def time(self, name: str, default: float | None = None) -> float:
        """A moment in Unix seconds."""
        text = self.text(name)
        if default is None:
            return self._parsed(name, text, moments.unix_seconds)
        try:
            return moments.unix_seconds(text) if text else default
        except ValueError as error:
            raise BadQuery(f"invalid parameter \"{name}\": Invalid time value for '{name}': {error}") from None

    def range(self) -> Range:
        """`start`, `end` and `step` of a range query."""
        start, end = self.time("start"), self.time("end")
        if end < start:
            raise BadQuery('invalid parameter "end": end timestamp must not be before start time')
        step = self._parsed("step", self.text("step"), moments.length)
        if step <= 0:
            raise BadQuery(
                'invalid parameter "step": zero or negative query resolution step widths are not accepted. Try a positive integer'
            )
        if (end - start) / step > MOST_POINTS:
            raise BadQuery("exceeded maximum resolution of 11,000 points per timeseries. Try decreasing the query resolution (?step=XX)")
        return Range(start, end, step)

    def timeout(self) -> float | None:
        """`timeout` in seconds, None when it is not given."""
        text = self.text("timeout")
        return max(self._parsed("timeout", text, moments.length), 0.001) if text else None

    def limit(self, name: str = "limit") -> int:
        """A number from 0, which is no limit."""
        text = self.text(name)
        if not text:
            return 0
        if not re.fullmatch(r"\+?[0-9]{1,9}", text):
            raise BadQuery(f"{name} must be {'non-negative' if re.fullmatch(r'-[0-9]{1,9}', text) else 'a number'}")
        return int(text)

    def _parsed(self, name: str, text: str, parse: Callable[[str], float]) -> float:
        try:
            return parse(text)
        except ValueError as error:
            raise BadQuery(f'invalid parameter "{name}": {error}') from None

    def _refuse(self, name: str) -> None:
        if self.text(name):
            raise BadQuery(f'invalid parameter "{name}": it is not supported; the lookback is five minutes')


async def parameters(request: Request) -> Parameters:
    """Those of the form, then those of the URL. Raises BadQuery."""
    pairs: list[tuple[str, str]] = []
    if request.method == "POST":
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "application/x-www-form-urlencoded":
            pairs += _pairs(await _body(request))
    return Parameters([*pairs, *_pairs(request.url.query)])


async def _body(request: Request) -> str:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > FORM_LIMIT:
            raise BadQuery(f"the form is larger than {FORM_LIMIT} bytes")
    return body.decode("latin-1")  # what is not ASCII stands there in %-escapes


def _pairs(text: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_PARAMETERS, encoding="utf-8", errors="replace")
    except ValueError:
        raise BadQuery(f"more than {MOST_PARAMETERS} parameters") from None
