"""Reads the answers of Prometheus' HTTP API: JSON in, the engine's shapes or the engine's errors out. Pure; knows no network.

Formats: prometheus.io/docs/prometheus/latest/querying/api. VictoriaMetrics, Thanos and Mimir answer in the same, with a few words of their own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from poise.exporter.logs import visible
from poise.history.promql.engine import InstantVector, Matrix, Result, Sample, Samples, ScalarValue, StringValue
from poise.history.promql.errors import BadQuery, ExecutionError, QueryError, QueryTimeout, Unavailable
from poise.history.promql.labels import Labels, labels
from poise.history.querier.door import Answer
from poise.history.text_format import Metadata

Data = TypeVar("Data")

#: Prometheus' `errorType` (web/api/v1/api.go) → ours; VictoriaMetrics gives the HTTP status there.
_ERRORS: Mapping[str, type[QueryError]] = {
    "bad_data": BadQuery,
    "execution": ExecutionError,
    "timeout": QueryTimeout,
    "canceled": QueryTimeout,
    "400": BadQuery,
    "422": ExecutionError,
    "504": QueryTimeout,
}
_LONGEST_MESSAGE = 500
_HISTOGRAMS = "native histograms are left out"


def read(status: int, body: bytes, convert: Callable[[Any], Data]) -> Answer[Data]:
    """The `data` of an answer, converted.

    Raises:
        QueryError: the answer is an error, or not one of Prometheus' API.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or "status" not in document:
        raise _no_answer(status, body)
    if document["status"] != "success":
        kind = _ERRORS.get(str(document.get("errorType")), _ERRORS.get(str(status), Unavailable))
        raise kind(_shortened(str(document.get("error") or f"HTTP status {status}")))
    try:
        data, histograms = convert(document.get("data")), b'"histogram' in body
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise Unavailable(f"the answer is not of the form of Prometheus' API ({type(error).__name__}: {_shortened(str(error))})") from None
    told = [*(document.get("warnings") or ()), *(document.get("infos") or ())]
    if document.get("isPartial") is True:  # VictoriaMetrics' cluster, where a storage node was away
        told.append("the answer is partial: a part of the storage did not answer")
    if histograms and isinstance(data, InstantVector | Matrix):
        told.append(_HISTOGRAMS)
    return Answer(data, tuple(_shortened(str(warning)) for warning in told))


def _no_answer(status: int, body: bytes) -> QueryError:
    text = _shortened(body[:_LONGEST_MESSAGE].decode("utf-8", "replace").strip())
    match status:
        case 401 | 403:
            return Unavailable(
                f"answered with HTTP status {status}: it wants a login; give bearer_token_file or username with password_file"
            )
        case 404:
            return Unavailable(
                "answered with HTTP status 404: no Prometheus API is there; give the URL with the path that its API is below"
            )
        case 504:
            return QueryTimeout(f"answered with HTTP status 504: {text}")
        case 200:
            return Unavailable(f"what answers is no Prometheus API: {text}")
    redirected = " (redirects are not followed; give the URL that it leads to)" if 300 <= status < 400 else ""
    return Unavailable(f"answered with HTTP status {status}{redirected}: {text}")


def _shortened(text: str) -> str:
    text = visible(" ".join(text.split()))
    return text if len(text) <= _LONGEST_MESSAGE else text[:_LONGEST_MESSAGE] + "…"


# ------------------------------------------------------------------------------------------------------------- what was asked
def result(data: Any) -> Result:
    """Of `query`: any of the four types."""
    found = data["result"]
    match data["resultType"]:
        case "vector":
            rows = [row for row in found if "value" in row]
            at = _milliseconds(rows[0]["value"][0]) if rows else 0
            return InstantVector(at, tuple(Sample(_labels(row["metric"]), float(row["value"][1])) for row in rows))
        case "matrix":
            return matrix(data)
        case "scalar":
            return ScalarValue(_milliseconds(found[0]), float(found[1]))
        case "string":
            return StringValue(_milliseconds(found[0]), str(found[1]))
    raise ValueError(f"resultType {data['resultType']!r}")


def matrix(data: Any) -> Matrix:
    """Of `query_range`."""
    if data["resultType"] != "matrix":
        raise ValueError(f"resultType {data['resultType']!r} instead of matrix")
    rows = [_samples(row) for row in data["result"] if row.get("values")]
    return Matrix(tuple(sorted(rows, key=lambda row: row.labels)))


def _samples(row: Any) -> Samples:
    points = row["values"]
    times = np.rint(np.array([point[0] for point in points], dtype=np.float64) * 1000).astype(np.int64)
    return Samples(_labels(row["metric"]), times, np.array([float(point[1]) for point in points], dtype=np.float64))


def series(data: Any) -> list[Labels]:
    """Of `series`."""
    return sorted(_labels(one) for one in data)


def texts(data: Any) -> list[str]:
    """Of `labels` and of a label's values."""
    return sorted(str(one) for one in data or ())


def metadata(data: Any) -> Mapping[str, tuple[Metadata, ...]]:
    """Of `metadata`."""
    return {
        str(name): tuple(Metadata(str(one.get("type") or "unknown"), str(one.get("help") or "")) for one in several)
        for name, several in sorted(data.items())
    }


def _labels(metric: Any) -> Labels:
    return labels({str(name): str(value) for name, value in metric.items()})


def _milliseconds(seconds: Any) -> int:
    return round(float(seconds) * 1000)
