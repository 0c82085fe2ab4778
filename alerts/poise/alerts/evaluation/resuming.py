"""What may be evaluated again after nothing was: after a start, and after a time in which the machine slept, its clock was set or targets had to be
asked first. Owns which slot of a group is its first then, and what counts as an outage. Milliseconds; no clock, no store.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from poise.alerts.evaluation import schedule
from poise.alerts.evaluation.inputs import LOOKBACK
from poise.alerts.evaluation.prepared import PreparedGroup

logger = logging.getLogger(__name__)

#: More of its intervals than this between two evaluations of a group are an outage, if everybody had to wait in between.
_INTERVALS = 2
#: Without that, so many milliseconds are one: what targets of two minutes' interval said before is about to be out of sight then. Less is not, for that
#: a busy machine evaluates late must not keep `for` from running out.
_GAP = LOOKBACK // 2


@dataclass(slots=True)
class Resuming:
    """`waits`: nothing is evaluated now."""

    waits: bool = True
    _since: int = field(default=0, init=False)
    _first: Mapping[str, int] = field(default_factory=dict, init=False)
    _told: int = field(default=0, init=False)

    def go_on(self, groups: Iterable[PreparedGroup], since: int) -> None:
        """Everything is known since then, and no slot before is evaluated; nor one of a group that reads what others record, before they did."""
        self.waits, self._since = False, since
        found = {group.key: group for group in groups}
        gives = {key: group.gives for key, group in found.items()}
        reads = {key: group.reads for key, group in found.items()}
        before = {key: [other for other in found if other != key and gives[other] & reads[key]] for key in found}
        self._first = schedule.first_slots({key: group.interval for key, group in found.items()}, before, since)

    def allows(self, key: str, at: int) -> bool:
        """Whether the slot of this group is late enough."""
        return at >= max(self._since, self._first.get(key, at))

    def set_back(self, now: int) -> None:
        """The clock says so now, which may be before all of this."""
        self._since, self._first = min(self._since, now), {}

    def is_gap(self, group: PreparedGroup, last: int | None, at: int) -> bool:
        """Whether so long passed until `at` since somebody evaluated the group last (None: never), with nobody waiting, that it has to go on anew."""
        return last is not None and self._since <= last and at - last > max(_INTERVALS * group.interval, _GAP)

    def is_outage(self, group: PreparedGroup, last: int | None, at: int) -> bool:
        """Whether nobody evaluated the group for long between `last` and `at`, the first moment after everybody could go on."""
        if last is None or self._since <= last or at - last <= _INTERVALS * group.interval:
            return False
        if last >= self._told:  # else it is the one that was told for another group
            logger.warning("nothing was evaluated for %.0f s: what is pending goes on waiting", (at - last) / 1000)
            self._told = at
        return True
