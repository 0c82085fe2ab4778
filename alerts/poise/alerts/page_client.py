"""Requests to a running `poise up`, with its token where something is changed, and its refusals in the words of the command line.

Knows addresses, answers and the token; no arguments and no alert.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from poise.alerts import ask_command, rules_api
from poise.alerts.ask_command import AskError
from poise.history import page_token
from poise.history.fetch import FetchError, Request
from poise.history.page_token import TokenError

TOKEN_VARIABLE = "POISE_TOKEN"  # noqa: S105 - its name, not a token
#: Seconds: `poise up` itself waits up to ten for each Alertmanager.
_TIMEOUT = 30.0
_MOST_BYTES = 32_000_000
#: The ways out that `poise up` names in its answers to programs (dashboard: silences_api.py, changes.py), and what they are here; longer ones first.
_COMMANDS = (
    ("GET /api/poise/v1/alerts/notifications tells how it goes with each", "`poise alerts silences` names each that does not answer"),
    ("GET /api/poise/v1/silences", "`poise alerts silences`"),
    ("GET /api/poise/v1/alerts", "`poise alerts status`"),
    ("DELETE /api/poise/v1/acknowledgements/ID", "`poise alerts acknowledge ALERT --remove`"),
    ("send `Authorization: Bearer TOKEN` with what", f"give with --token-file FILE or ${TOKEN_VARIABLE} what"),
)


class PageClient:
    """The `poise up` that is asked; its token is read when something is to be changed."""

    def __init__(self, url: str, environment: Mapping[str, str], *, token_file: Path | None = None) -> None:
        """`url` is what --url says. Raises AskError."""
        self.url, self._fetcher, place = ask_command.server(url)
        self.url = self.url.rstrip("/")
        if place.access.has_secret:
            raise AskError(
                "--url: a login and the token cannot go in one request; ask `poise up` directly, not through a proxy with a login"
            )
        self._file = token_file
        self._environment = environment

    async def ask(self, method: str, path: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        """Its answer. Raises AskError, TokenError."""
        headers = {"Accept": "application/json"}
        if method != "GET":
            headers["Authorization"] = f"Bearer {token(self.url, self._file, self._environment)}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        request = Request(method, headers, b"" if body is None else json.dumps(body).encode())
        try:
            answer = await self._fetcher.exchange(f"{self.url}{path}", request, timeout=_TIMEOUT, limit=_MOST_BYTES)
        except FetchError as error:
            raise AskError(f"{self.url}: {rules_api.unanswered(error)}") from None
        try:
            document = json.loads(answer.body)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise AskError(f"{self.url}{path}: what answers is no `poise up` (HTTP status {answer.status}); give its address with --url")
        if answer.status >= 300:
            words = document.get("error") or f"HTTP status {answer.status} for {method} {path}; is it a `poise up` of this version?"
            raise AskError(f"{self.url}: {words}" + (f"; {in_commands(str(document['way_out']))}" if document.get("way_out") else ""))
        return document


def in_commands(way_out: str) -> str:
    """What the page's routes tell a program to do, as a person at a terminal does it."""
    for told, done in _COMMANDS:
        way_out = way_out.replace(told, done)
    return way_out


def token(url: str, file: Path | None, environment: Mapping[str, str]) -> str:
    """The token for the `poise up` at a URL; that of this machine's state folder goes to this machine alone. Raises TokenError."""
    if file is not None:
        return page_token.read(file, "write into it what `poise token` prints on the machine of that `poise up`")
    if given := environment.get(TOKEN_VARIABLE):
        return page_token.checked(given, f"${TOKEN_VARIABLE}", "set it to what `poise token` prints on the machine of that `poise up`")
    if not _on_this_machine(url):
        raise TokenError(
            f"{url} is another machine: give its token with --token-file FILE or ${TOKEN_VARIABLE}; `poise token` prints it there"
        )
    way_out = (
        f"start `poise up`, which makes one; one with --no-history keeps no file and writes its token to its log: give that with --token-file FILE or "
        f"${TOKEN_VARIABLE}"
    )
    return page_token.read(page_token.token_path(environment), way_out)


def _on_this_machine(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
