"""One Alertmanager over its API v2: alerts in, silences in and out, what it makes of an alert. Written after its openapi.yaml (0.25 and newer).

Knows no queue and no rule. Addresses may have a path prefix; every call has a deadline and a limit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

from poise.alerts.notification.payload import Payload, rfc3339
from poise.exporter.access import PLAIN, Access
from poise.exporter.engines.credentials import Credentials
from poise.history.fetch import Answer, Fetcher, FetchError, Request

#: Seconds that a call may take (Prometheus' own default).
TIMEOUT = 10.0
#: Bytes of an answer; ten thousand alerts with their annotations are about as much.
_MOST_BYTES = 32_000_000
#: It, or a proxy before it, understood what it got and will never take it: wrong (400, 422) or too large (413, nginx above 1 MB); other statuses (a login that is wrong, a proxy, an overload) may pass.
_REFUSALS = frozenset({400, 413, 422})
#: Characters of an error message that are passed on.
_LONGEST_MESSAGE = 300


class AlertmanagerError(Exception):
    """A call that did not succeed; the message names the Alertmanager and says why. `refused`: it understood and will not take
    it, so that asking again is of no use."""

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


@dataclass(frozen=True, slots=True)
class Matcher:
    """A condition of a silence on one label."""

    name: str
    value: str
    is_regex: bool = False
    is_equal: bool = True


@dataclass(frozen=True, slots=True)
class Silence:
    """A silence; moments in Unix seconds. `identifier` is "" for one that is to be made, `state` active, pending or expired."""

    matchers: tuple[Matcher, ...]
    starts_at: float
    ends_at: float
    created_by: str
    comment: str
    identifier: str = ""
    state: str = ""


@dataclass(frozen=True, slots=True)
class AlertStatus:
    """What an Alertmanager makes of an alert: `state` active, suppressed or unprocessed, and by which silences and alerts it is suppressed."""

    labels: Mapping[str, str]
    state: str
    silenced_by: tuple[str, ...]
    inhibited_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where an Alertmanager is and how it is asked. `timeout` in seconds."""

    url: str
    timeout: float = TIMEOUT
    access: Access = PLAIN


class Alertmanager:
    """Calls one Alertmanager. Not for several threads."""

    def __init__(self, place: Place, environment: Mapping[str, str] | None = None) -> None:
        self.place = place
        self._fetcher = Fetcher(Credentials(place.access, environment))

    async def post_alerts(self, alerts: Sequence[Payload]) -> None:
        """Gives alerts to it. Raises AlertmanagerError."""
        await self._call("POST", "/alerts", b"[" + b",".join(alert.encoded() for alert in alerts) + b"]")

    async def alerts(self) -> list[AlertStatus]:
        """Every alert that it knows. Raises AlertmanagerError."""
        found = []
        for each in _list(await self._call("GET", "/alerts")):
            status = _object(each.get("status"))
            found.append(
                AlertStatus(
                    _texts(each.get("labels")), str(status.get("state", "")), _names(status, "silencedBy"), _names(status, "inhibitedBy")
                )
            )
        return found

    async def silences(self, *, expired: bool = False) -> list[Silence]:
        """Its silences, those that are over only when asked for. Raises AlertmanagerError."""
        found = [_silence(each) for each in _list(await self._call("GET", "/silences"))]
        return [silence for silence in found if expired or silence.state != "expired"]

    async def silence(self, wanted: Silence) -> str:
        """Makes a silence, or changes the one of its identifier; the identifier. Raises AlertmanagerError."""
        body: dict[str, Any] = {
            "matchers": [{"name": m.name, "value": m.value, "isRegex": m.is_regex, "isEqual": m.is_equal} for m in wanted.matchers],
            "startsAt": rfc3339(round(wanted.starts_at * 1000)),
            "endsAt": rfc3339(round(wanted.ends_at * 1000)),
            "createdBy": wanted.created_by,
            "comment": wanted.comment,
        }
        if wanted.identifier:
            body["id"] = wanted.identifier
        answer = _object(await self._call("POST", "/silences", body))
        return str(answer.get("silenceID", ""))

    async def peers(self) -> frozenset[str]:
        """The names of the members of its cluster, itself among them; none where it has no cluster. Raises AlertmanagerError."""
        cluster = _object(_object(await self._call("GET", "/status")).get("cluster"))
        return frozenset(str(peer["name"]) for peer in _list(cluster.get("peers")) if peer.get("name"))

    async def expire(self, identifier: str) -> None:
        """Ends a silence now. Raises AlertmanagerError."""
        await self._call("DELETE", f"/silence/{quote(identifier, safe='')}")

    async def _call(self, method: str, path: str, body: object = None, query: Mapping[str, str] | None = None) -> object:
        base = self.place.url.rstrip("/")
        url = f"{base}/api/v2{path}" + (f"?{urlencode(query)}" if query else "")
        headers = {"Accept": "application/json", **({"Content-Type": "application/json"} if body is not None else {})}
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        try:
            answer = await self._fetcher.exchange(url, Request(method, headers, data), timeout=self.place.timeout, limit=_MOST_BYTES)
        except FetchError as error:
            raise AlertmanagerError(f"Alertmanager {base}: {error}") from None
        if answer.status != 200:
            raise AlertmanagerError(
                f"Alertmanager {base} answered {method} {path} with HTTP status {answer.status}{_said(answer)}",
                refused=answer.status in _REFUSALS,
            )
        if not answer.body:
            return None
        try:
            return json.loads(answer.body)
        except (ValueError, RecursionError):
            raise AlertmanagerError(f"Alertmanager {base} answered {method} {path} with something that is no JSON: is it one?") from None


def _said(answer: Answer) -> str:
    text = answer.body[: _LONGEST_MESSAGE * 4].decode("utf-8", "replace").strip()
    try:
        value = json.loads(text)
        words = str(value.get("message", "") if isinstance(value, dict) else value)
    except (ValueError, RecursionError):
        words = text
    words = " ".join(words.split())[:_LONGEST_MESSAGE]
    return f": {words}" if words else ""


def _silence(value: Mapping[str, Any]) -> Silence:
    return Silence(
        matchers=tuple(
            Matcher(str(each.get("name", "")), str(each.get("value", "")), bool(each.get("isRegex")), bool(each.get("isEqual", True)))
            for each in _list(value.get("matchers"))
        ),
        starts_at=_moment(value.get("startsAt")),
        ends_at=_moment(value.get("endsAt")),
        created_by=str(value.get("createdBy", "")),
        comment=str(value.get("comment", "")),
        identifier=str(value.get("id", "")),
        state=str(_object(value.get("status")).get("state", "")),
    )


def _moment(value: object) -> float:
    try:
        return datetime.fromisoformat(str(value)).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _texts(value: object) -> dict[str, str]:
    return {str(key): str(text) for key, text in _object(value).items()}


def _names(value: Mapping[str, Any], key: str) -> tuple[str, ...]:
    names = value.get(key)
    return tuple(map(str, names)) if isinstance(names, list) else ()
