"""Numbers and addresses on the command line: what argparse makes of a word, or says of it. Knows nothing of what they are for.

Each is a `type` of argparse: it takes the word and raises ArgumentTypeError, which names the word, what it has to be, and never a password.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from pathlib import Path

from poise.exporter.setting_values import base_url

# Longer than anything runs, and within what timers take: a year.
MOST_SECONDS = 366 * 86400.0
# Clients of one process: each is a connection.
MOST_CLIENTS = 10_000
# No count that anybody can mean has more digits, and int() refuses 4,300.
_DIGITS = re.compile("[0-9]{1,12}")
# NumPy, with which `vllm bench serve` draws its prompts, takes seeds of 32 bits.
MOST_SEED = 2**32 - 1
# What is shown of a wrong word.
SHOWN = 40


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """The type of whole numbers in these bounds."""

    def parse(text: str) -> int:
        number = int(text) if _DIGITS.fullmatch(text) else None
        if number is None or number < least or (most is not None and number > most):
            wanted = f"is not {least} or more" if most is None else f"is no number from {least} to {most}"
            raise argparse.ArgumentTypeError(f"{_shown(text)} {wanted}")
        return number

    return parse


count = whole(0)
positive = whole(1)
clients = whole(1, MOST_CLIENTS)
#: A TCP port; 0 is any.
port = whole(0, 65535)
seed = whole(0, MOST_SEED)


def above_zero(text: str) -> float:
    """A number above 0, not infinite."""
    number = _number(text)
    if number is None or number <= 0:
        raise argparse.ArgumentTypeError(f"{_shown(text)} is no number above 0")
    return number


def share(text: str) -> float:
    """A number from 0 to below 1."""
    number = _number(text)
    if number is None or not 0 <= number < 1:
        raise argparse.ArgumentTypeError(f"{_shown(text)} is no number from 0 to below 1")
    return number


def duration(text: str) -> float:
    """Seconds, more than 0."""
    number = _number(text)
    if number is None or not 0 < number <= MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"{_shown(text)} is no number of seconds above 0 and up to {MOST_SECONDS:.0f} (a year)")
    return number


def pause(text: str) -> float:
    """Seconds, 0 or more."""
    number = _number(text)
    if number is None or not 0 <= number <= MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"{_shown(text)} is no number of seconds from 0 to {MOST_SECONDS:.0f} (a year)")
    return number


def not_empty(text: str) -> str:
    """A word with something in it: an empty one is mostly a variable of a script that was not set."""
    if not text.strip():
        raise argparse.ArgumentTypeError(f"{_shown(text)} is empty")
    return text


def path(text: str) -> Path:
    """A file or folder. An empty word would be the current folder."""
    return Path(not_empty(text))


def server_url(text: str) -> str:
    """http://HOST:PORT of a server that is asked; a path behind it would be left out, so there is none. TLS is not spoken."""
    try:
        url = base_url(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not re.fullmatch(r"http://[^/]+", url) or not text.isprintable():
        raise argparse.ArgumentTypeError(f"{_shown(text)} is not of the form http://HOST:PORT (https and paths are not supported)")
    return url


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _shown(text: str) -> str:
    """The word in quotes, cut short, with nothing in it that a terminal obeys."""
    return ascii(text) if len(text) <= SHOWN else f"{text[:SHOWN]!a}…"
