"""Message sizes as people write them: "1K..256M", "64K,16M". Pure."""

from __future__ import annotations

import re

from poise.exporter.interconnect_results import MOST_SIZES

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
#: Of a range: each is four times the one before, and the last is the end itself.
STEP = 4
#: Bytes of one float32, what is summed.
ELEMENT = 4
LARGEST = 16 << 30


def parse_size(text: str) -> int:
    """Bytes from "1K", "256M", "1G" (powers of 1024) or a number. Raises ValueError."""
    match = re.fullmatch(r"([0-9]{1,12})([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    size = int(match[1]) * _UNITS[match[2].upper()] if match else 0
    if not ELEMENT <= size <= LARGEST or size % ELEMENT:
        raise ValueError(f"{text.strip()!r} is no message size from {ELEMENT} bytes to {show_size(LARGEST)} in steps of {ELEMENT}")
    return size


def parse_sizes(text: str) -> tuple[int, ...]:
    """Sizes in bytes, ascending, from a range "1K..256M" or a list "64K,16M", or both mixed. Raises ValueError."""
    found: set[int] = set()
    for part in text.split(","):
        first, dots, last = part.partition("..")
        size, end = parse_size(first), parse_size(last if dots else first)
        if size > end:
            raise ValueError(f"{part.strip()!r} runs from large to small")
        while size < end:
            found.add(size)
            size *= STEP
        found.add(end)
    if len(found) > MOST_SIZES:
        raise ValueError(f"{len(found)} sizes are more than {MOST_SIZES}")
    return tuple(sorted(found))


def show_size(size: int) -> str:
    """ "256 MiB", "1 KiB", "1000 B"."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"
