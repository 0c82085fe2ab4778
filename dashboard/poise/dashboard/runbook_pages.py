"""The runbooks as HTML: what an alert's `runbook_url` leads to when the reader has this page and no network. Knows no request."""

from __future__ import annotations

from markdown_it import MarkdownIt
from markupsafe import Markup
from poise.alerts import runbooks


def body(alert: str) -> Markup | None:
    """A runbook as HTML, None when no alert has this name. The text is ours (package data); HTML in it would be escaped all the same."""
    try:
        text = runbooks.read(alert).text
    except KeyError:
        return None
    return Markup(MarkdownIt("commonmark", {"html": False}).enable("table").render(text))  # noqa: S704 - the renderer escapes


def listing(title: str, root_path: str) -> Markup:
    """Links to all of them, below the prefix `root_path`."""
    items = Markup().join(Markup('<li><a href="{}/runbooks/{}">{}</a></li>').format(root_path, name, name) for name in runbooks.names())
    return Markup("<h1>{}</h1><ul>{}</ul>").format(title, items)
