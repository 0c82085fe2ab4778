"""What two evaluators say of the same node, alert by alert: when each fired, by the store that keeps it, and how far the two lie apart.

    sides = Sides(alerts.prometheus.get, page_api(url))
    apart = compare(*(spans(ask, began, ended) for ask in sides))

Asks both through the API of Prometheus, which `poise up` offers as well. Knows nothing of any rule.
"""

from __future__ import annotations

import json
import math
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.poise_up import get

#: Asks a path of the API with parameters and gives the JSON of the answer.
Ask = Callable[..., Any]
#: The name of an alert and what it is about: its labels but for those that say who scraped.
Key = tuple[tuple[str, str], ...]
#: Began, ended: seconds since 1970, of the first and the last sample of ALERTS.
Span = tuple[float, float]

FIRING = 'ALERTS{alertstate="firing",severity!="none"}'
#: Seconds between the moments that are asked for, and how many of them a server gives in one answer at most.
STEP, MOST_POINTS = 1.0, 10_000
#: How much longer than a step two samples may be apart and still be one span.
SLACK = 1.5
_ABOUT_THE_WAY = frozenset({"__name__", "job", "alertstate"})


@dataclass(frozen=True)
class Apart:
    """An alert that fired on both sides: by how many seconds ours began and ended later (negative: earlier)."""

    key: Key
    began: float
    ended: float

    @property
    def name(self) -> str:
        """Which alert it is."""
        return dict(self.key)["alertname"]


@dataclass
class Compared:
    """`only_there`, `only_here`: spans of at least the asked length of which the other side has nothing at all."""

    both: list[Apart] = field(default_factory=list)
    only_there: list[tuple[Key, Span]] = field(default_factory=list)
    only_here: list[tuple[Key, Span]] = field(default_factory=list)

    def within(self, seconds: float) -> int:
        """How many alerts began as well as ended within so many seconds of each other."""
        return sum(max(abs(one.began), abs(one.ended)) <= seconds for one in self.both)

    def most(self) -> float:
        """The largest distance of a beginning or an end (seconds)."""
        return max((max(abs(one.began), abs(one.ended)) for one in self.both), default=0.0)


def page_api(url: str, timeout: float = 60.0) -> Ask:
    """Asks the page of a `poise up` as `Server.get` asks Prometheus."""

    def ask(path: str, **parameters: str) -> Any:
        status, text = get(f"{url}{path}?{urllib.parse.urlencode(parameters)}", timeout=timeout)
        assert status == 200, f"the page answers {path} with {status}: {text}"
        return json.loads(text)

    return ask


def spans(ask: Ask, began: float, ended: float) -> dict[Key, list[Span]]:
    """When each alert fired between two moments, in order."""
    found: dict[Key, list[Span]] = {}
    start = math.floor(began)
    while start <= ended:
        end = min(math.ceil(ended), start + MOST_POINTS * STEP)
        answer = ask("/api/v1/query_range", query=FIRING, start=f"{start}", end=f"{end}", step=f"{STEP:g}")
        for series in answer["data"]["result"]:
            key = tuple(sorted((name, value) for name, value in series["metric"].items() if name not in _ABOUT_THE_WAY))
            mine = found.setdefault(key, [])
            for moment, _ in series["values"]:
                if mine and moment - mine[-1][1] <= STEP * SLACK:
                    mine[-1] = (mine[-1][0], moment)
                else:
                    mine.append((moment, moment))
        start = end + STEP
    return found


def compare(there: Mapping[Key, Sequence[Span]], here: Mapping[Key, Sequence[Span]], least: float) -> Compared:
    """Each span of at least `least` seconds on one side beside those that it meets on the other. A span that the other side interrupts
    for a moment ends there where the last of its parts ends."""
    result = Compared()
    for key, those in there.items():
        for one in those:
            if one[1] - one[0] < least:
                continue
            met = _meeting(one, here.get(key, ()))
            if met is None:
                result.only_there.append((key, one))
            else:
                whole = _meeting(met, those) or one
                result.both.append(Apart(key, met[0] - whole[0], met[1] - whole[1]))
    for key, ours in here.items():
        result.only_here += [(key, one) for one in ours if one[1] - one[0] >= least and _meeting(one, there.get(key, ())) is None]
    return result


def _meeting(span: Span, others: Sequence[Span]) -> Span | None:
    """From the first to the last of those that overlap a span, a step of grace at both ends."""
    parts = [other for other in others if other[0] <= span[1] + STEP and other[1] >= span[0] - STEP]
    return (parts[0][0], parts[-1][1]) if parts else None
