"""Runbooks: one page per alert, in Markdown, with four sections that every page has.

The pages are package data, so that the dashboard can show them where no network is. This file reads; it knows no rule and no page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from poise.alerts import shipped

#: What every runbook answers, in this order.
SECTIONS = ("Meaning", "Evidence", "First action", "False positives")


class RunbookError(ValueError):
    """A runbook that lacks a section or is called differently inside than outside."""


@dataclass(frozen=True, slots=True)
class Runbook:
    """One page: the alert's name, the text of each section in Markdown, and the whole page."""

    alert: str
    sections: Mapping[str, str]
    text: str


def names() -> tuple[str, ...]:
    """The alerts that have a runbook."""
    return tuple(sorted(path.stem for path in shipped.RUNBOOKS.glob("*.md")))


def read(alert: str) -> Runbook:
    """The runbook of an alert. Raises KeyError when there is none of this name and RunbookError when the page is not as it should be."""
    if alert not in names():
        raise KeyError(f"no runbook for {alert}; there are {', '.join(names())}")
    return parse_runbook((shipped.RUNBOOKS / f"{alert}.md").read_text(encoding="utf-8"), alert)


def parse_runbook(text: str, alert: str) -> Runbook:
    """Take a page apart. Raises RunbookError that names what is missing."""
    title, *parts = text.split("\n## ")
    if title.strip() != f"# {alert}":
        raise RunbookError(f'the runbook of {alert} must start with "# {alert}" and go on with "## {SECTIONS[0]}"')
    sections = {head.strip(): body.strip() for head, _, body in (part.partition("\n") for part in parts)}
    if tuple(sections)[: len(SECTIONS)] != SECTIONS:
        raise RunbookError(f"the runbook of {alert} must have the sections {', '.join(SECTIONS)}, in this order")
    empty = [name for name, body in sections.items() if not body]
    if empty:
        raise RunbookError(f"the runbook of {alert} says nothing under {', '.join(empty)}")
    return Runbook(alert, sections, text)


def path_of(alert: str) -> Path:
    """Where the page of an alert lies, whether or not it exists."""
    return shipped.RUNBOOKS / f"{alert}.md"
