"""Numbers of things in words: "1 alert", "2 alerts"."""

from __future__ import annotations


def counted(number: int, singular: str) -> str:
    """The number and the word, with an s unless there is one."""
    return f"{number} {singular}" if number == 1 else f"{number} {singular}s"
