"""All Alertmanagers of the configuration together: what they make of our alerts, which silences they have, and silences made and ended there.

Those that gossip are one cluster, and a silence made at one member comes to the others by itself; those that do not are told each. Which is which they
say themselves (GET /api/v2/status names the members of a cluster). One that is down or slow is named and costs the others nothing. What is only looked
at is remembered for seconds, so that many pages ask no more often than one. Runs in one event loop; knows no page.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from poise.alerts.notification.alertmanager import Alertmanager, AlertmanagerError, AlertStatus, Matcher, Place, Silence
from poise.history.promql.labels import Labels, labels

logger = logging.getLogger(__name__)

#: Seconds for which what was looked at is good.
FRESH = 5.0
#: Seconds that a page waits for an Alertmanager; an address that swallows packets must not hold it up for the whole `timeout` of notifications.
LOOK_TIMEOUT = 2.0

Seen = TypeVar("Seen")


@dataclass(frozen=True, slots=True)
class Suppression:
    """What Alertmanagers make of one alert: the identifiers of silences, and the fingerprints of alerts that inhibit it."""

    silenced_by: tuple[str, ...] = ()
    inhibited_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Problem:
    """An Alertmanager that could not be asked, or did not do it; `refused` when it understood and will not."""

    url: str
    error: str
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Known:
    """A silence, and the addresses of all that have it."""

    silence: Silence
    urls: tuple[str, ...]


#: (Alertmanager, answer) of those that answered, and the others.
_Answers = tuple[list[tuple[Alertmanager, Seen]], tuple[Problem, ...]]


@dataclass(frozen=True, slots=True)
class Made:
    """What a change came to: (address, identifier) for each cluster that took it, and who did not."""

    done: tuple[tuple[str, str], ...]
    problems: tuple[Problem, ...]


class Silencing:
    """Over `places`, every one of the configuration. `clock` gives monotonic seconds."""

    def __init__(
        self,
        places: Sequence[Place],
        *,
        clock: Callable[[], float],
        environment: Mapping[str, str] | None = None,
        look_timeout: float = LOOK_TIMEOUT,
    ) -> None:
        self.urls = tuple(place.url for place in places)
        self._changing = [Alertmanager(place, environment) for place in places]
        self._looking = [Alertmanager(replace(place, timeout=min(place.timeout, look_timeout)), environment) for place in places]
        self._alerts = _Look(self._looking, Alertmanager.alerts, clock)
        self._silences = _Look(self._looking, Alertmanager.silences, clock)

    # ------------------------------------------------------------------------------------------------------------- looking
    async def suppressions(self) -> tuple[Mapping[Labels, Suppression], Sequence[Problem]]:
        """By the labels under which Alertmanager knows an alert: what suppresses it. At most `FRESH` seconds old. Never raises."""
        answers, problems = await self._alerts.answers()
        found: dict[Labels, Suppression] = {}
        for _, statuses in answers:
            for status in statuses:
                own = labels(status.labels)
                found[own] = _joined(found.get(own, Suppression()), status)
        return found, problems

    async def silences(self) -> tuple[Sequence[Known], Sequence[Problem]]:
        """Every silence that is pending or active, soonest end first, and who could not be asked; as fresh. Never raises."""
        answers, problems = await self._silences.answers()
        found: dict[str, Known] = {}
        for one, silences in answers:
            for silence in silences:
                before = found.get(silence.identifier)
                found[silence.identifier] = Known(silence, (*(before.urls if before else ()), one.place.url))
        return sorted(found.values(), key=lambda known: known.silence.ends_at), problems

    # ------------------------------------------------------------------------------------------------------------ changing
    async def silence(self, matchers: Sequence[Matcher], *, starts_at: float, ends_at: float, by: str, comment: str) -> Made:
        """Makes a silence in every cluster; moments in Unix seconds. Never raises: see `Made`."""
        wanted = Silence(tuple(matchers), starts_at, ends_at, by, comment)
        return await self._change(self._changing, lambda one: one.silence(wanted))

    async def expire(self, identifier: str) -> Made | None:
        """Ends a silence wherever it is; None when nobody that can be asked has one of this name. Never raises."""
        self._silences.forget()
        known, problems = await self.silences()
        urls = next((one.urls for one in known if one.silence.identifier == identifier), ())
        having = [one for one in self._changing if one.place.url in urls]
        if not having:
            return Made((), tuple(problems)) if problems else None

        async def end(one: Alertmanager) -> str:
            await one.expire(identifier)
            return identifier

        made = await self._change(having, end)
        return Made(made.done, (*made.problems, *problems))

    async def _change(self, ones: Sequence[Alertmanager], change: Callable[[Alertmanager], Awaitable[str]]) -> Made:
        clusters, problems = await _clusters(ones)
        done: list[tuple[str, str]] = []
        for cluster in clusters:
            failed: list[Problem] = []
            for one in cluster:
                try:
                    done.append((one.place.url, await change(one)))
                except AlertmanagerError as error:
                    failed.append(Problem(one.place.url, str(error), error.refused))
                    if error.refused:
                        break  # the others of its cluster would say the same
                except Exception as error:  # whatever it is, the next may do it
                    logger.exception("Alertmanager %s: a fault of Poise", one.place.url)
                    failed.append(Problem(one.place.url, f"Alertmanager {one.place.url}: {type(error).__name__}: {error}"))
                else:
                    failed = []
                    break
            problems += failed
        self._alerts.forget()
        self._silences.forget()
        return Made(tuple(done), tuple(problems))


class _Look(Generic[Seen]):
    """What all answer to one question, asked again once it is no longer fresh, however many want to know."""

    def __init__(
        self, ones: Sequence[Alertmanager], question: Callable[[Alertmanager], Awaitable[Seen]], clock: Callable[[], float]
    ) -> None:
        self._ones = ones
        self._question = question
        self._clock = clock
        self._lock = asyncio.Lock()
        self._forgotten = 0
        self._seen: tuple[float, _Answers[Seen]] | None = None

    def forget(self) -> None:
        """The next answer is a new one; one that is on its way now is of before."""
        self._seen = None
        self._forgotten += 1

    async def answers(self) -> _Answers[Seen]:
        """Who answered what, and who did not."""
        async with self._lock:
            if self._seen is not None and 0 <= self._clock() - self._seen[0] < FRESH:
                return self._seen[1]
            before = self._forgotten
            found = await _ask_all(self._ones, self._question)
            if before == self._forgotten:
                self._seen = (self._clock(), found)
            return found


async def _clusters(ones: Sequence[Alertmanager]) -> tuple[list[list[Alertmanager]], list[Problem]]:
    """Alertmanagers by cluster, in order of the configuration; and those that do not answer."""
    answers, problems = await _ask_all(ones, Alertmanager.peers)
    clusters: list[tuple[frozenset[str], list[Alertmanager]]] = []
    for one, peers in answers:
        mine = [cluster for cluster in clusters if cluster[0] & peers]
        others = [cluster for cluster in clusters if not cluster[0] & peers]
        members = [member for cluster in mine for member in cluster[1]]
        clusters = [*others, (peers.union(*(cluster[0] for cluster in mine)), [*members, one])]
    return [members for _, members in clusters], list(problems)


async def _ask_all(ones: Sequence[Alertmanager], question: Callable[[Alertmanager], Awaitable[Seen]]) -> _Answers[Seen]:
    """All at once: who answered what, and who did not."""

    async def ask(one: Alertmanager) -> tuple[Alertmanager, Seen] | Problem:
        try:
            return one, await question(one)
        except AlertmanagerError as error:
            return Problem(one.place.url, str(error), error.refused)
        except Exception as error:  # whatever it is, the others have their say
            logger.exception("Alertmanager %s: a fault of Poise", one.place.url)
            return Problem(one.place.url, f"Alertmanager {one.place.url}: {type(error).__name__}: {error}")

    found = await asyncio.gather(*(ask(one) for one in ones))
    return [each for each in found if not isinstance(each, Problem)], tuple(each for each in found if isinstance(each, Problem))


def _joined(before: Suppression, status: AlertStatus) -> Suppression:
    return Suppression(
        tuple(dict.fromkeys((*before.silenced_by, *status.silenced_by))),
        tuple(dict.fromkeys((*before.inhibited_by, *status.inhibited_by))),
    )
