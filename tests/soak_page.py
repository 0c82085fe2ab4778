"""docs/soak.md: one section for each soak test, each written by its own test and left alone by the others."""

from __future__ import annotations

import re
from pathlib import Path

TITLE = "# Soak"


def with_section(page: str, heading: str, lines: list[str]) -> str:
    """The page with this section in place of the one of that heading, else behind all others."""
    _, *sections = re.split(r"^## ", page, flags=re.MULTILINE)
    found = {section.partition("\n")[0]: section.partition("\n")[2].strip("\n") for section in sections}
    found[heading] = "\n".join(lines).strip("\n")
    return "\n\n".join([TITLE, *(f"## {name}\n\n{text}" for name, text in found.items())]) + "\n"


def write_section(path: Path, heading: str, lines: list[str]) -> None:
    """Writes the section into the page."""
    page = path.read_text(encoding="utf-8") if path.exists() else ""
    path.write_text(with_section(page, heading, lines), encoding="utf-8")
