"""URLs of servers of this node: where one is asked by what its command line says or where it was reached, and what a URL names. Pure.

Any user of the node can write anything on a command line: what is no host there gives no URL that could break, or lead elsewhere.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from urllib.parse import urlsplit

from poise.exporter.engines.discovery import FoundEngine
from poise.exporter.setting_values import authority

_HOST_NAME = re.compile(r"[A-Za-z0-9_.-]{1,253}")


def url_of(found: FoundEngine, port: int) -> str:
    """The address to ask; loopback where the server listens on every address or on loopback."""
    return f"{'https' if found.command.tls else 'http'}://{host_to_ask(found.config.host)}:{port}"


def url_at(found: FoundEngine, address: str, port: int) -> str:
    """The URL of a server at an address that is not the one of its command line."""
    return f"{'https' if found.command.tls else 'http'}://{authority(address, port)}"


def host_to_ask(listens_on: str | None) -> str:
    """The host of a URL by which a server of this node is asked: loopback where it listens on every address or on loopback, and where
    its command line names no host at all.
    """
    host = (listens_on or "").strip("[]")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        # Nothing listens under what is no host name.
        return host if host != "localhost" and _HOST_NAME.fullmatch(host) else "127.0.0.1"
    if address.is_unspecified or (address.is_loopback and address.version == 4):
        return "127.0.0.1"
    if address.version == 4:
        return host
    return f"[{host}]" if address.scope_id is None or _HOST_NAME.fullmatch(address.scope_id) else "127.0.0.1"


def why_not_asked(listens_on: str | None, is_local: Callable[[str], bool]) -> str:
    """Why a server whose command line names this host is not asked, "" where it is: whoever may run a process here must not choose to which
    other machines we connect. `is_local` says whether a host name or address is this node's.
    """
    host = host_to_ask(listens_on).strip("[]")
    return "" if is_local(host) else f"its --host {host} is not this node's, so nobody is asked there"


def url_host(url: str) -> tuple[str, int | None]:
    """Host and port of a URL; the port of its scheme when it names none, None when it is no port; "" and None for what is no URL."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "", None
    try:
        port = parts.port
    except ValueError:
        return parts.hostname or "", None
    return parts.hostname or "", port or {"http": 80, "https": 443}.get(parts.scheme)
