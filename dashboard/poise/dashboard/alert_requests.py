"""What a request about a silence or an acknowledgement asks for: a JSON object in, values out, and every fault named. Asks nobody.

A silence:           {"labels": {"alertname": "EngineDown", "engine": "qwen"}, "comment": "…", "duration": "2h", "by": "…"}
  or of matchers:    {"matchers": [{"name": "engine", "value": "qwen|llama", "is_regex": true, "is_equal": true}], "comment": "…"}
An acknowledgement:  {"labels": {every label of the alert}, "comment": "…", "duration": "2h", "by": "…"}
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from poise.alerts.notification.alertmanager import Matcher
from poise.dashboard.changes import Refusal, shown
from poise.history.durations import format_duration, parse_duration
from poise.history.promql.labels import Labels, labels

#: Seconds that a silence and an acknowledgement hold where nothing was said; long enough to work on it, too short to be forgotten.
DEFAULT_SECONDS = 2 * 3_600.0
SHORTEST_SECONDS, LONGEST_SECONDS = 60.0, 30 * 86_400.0
#: Characters; of a label's value what Prometheus' own limits are set to where they are set at all.
LONGEST_COMMENT, LONGEST_NAME, LONGEST_VALUE = 1_000, 100, 2_000
MOST_LABELS = 50
#: Who did it where a request does not say.
NOBODY = "somebody with the token"
_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_COMMON = frozenset({"comment", "duration", "by"})


@dataclass(frozen=True, slots=True)
class Wish:
    """What both kinds have; `seconds` is how long."""

    comment: str
    by: str
    seconds: float


@dataclass(frozen=True, slots=True)
class SilenceWish:
    """A silence of the alerts that fulfil all `matchers`. `of_ours`: it was asked for by labels, so that our external labels belong to it."""

    matchers: tuple[Matcher, ...]
    of_ours: bool
    wish: Wish


@dataclass(frozen=True, slots=True)
class AcknowledgementWish:
    """An acknowledgement of the alert with exactly these labels."""

    labels: Labels
    wish: Wish


def silence(document: Mapping[str, object]) -> SilenceWish:
    """Raises Refusal."""
    _check_fields(document, _COMMON | {"labels", "matchers"})
    if ("labels" in document) == ("matchers" in document):
        raise Refusal(
            400, "either labels or matchers say which alerts are meant", 'give "labels": {"alertname": …} or "matchers": […]', "labels"
        )
    if "labels" in document:
        return SilenceWish(tuple(Matcher(name, value) for name, value in _labels(document["labels"])), True, _wish(document))
    found = document["matchers"]
    if not isinstance(found, list) or not 0 < len(found) <= MOST_LABELS:
        raise Refusal(400, f"matchers is no list of 1 to {MOST_LABELS} matchers", 'give [{"name": …, "value": …}]', "matchers", found)
    return SilenceWish(tuple(_matcher(each, f"matchers[{number}]") for number, each in enumerate(found)), False, _wish(document))


def acknowledgement(document: Mapping[str, object]) -> AcknowledgementWish:
    """Raises Refusal."""
    _check_fields(document, _COMMON | {"labels"})
    return AcknowledgementWish(_labels(document.get("labels")), _wish(document))


def _wish(document: Mapping[str, object]) -> Wish:
    comment = _text(document.get("comment", ""), "comment", LONGEST_COMMENT, "say why in a few words").strip()
    if not comment:
        raise Refusal(400, "a comment is needed", "say why in a few words: others will read it", "comment", document.get("comment"))
    by = _text(document.get("by", ""), "by", LONGEST_NAME, "give a name").strip()
    return Wish(comment, by or NOBODY, _seconds(document.get("duration")))


def _seconds(value: object) -> float:
    if value is None:
        return DEFAULT_SECONDS
    between = f"give {format_duration(SHORTEST_SECONDS)} to {format_duration(LONGEST_SECONDS)}, as in 2h or 1d12h"
    try:
        seconds = parse_duration(value) if isinstance(value, str) and len(value) <= LONGEST_NAME else None
    except ValueError:
        seconds = None
    if seconds is None:
        raise Refusal(400, f"duration {_quoted(value)} is no duration", between, "duration", value)
    if not SHORTEST_SECONDS <= seconds <= LONGEST_SECONDS:
        raise Refusal(
            400, f"duration {_quoted(value)} is too {'short' if seconds < SHORTEST_SECONDS else 'long'}", between, "duration", value
        )
    return seconds


def _labels(value: object) -> Labels:
    way_out = 'give {"alertname": "EngineDown", …}; GET /api/poise/v1/alerts lists the alerts with their labels'
    if not isinstance(value, dict) or not 0 < len(value) <= MOST_LABELS:
        raise Refusal(400, f"labels is no object of 1 to {MOST_LABELS} labels", way_out, "labels", value)
    for name, text in value.items():
        _label_name(name, "labels")
        if not _text(text, f"labels.{name}", LONGEST_VALUE, "give the label's value"):
            raise Refusal(400, f"labels.{name} is empty, which is no label", "leave it out, or give its value", f"labels.{name}", text)
    return labels(value)


def _matcher(value: object, where: str) -> Matcher:
    if not isinstance(value, dict):
        raise Refusal(400, f"{where} is no object", 'give {"name": …, "value": …}', where, value)
    _check_fields(value, {"name", "value", "is_regex", "is_equal"}, f"{where}.")
    for key in ("is_regex", "is_equal"):
        if not isinstance(value.get(key, True), bool):
            raise Refusal(400, f"{where}.{key} is neither true nor false", "give true or false", f"{where}.{key}", value[key])
    name = _label_name(value.get("name"), f"{where}.name")
    text = _text(value.get("value"), f"{where}.value", LONGEST_VALUE, "give the label's value or a regular expression")
    return Matcher(name, text, bool(value.get("is_regex", False)), bool(value.get("is_equal", True)))


def _label_name(value: object, where: str) -> str:
    if not isinstance(value, str) or len(value) > LONGEST_NAME or not _LABEL_NAME.fullmatch(value):
        raise Refusal(
            400, f"{where}: {_quoted(value)} is no name of a label", "write letters, digits and _ only, as in engine", where, value
        )
    return value


def _text(value: object, where: str, longest: int, way_out: str) -> str:
    """Text that a terminal and a file can take: no control characters but line feeds and tabs, no half characters."""
    if not isinstance(value, str):
        raise Refusal(400, f"{where} is no text", way_out, where, value)
    if len(value) > longest:
        raise Refusal(400, f"{where} has {len(value)} characters, more than {longest}", "shorten it", where, value)
    if any(
        0xD800 <= ord(character) <= 0xDFFF or (ord(character) < 32 and character not in "\n\t") or 127 <= ord(character) < 160
        for character in value
    ):
        raise Refusal(400, f"{where} holds control characters or half characters", "write it as plain text", where, value)
    return value


def _check_fields(document: Mapping[str, object], known: Collection[str], prefix: str = "") -> None:
    for name in document:
        if name not in known:
            raise Refusal(400, f"{prefix}{_quoted(name)} is unknown", f"known are {', '.join(sorted(known))}", f"{prefix}{_quoted(name)}")


def _quoted(value: object) -> str:
    return f'"{shown(value)}"'
