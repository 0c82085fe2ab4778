"""Routers that a person names: what can be said of one in `poise.toml`, in the environment and behind ``--router``, and what is wrong with it.

This file knows no layer of settings and asks no router.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from poise.exporter import named_specs, setting_values
from poise.exporter.snapshot import RouterKind


@dataclass(frozen=True, slots=True)
class RouterSpec:
    """A router that the user named: `url` is its base URL; `metrics` that of its metrics page where it is another; "" when not given."""

    name: str
    url: str
    deployment: str = ""
    kind: RouterKind | None = None
    metrics: str = ""


#: What can be said of a router, in `poise.toml` and behind `--router NAME=URL`.
_ROUTER_KEYS = tuple(item.name for item in fields(RouterSpec))
_ROUTER_OPTIONS = tuple(key for key in _ROUTER_KEYS if key not in ("name", "url"))


def parse_router(text: str) -> RouterSpec:
    """A router from ``NAME=URL[,deployment=…][,kind=vllm-router|production-stack|toy-proxy][,metrics=URL]``.

    Raises:
        ValueError: what is wrong with it, in words.
    """
    return _router(named_specs.table_from_text(text, _ROUTER_OPTIONS, "chat=http://10.0.0.5:30000"))


def _router(values: Mapping[str, Any]) -> RouterSpec:
    """A router from a table; raises ValueError naming the key."""
    named_specs.check_keys(values, _ROUTER_KEYS)
    kind = values.get("kind", "")
    if kind and kind not in tuple(RouterKind):
        raise ValueError(f"kind {kind!r} is not one of {', '.join(RouterKind)}")
    return RouterSpec(
        named_specs.checked_name(values.get("name", ""), "router"),
        setting_values.base_url(values.get("url", "")),
        values.get("deployment", ""),
        RouterKind(kind) if kind else None,
        setting_values.base_url(values["metrics"]) if values.get("metrics") else "",
    )


def routers(value: object) -> tuple[RouterSpec, ...]:
    """From a TOML list of tables, or from text with routers separated by blanks or semicolons."""
    return named_specs.many(value, parse_router, _router)
