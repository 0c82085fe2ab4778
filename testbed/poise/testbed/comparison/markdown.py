"""Markdown out of text that others wrote: names of shapes and models, versions, processors. Owns what has to be escaped. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from poise.exporter.logs import visible

# What begins a construct of CommonMark or of GitHub's tables, strikethrough and mathematics anywhere in a line. An underscore within a word
# begins none.
_SPECIAL = re.compile(r"[\\`*\[\]<>|~&$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def plain_text(text: str) -> str:
    """The text on one line, that shows as it stands, in a paragraph or a cell of a table but not at a line's beginning."""
    return _SPECIAL.sub(lambda found: f"\\{found[0]}", visible(text))


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of cells that are texts, none of them Markdown."""
    lines = [[plain_text(cell) for cell in cells] for cells in (heads, *rows)]
    lines.insert(1, ["-"] * len(heads))
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def code(text: str) -> str:
    """One line of code."""
    return f"    {visible(text)}\n"


def picture(alternative: str, path: str) -> str:
    """An image at a path of our own."""
    return f"![{plain_text(alternative)}]({path})\n"
