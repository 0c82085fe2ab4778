"""What can be wrong with a query. Every message is written for the person who asked."""

from __future__ import annotations


class QueryError(ValueError):
    """A query that cannot be answered. The subclasses are Prometheus' `errorType` values."""


class BadQuery(QueryError):
    """The text is no PromQL, or its parameters cannot be."""


class Unsupported(BadQuery):
    """Valid PromQL that this engine does not have; the message names the part."""


class ExecutionError(QueryError):
    """The query cannot be evaluated over these series: an ambiguous match, two results with one label set, a limit."""


class QueryTimeout(QueryError):
    """The query took longer than it may."""


class Unavailable(QueryError):
    """Who was asked cannot answer now: not reachable, refuses us, overloaded, or its disk fails."""
