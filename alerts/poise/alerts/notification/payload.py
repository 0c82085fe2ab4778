"""An alert as Alertmanager's API v2 takes it (`postableAlert` in its openapi.yaml). Values in, values out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote

from poise.alerts.evaluation.active import ALERT_NAME, State
from poise.alerts.evaluation.group_run import ToSend
from poise.history.promql.labels import Labels, get, labels

#: Bytes of one annotation; a longer one ends in a mark. Slack shows 4,000 characters, Feishu takes 20 kB of all of them together.
LONGEST_ANNOTATION = 16_384


@dataclass(frozen=True, slots=True)
class Payload:
    """One alert for one Alertmanager. Moments in milliseconds; `labels` are who it is."""

    labels: Labels
    annotations: Mapping[str, str]
    starts_at: int
    ends_at: int
    resolved: bool
    generator_url: str

    def as_json(self) -> dict[str, object]:
        """The object of the request."""
        return {
            "labels": dict(self.labels),
            "annotations": dict(self.annotations),
            "startsAt": rfc3339(self.starts_at),
            "endsAt": rfc3339(self.ends_at),
            "generatorURL": self.generator_url,
        }

    def encoded(self) -> bytes:
        """That object as it goes over the wire."""
        return json.dumps(self.as_json()).encode()


def payload(one: ToSend, external_labels: Mapping[str, str], page: str) -> Payload:
    """What is sent of an alert; `page` is the address of the dashboard, for the link from a notification to the rule."""
    alert = one.alert
    own = sent_labels(alert.labels, external_labels)
    fired = alert.active_at if alert.fired_at is None else alert.fired_at
    # Alertmanager refuses annotations without a text.
    words = {name: _short(text) for name, text in alert.annotations.items() if text}
    return Payload(own, words, fired, one.ends_at, alert.state is State.INACTIVE, generator_url(page, get(alert.labels, ALERT_NAME)))


def _short(text: str) -> str:
    """The text, cut with a mark where it is longer than anybody reads and proxies let through."""
    if len(text) <= LONGEST_ANNOTATION // 4:  # no character has more than four bytes
        return text
    whole = text.encode("utf-8", "surrogatepass")
    if len(whole) <= LONGEST_ANNOTATION:
        return text
    return f"{whole[:LONGEST_ANNOTATION].decode('utf-8', 'ignore')}… (cut here by Poise: {len(whole):,} bytes, at most {LONGEST_ANNOTATION:,} are sent)"


def sent_labels(own: Labels, external_labels: Mapping[str, str]) -> Labels:
    """The labels under which Alertmanager knows an alert: external ones go on where it has none of the name (Prometheus `notifier/alert.go`)."""
    return labels({**external_labels, **dict(own)})


def generator_url(page: str, alert: str) -> str:
    """The address of an alert's page."""
    return f"{page.rstrip('/')}/alerts/{quote(alert, safe='')}" if page else ""


def rfc3339(milliseconds: int) -> str:
    """A moment as APIs write it, in UTC to the millisecond."""
    whole, part = divmod(milliseconds, 1000)
    return f"{datetime.fromtimestamp(whole, UTC):%Y-%m-%dT%H:%M:%S}.{part:03d}Z"
