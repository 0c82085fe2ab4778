"""The checklist for a terminal: the document of `checks/document.py` as wrapped, aligned, optionally coloured lines. Pure.

Grouped by what a line is about: the node, its cards, each engine, each deployment; in a group what fails comes first.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

#: Lines about cards, whichever engine they name.
_OF_CARDS = frozenset({"cards", "card_health", "card_slowdown", "idle_unowned_card", "nvlink_links", "nvlink_errors", "fabric"})

#: Fail first: what a person came for.
_ORDER = {"fail": 0, "unknown": 1, "pass": 2}
_WORDS = {"fail": "FAIL", "unknown": "UNKNOWN", "pass": "PASS"}
_COLOURS = {"fail": "31;1", "unknown": "33", "pass": "32", "problem": "31;1", "watch": "33;1", "ok": "32;1"}
_INDENT = 9
_NARROWEST = 40


def exit_code(document: Mapping[str, Any]) -> int:
    """0 all pass, 1 something fails, 2 nothing fails and something could not be looked at."""
    statuses = {result["status"] for result in document["checks"]}
    if "fail" in statuses:
        return 1
    return 0 if statuses == {"pass"} else 2


def render(document: Mapping[str, Any], *, source: str, width: int, colour: bool) -> str:
    """The whole report. `source` says where the data came from, `width` is the terminal's, at least 40 columns are used."""
    lines = list(_render(document, source, max(width, _NARROWEST), colour))
    return "\n".join(lines) + "\n"


def _render(document: Mapping[str, Any], source: str, width: int, colour: bool) -> Iterator[str]:
    when = datetime.fromtimestamp(document["time"]).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    yield from _wrap(f"Poise doctor · {document['node']} · {when} · {source}", "", width)
    if document["simulated"]:
        yield _paint("The cards are simulated.", "33;1", colour)
    verdict = document["verdict"]
    yield ""
    word = verdict["state"].capitalize() if verdict["state"] != "ok" else "OK"
    for position, text in enumerate([line["line"] for line in verdict["lines"]] or [verdict["summary"]]):
        label = word if position == 0 else ""
        yield from _labelled(label, _COLOURS.get(verdict["state"], ""), text, width, colour)
    yield ""
    for heading, results in _groups(document):
        yield from (_paint(text, "1", colour) for text in _wrap(heading, "", width))
        for result in sorted(results, key=lambda result: _ORDER.get(result["status"], 1)):
            yield from _result(result, heading, width, colour)
        yield ""
    counts = {status: sum(result["status"] == status for result in document["checks"]) for status in _ORDER}
    yield f"{counts['fail']} failed, {counts['unknown']} unknown, {counts['pass']} passed"


def _groups(document: Mapping[str, Any]) -> list[tuple[str, list[Mapping[str, Any]]]]:
    """Heading and results of each group, in the order in which they are shown."""
    groups: dict[tuple[int, str], list[Mapping[str, Any]]] = {}
    for result in document["checks"]:
        if result.get("deployment"):
            key = (3, f"Deployment {result['deployment']}")
        elif result["check"] in _OF_CARDS or (result["uuid"] and not result["engine"]):
            key = (1, "Cards")
        elif result["engine"]:
            key = (2, f"Engine {result['subject']}")
        else:
            key = (0, f"Node {document['node']}")
        groups.setdefault(key, []).append(result)
    return [(heading, groups[(place, heading)]) for place, heading in sorted(groups)]


def _result(result: Mapping[str, Any], heading: str, width: int, colour: bool) -> Iterator[str]:
    status, title = result["status"], result["title"]
    about = result["subject"]
    if (result["engine"] or result["uuid"]) and not heading.endswith(about) and not result.get("deployment"):
        title = f"{title} · {about}"
    label, code = _WORDS.get(status, status), _COLOURS.get(status, "")
    if status == "pass":
        yield from _labelled(label, code, f"{title}: {result['sentence']}", width, colour, hang=2)
        return
    yield from _labelled(label, code, title, width, colour)
    yield from _labelled("", "", result["sentence"], width, colour)
    for label, text in (("cause", result["cause"]), ("fix", result["fix"])):
        if text:
            yield from _labelled("", "", f"{label:<6} {text}", width, colour, hang=7)
    if result["evidence"]:
        seen = "; ".join(f"{name}: {value}" for name, value in result["evidence"].items())
        yield from _labelled("", "", f"{'seen':<6} {seen}", width, colour, hang=7)


def _labelled(label: str, code: str, text: str, width: int, colour: bool, hang: int = 0) -> Iterator[str]:
    first, *rest = _wrap(text, " " * _INDENT, width, hang) or [""]
    yield _paint(label, code, colour) + " " * (_INDENT - len(label)) + first[_INDENT:]
    yield from rest


def _wrap(text: str, indent: str, width: int, hang: int = 0) -> list[str]:
    printable = "".join(character if character.isprintable() else "?" for character in text)
    return textwrap.wrap(
        printable, width, initial_indent=indent, subsequent_indent=indent + " " * hang, break_long_words=False, break_on_hyphens=False
    )


def _paint(text: str, code: str, colour: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if colour and code and text else text
