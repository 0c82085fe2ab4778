"""Every alert's runbook link leads to a page."""

from __future__ import annotations

from poise.alerts import runbooks
from poise.dashboard import runbook_pages


def test_every_runbook_is_a_page_with_its_sections() -> None:
    for name in runbooks.names():
        html = runbook_pages.body(name)
        assert html is not None
        assert f"<h1>{name}</h1>" in html
        assert all(f"<h2>{section}</h2>" in html for section in runbooks.SECTIONS)


def test_unknown_alert_has_no_page() -> None:
    assert runbook_pages.body("../../etc/passwd") is None


def test_list_leads_to_every_page_below_the_prefix() -> None:
    html = runbook_pages.listing("Runbooks", "/poise")
    assert all(f'href="/poise/runbooks/{name}"' in html for name in runbooks.names())
