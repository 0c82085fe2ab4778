"""Which requests may change something, and what is wrong with the others: origin, token, kind and size of what they carry.

A change needs `Authorization: Bearer TOKEN`. No browser sends that by itself, as it does cookies, so that another site cannot make one change anything;
what browsers say of where a request comes from is looked at all the same, before the token. Knows no alert.
"""

from __future__ import annotations

import json
from urllib.parse import urlsplit

from fastapi import Request
from fastapi.responses import JSONResponse
from poise.dashboard.json_answers import answer
from poise.history.page_token import PageToken, TokenError
from starlette.datastructures import Headers

#: Bytes of a request that changes something; a silence with thirty matchers has four thousand.
MOST_BYTES = 64_000
#: Characters of a wrong value that are shown again.
_LONGEST_VALUE = 100
_DEFAULT_PORTS = {"http": 80, "https": 443}


class Refusal(Exception):
    """A request that is not carried out: what is wrong (of `field`, where it is one of the body), with which value, and the way out."""

    def __init__(self, status: int, error: str, way_out: str, field: str = "", value: object = None) -> None:
        super().__init__(error)
        self.status = status
        self.error = error
        self.way_out = way_out
        self.field = field
        self.value = value

    def answer(self) -> JSONResponse:
        """As JSON."""
        document: dict[str, object] = {"error": self.error, "way_out": self.way_out}
        if self.field:
            document |= {"field": self.field, "value": shown(self.value)}
        return answer(document, self.status, {"WWW-Authenticate": 'Bearer realm="poise"'} if self.status == 401 else None)


def shown(value: object) -> str:
    """A value in a message: short, and of characters that every terminal and encoding can show."""
    text = value if isinstance(value, str) else json.dumps(value)[: _LONGEST_VALUE + 1]
    if not text.isprintable():
        text = ascii(text[: _LONGEST_VALUE + 1])[1:-1]
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"


class Gate:
    """Lets in who may change something."""

    def __init__(self, token: PageToken) -> None:
        self._token = token

    def admit(self, request: Request) -> None:
        """Raises Refusal: 403 for a request that another site made, 401 without the token, 503 when there is no usable one."""
        if not is_own(request.headers):
            raise Refusal(403, "this request comes from another site's page", "open Poise's own page, or use `poise alerts silence`")
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        missing = scheme.lower() != "bearer" or not given.strip()
        try:
            if not missing and self._token.matches(given.strip()):
                return
        except TokenError as error:
            raise Refusal(503, f"nothing can be changed: {error}", "mend the token file on the machine of `poise up`") from None
        wrong = "a change needs a token and this request has none" if missing else "this is not the token"
        raise Refusal(401, wrong, f"send `Authorization: Bearer TOKEN` with what {self._token.shown_by}")

    async def document(self, request: Request) -> dict[str, object]:
        """The JSON object that an admitted request carries. Raises Refusal."""
        self.admit(request)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Refusal(415, f"Content-Type is {shown(kind)!r}", "send JSON with Content-Type: application/json", "Content-Type", kind)
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > MOST_BYTES:
                raise Refusal(413, f"the request has more than {MOST_BYTES} bytes", "send a shorter comment or fewer matchers")
        try:
            found = json.loads(bytes(body))
        except (ValueError, RecursionError):
            raise Refusal(400, "the request is no JSON", "send one JSON object") from None
        if not isinstance(found, dict):
            raise Refusal(400, "the request is JSON but no object", "send one JSON object")
        return found


def is_own(headers: Headers) -> bool:
    """Whether a request comes from our own page or from no page at all, by what browsers say: Sec-Fetch-Site where they send it, else Origin."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site.strip().lower() in ("same-origin", "none")
    origin = headers.get("origin")
    if origin is None:
        return True
    try:
        parts = urlsplit(origin.strip().lower())
        ours = urlsplit(f"{parts.scheme}://{headers.get('host', '').strip().lower()}")
        default = _DEFAULT_PORTS[parts.scheme]
        return bool(parts.hostname) and (parts.hostname, parts.port or default) == (ours.hostname, ours.port or default)
    except (ValueError, KeyError):
        return False
