"""What every answer of the web server carries and which requests it refuses. Pure ASGI; knows no page.

The pages show numbers of this machine and change nothing, so the danger is another site that reads them through the user's browser:
headers forbid framing and foreign content, and a Host header that is not ours (DNS rebinding) is refused on loopback listeners.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address

from starlette.datastructures import MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def is_loopback(host: str) -> bool:
    """Whether a host name or address means this machine only. Names other than localhost are not resolved."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def host_of(header: str) -> str:
    """The host in a Host header, in lower case, without port and brackets; "" when there is none."""
    header = header.strip().lower()
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.rsplit(":", 1)[0] if header.count(":") == 1 else header


def allowed_hosts(listen_host: str, extra: Iterable[str]) -> frozenset[str] | None:
    """The Host names that a listener answers to; None for any, where the listener is open to other machines anyway."""
    if not is_loopback(listen_host):
        return None
    return LOOPBACK_NAMES | {listen_host.strip("[]").lower()} | {host_of(host) for host in extra}


class SecurityHeaders:
    """Adds HEADERS to every answer that does not set them itself."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_with_headers)


class HostCheck:
    """Refuses requests whose Host is not in `allowed` (None: takes any)."""

    def __init__(self, app: ASGIApp, allowed: frozenset[str] | None) -> None:
        self._app = app
        self._allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "http" and self._allowed is not None:
            header = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1")
            if host_of(header) not in self._allowed:
                text = (
                    "poise: this listener is for this machine only and does not answer to that Host name. Behind a proxy, name its host "
                    "with --allow-host.\n"
                )
                await PlainTextResponse(text, status_code=421)(scope, receive, send)
                return
        await self._app(scope, receive, send)
