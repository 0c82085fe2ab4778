"""JSON as our own routes answer it. Values in, answers out."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi.responses import JSONResponse


def answer(document: Mapping[str, object], status: int = 200, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """An answer that no cache keeps."""
    return JSONResponse(_finite(document), status_code=status, headers={"Cache-Control": "no-store", **(headers or {})})


def _finite(value: object) -> object:
    """JSON has no NaN and no infinity: they are texts, as in Prometheus' API."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return "NaN" if value != value else "+Inf" if value > 0 else "-Inf"
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
