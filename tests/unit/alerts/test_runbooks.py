"""Runbooks: one page per alert, with the same four sections."""

from __future__ import annotations

import pytest
from poise.alerts import runbooks
from poise.alerts.runbooks import SECTIONS, RunbookError, parse_runbook

PAGE = "# A\n\n## Meaning\n\nm\n\n## Evidence\n\ne\n\n## First action\n\nf\n\n## False positives\n\nn\n"


@pytest.mark.parametrize("alert", runbooks.names())
def test_every_shipped_page_can_be_read(alert: str) -> None:
    assert tuple(runbooks.read(alert).sections) == SECTIONS


def test_a_page_is_taken_apart() -> None:
    assert dict(parse_runbook(PAGE, "A").sections) == {"Meaning": "m", "Evidence": "e", "First action": "f", "False positives": "n"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("# A", "# B", 'must start with "# A"'),
        ("## Evidence", "## Proof", "must have the sections Meaning, Evidence, First action, False positives"),
        ("\nf\n", "\n", "says nothing under First action"),
    ],
)
def test_what_a_page_lacks_is_named(old: str, new: str, message: str) -> None:
    with pytest.raises(RunbookError, match=message):
        parse_runbook(PAGE.replace(old, new, 1), "A")


@pytest.mark.parametrize("alert", ["Nothing", "../rules/gpu", ""])
def test_an_alert_without_page_is_named_and_nothing_else_is_opened(alert: str) -> None:
    with pytest.raises(KeyError, match="no runbook for"):
        runbooks.read(alert)
