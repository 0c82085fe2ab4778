"""What has to be right with a request before any page is asked: its target, its host, its body. Pure; RFC 9112 says what is right."""

from __future__ import annotations

import ipaddress
import re
from email.message import Message
from http import HTTPStatus
from typing import NamedTuple

from poise.exporter.pages import Response, plain

#: Bytes of a request line: a scrape with every collector named has 600.
LONGEST_LINE = 8 << 10
#: Bytes of a request line and headers together; a browser with a box full of cookies sends 10 KB.
LARGEST_HEAD = 32 << 10
#: Bytes of a body that is read and thrown away, so that the answer arrives; larger ones are refused. No page takes a body.
LARGEST_BODY = 64 << 10

#: The methods of RFC 9110 and PATCH: known, though no page takes them.
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"})


class Target(NamedTuple):
    """A request's target: path and query as they came, and the host when the target names one (absolute form)."""

    path: str
    query: str
    host: str | None


def target(text: str) -> Target | None:
    """The parts of a request target in origin or absolute form; None when it is neither."""
    if not re.fullmatch(r"[!-~]+", text):
        return None
    host: str | None = None
    absolute = re.fullmatch(r"https?://([^/?#]*)(.*)", text, flags=re.IGNORECASE)
    if absolute is not None:
        host, text = absolute[1], absolute[2]
        text = text if text.startswith("/") else f"/{text}"
    path, _, query = text.partition("#")[0].partition("?")
    return Target(path, query, host)


def refusal(method: str, version: str, headers: Message) -> Response | None:
    """Why a request cannot be answered, whatever it asks for; None when it can."""
    if method not in METHODS:
        return plain(HTTPStatus.NOT_IMPLEMENTED, "no such method; GET and HEAD are answered")
    if headers.defects:
        return plain(HTTPStatus.BAD_REQUEST, "a header has no colon, or no name")
    hosts = headers.get_all("Host", [])
    if len(hosts) > 1:
        return plain(HTTPStatus.BAD_REQUEST, "more than one Host header")
    if not hosts and version != "HTTP/1.0":
        return plain(HTTPStatus.BAD_REQUEST, "no Host header, which HTTP/1.1 asks for")
    lengths = set(headers.get_all("Content-Length", []))
    if not lengths:
        return None
    length = lengths.pop()
    if lengths or "Transfer-Encoding" in headers or not re.fullmatch(r"[0-9]{1,19}", str(length).strip()):
        return plain(HTTPStatus.BAD_REQUEST, "the Content-Length is no length, or not the only one")
    if int(length) > LARGEST_BODY:
        return plain(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "no page takes a body, and this one is large")
    return None


def host_allowed(header: str | None, own: frozenset[str]) -> bool:
    """Whether a Host header names one of `own` hosts or an address of this machine's loopback. No header (HTTP/1.0) is no browser: allowed."""
    if header is None:
        return True
    match = re.fullmatch(r"\s*(?:\[([^\]]*)\]|([^:\[\]]*))(?::\d*)?\s*", header)
    if match is None:
        return False
    host = (match[1] or match[2] or "").lower().rstrip(".")
    if host in own or host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
