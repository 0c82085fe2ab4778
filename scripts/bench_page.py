"""docs/benchmarks.md as several scripts write it: each has a section of its own between marks and leaves the others' as they are.

Owns the marks. Knows no figure.
"""

from __future__ import annotations

import re
from pathlib import Path

_ANY_BEGIN = re.compile(r"^<!-- bench_\w+\.py begins -->$", re.MULTILINE)


def with_section(text: str, script: Path, section: str) -> str:
    """`text` with the section of `script` in place of the one before, or at its end."""
    begins, ends = f"<!-- {script.name} begins -->\n", f"<!-- {script.name} ends -->\n"
    before, found, rest = text.partition(begins)
    _, ended, after = rest.partition(ends)
    if found and not ended:
        raise ValueError(f"{begins.strip()} has no {ends.strip()} behind it: put it back by hand, or take both away")
    body = section.strip("\n")
    return f"{before.rstrip()}\n\n{begins}\n{body}\n{ends}{after}"


def put(page: Path, script: Path, section: str) -> None:
    """Writes the section of `script` into the page. Raises OSError, and ValueError when the page has lost a mark."""
    page.write_text(with_section(page.read_text(encoding="utf-8"), script, section), encoding="utf-8")


def sections(page: Path) -> str:
    """All sections of an older page, to stand behind a new beginning; "" when there are none, or no page."""
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    first = _ANY_BEGIN.search(text)
    return f"\n{text[first.start() :]}" if first else ""
