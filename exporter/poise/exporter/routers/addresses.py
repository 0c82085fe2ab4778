"""Addresses of engines as routers write them, and which of our engines each is. Pure; never raises."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from poise.exporter.setting_values import authority, is_loopback
from poise.exporter.snapshot import Role, RouterBackend

_SCHEMES = ("http", "https", "grpc")
_DEFAULT_PORTS = {"http": 80, "https": 443}
#: What a router that spreads over the data-parallel ranks of one engine puts behind its URL: the rank (vllm-router, DP-aware routing).
_RANK = re.compile(r"@\d{1,4}\Z", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9_.:%-]{1,253}")


def address_of(text: str) -> tuple[str, int] | None:
    """Host and port of a URL or of ``HOST:PORT``; None when it has none. User, path and query are dropped."""
    plain = _RANK.sub("", text.strip())
    if not plain.isprintable():  # urlsplit would drop line feeds and tabs
        return None
    with_scheme = "://" in plain
    try:
        parts = urlsplit(plain if with_scheme else f"http://{plain}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return None
    if port is None and with_scheme:
        port = _DEFAULT_PORTS.get(parts.scheme)
    if parts.scheme not in _SCHEMES or not _HOST.fullmatch(host) or port is None:
        return None
    return host, port


def backend_url(text: str) -> str | None:
    """A backend's base URL, clean: scheme, host and port alone; None when it is none."""
    address = address_of(text)
    if address is None:
        return None
    host, port = address
    scheme = text.strip().partition("://")[0].lower() if "://" in text else "http"
    return f"{scheme}://{authority(host, port)}"


@dataclass(frozen=True, slots=True)
class KnownEngine:
    """An engine as the join needs it: its id and where its API is asked; `here`: it listens in the network namespace of this exporter;
    `forwarded`: ports of this node that lead to it; `model`: the first served name, "" where that is not known.
    """

    engine: str
    host: str
    port: int
    here: bool
    forwarded: frozenset[int] = frozenset()
    model: str = ""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a router says of an engine: its deployment, and its role (unknown where the router does not tell)."""

    deployment: str
    role: Role


def join(
    backends: Iterable[RouterBackend],
    engines: Iterable[KnownEngine],
    node: str,
    is_local: Callable[[str], bool],
    router_host: str = "",
) -> tuple[RouterBackend, ...]:
    """The backends with our ids of the engines. `router_host`: where the router runs, "" for this node.

    A loopback address is one of the router's node. An engine that is not known here gets the id that its own node gives it, ``<node>:<port>``.
    """
    known = list(engines)
    by_address = {(engine.host, engine.port): engine.engine for engine in known if not is_loopback(engine.host)}
    by_port = {port: engine.engine for engine in known for port in engine.forwarded}
    by_port |= {engine.port: engine.engine for engine in known if engine.here}

    def engine_of(url: str) -> str:
        address = address_of(url)
        if address is None:
            return ""
        host, port = address
        if router_host and is_loopback(host):
            host = router_host
        if (host, port) in by_address:
            return by_address[host, port]
        if is_local(host):
            return by_port.get(port, f"{node}:{port}")
        return authority(host, port)

    return tuple(replace(backend, engine=engine_of(backend.url)) for backend in backends)
