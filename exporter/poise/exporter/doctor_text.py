"""The checklist for a terminal: the document of `checks/document.py` as wrapped, aligned, optionally coloured lines. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

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
    for result in sorted(document["checks"], key=lambda result: _ORDER.get(result["status"], 1)):
        yield from _result(result, width, colour)
    counts = {status: sum(result["status"] == status for result in document["checks"]) for status in _ORDER}
    yield ""
    yield f"{counts['fail']} failed, {counts['unknown']} unknown, {counts['pass']} passed"


def _result(result: Mapping[str, Any], width: int, colour: bool) -> Iterator[str]:
    status = result["status"]
    about = f" · {result['subject']}" if result["engine"] or result["uuid"] else ""
    yield from _labelled(_WORDS.get(status, status), _COLOURS.get(status, ""), f"{result['title']}{about}", width, colour)
    yield from _labelled("", "", result["sentence"], width, colour)
    for label, text in (("cause", result["cause"]), ("fix", result["fix"])):
        if text:
            yield from _labelled("", "", f"{label:<6} {text}", width, colour, hang=7)
    if status != "pass" and result["evidence"]:
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
