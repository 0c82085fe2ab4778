"""Whether what the targets say is known, so that somebody may judge by it. It is not right after a start, when a target was added, after the machine
slept or its clock was set, until every target has been asked once more: what was to be seen before is over then, and seems to be gone.

Owns that question. Knows no rule and asks nobody itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from poise.history.scraping import FIRST_APART, TargetStatus

log = logging.getLogger(__name__)

#: A target is known while its last scrape is not older than two of its intervals, its timeout and so many seconds: a busy machine's scrapes come late.
LATE = 30.0
#: Seconds that a scrape may take from its time to the disk, beside its interval and its timeout, when it is waited for.
SLACK = 5.0


class Settling:
    """`targets` gives how each target does, `clock` monotonic seconds. For one thread."""

    def __init__(self, targets: Callable[[], Sequence[TargetStatus]], clock: Callable[[], float]) -> None:
        self._targets = targets
        self._clock = clock
        self._waits_since: float | None = None
        self._told = False

    def __call__(self, now: float) -> float | None:
        """The moment (Unix seconds) from which on everything is known, at `now`; None while a target has still to be asked.

        That has an end: a target that nobody gets to ask within its interval and its timeout holds up no other for longer. `now` is given then.
        """
        found = self._targets()
        missing = [status for status in found if not _is_known(status, now)]
        if not missing:
            self._waits_since, self._told = None, False
            return max((status.known_at for status in found if status.known_at is not None), default=now)
        if self._waits_since is None:
            self._waits_since = self._clock()
        longest = max(status.grace + status.target.interval + status.target.timeout for status in missing)
        if self._clock() - self._waits_since < longest + SLACK + FIRST_APART * len(missing):
            return None
        if not self._told:
            self._told = True
            log.warning(
                "%d targets could not be asked in time, %s first: rules are evaluated without them", len(missing), missing[0].target.name
            )
        return now


def _is_known(status: TargetStatus, now: float) -> bool:
    """Also of no moment that lies ahead: the clock was set back."""
    target = status.target
    return status.known_at is not None and abs(now - status.known_at) <= 2 * target.interval + target.timeout + LATE
