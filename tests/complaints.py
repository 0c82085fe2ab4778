"""What an action complains of: for tests in which every input is either taken or refused with a message."""

from __future__ import annotations

from collections.abc import Callable


def complaint(action: Callable[[], object], kind: type[Exception]) -> str:
    """What the action complains of, or an empty string when it goes well; any other exception is a failure of the test."""
    try:
        action()
    except kind as error:
        return str(error) or "an empty message"
    return ""
