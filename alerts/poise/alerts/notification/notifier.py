"""Gives alerts to every Alertmanager: what is newest of each alert waits, in bounded numbers, until the Alertmanager takes it.

Each Alertmanager has a line of its own, so that one that is down or slow holds up no other; all get everything, since they agree among themselves who
speaks. Unlike Prometheus, which drops what an Alertmanager did not take and trusts in the next resend, what was not taken is kept and tried again: of
each alert only the newest state, so that nothing grows and nothing arrives twice. Runs in one event loop; `take` may be called from any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from poise.alerts.evaluation.group_run import ToSend
from poise.alerts.notification.alertmanager import Alertmanager, AlertmanagerError
from poise.alerts.notification.payload import Payload, payload
from poise.history.promql.labels import Labels

logger = logging.getLogger(__name__)

#: Alerts of one request (Prometheus `notifier.go`, maxBatchSize), and alerts that wait for one Alertmanager (--alertmanager.notification-queue-capacity).
BATCH = 256
#: Bytes of one request, unless a single alert has more: half of what nginx lets through unless told otherwise (client_max_body_size 1m).
BATCH_BYTES = 524_288
MOST_WAITING = 10_000
#: Alerts whose refusal is remembered, so that they are told alone from then on and logged once.
_MOST_REFUSED = 256
#: Characters that name an alert in a message.
_LONGEST_NAME = 300
#: Seconds until it is tried again: doubled from the first to the last.
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0


@dataclass(frozen=True, slots=True)
class LineStatus:
    """How it goes with one Alertmanager. `error` is empty while it takes what it gets; `sent_at` Unix seconds, None before the first time. `refused` counts
    alerts that were let go because it does not take them (they are in `dropped` too), `refusal` says which was the last, why and when (`refused_at`)."""

    url: str
    waiting: int
    sent: int
    failed: int
    dropped: int
    error: str
    sent_at: float | None
    refused: int = 0
    refusal: str = ""
    refused_at: float | None = None


@dataclass(slots=True)
class _Line:
    """What waits for one Alertmanager."""

    alertmanager: Alertmanager
    waiting: dict[Labels, Payload] = field(default_factory=dict)
    came: asyncio.Event = field(default_factory=asyncio.Event)
    sent: int = 0
    failed: int = 0
    dropped: int = 0
    error: str = ""
    sent_at: float | None = None
    refused: int = 0
    refusal: str = ""
    refused_at: float | None = None
    refusals: dict[Labels, str] = field(default_factory=dict)
    down: bool = False

    def status(self) -> LineStatus:
        """How it goes."""
        return LineStatus(
            url=self.alertmanager.place.url,
            waiting=len(self.waiting),
            sent=self.sent,
            failed=self.failed,
            dropped=self.dropped,
            error=self.error,
            sent_at=self.sent_at,
            refused=self.refused,
            refusal=self.refusal,
            refused_at=self.refused_at,
        )

    def batch(self) -> list[Payload]:
        """What goes in the next request: the oldest, in bounded number and size. What was refused before goes alone, so that it costs the others nothing."""
        found: list[Payload] = []
        size = 2
        for own, alert in self.waiting.items():
            if own in self.refusals:
                if not found:
                    return [alert]
                continue
            size += len(alert.encoded()) + 1
            if found and size > BATCH_BYTES:
                break
            found.append(alert)
            if len(found) == BATCH:
                break
        return found

    def give_up(self, alert: Payload, words: str, at: float) -> bool:
        """Notes that an alert is not taken; whether that is news."""
        self.refused += 1
        self.dropped += 1
        self.refusal, self.refused_at = words, at
        news = self.refusals.pop(alert.labels, None) != words
        self.refusals[alert.labels] = words
        while len(self.refusals) > _MOST_REFUSED:
            del self.refusals[next(iter(self.refusals))]
        self.done(alert)
        return news

    def done(self, alert: Payload) -> None:
        """Lets an alert leave the line, unless a newer state of it came meanwhile."""
        if self.waiting.get(alert.labels) is alert:
            del self.waiting[alert.labels]


class Notifier:
    """`page` is the dashboard's address for links, `wall` Unix seconds."""

    def __init__(
        self,
        alertmanagers: Sequence[Alertmanager],
        *,
        external_labels: Mapping[str, str],
        page: str,
        wall: Callable[[], float],
        most_waiting: int = MOST_WAITING,
    ) -> None:
        self._lines = [_Line(alertmanager) for alertmanager in alertmanagers]
        self._external_labels = external_labels
        self._page = page
        self._wall = wall
        self._most_waiting = most_waiting
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def alertmanagers(self) -> tuple[Alertmanager, ...]:
        """Those that are told."""
        return tuple(line.alertmanager for line in self._lines)

    def status(self) -> tuple[LineStatus, ...]:
        """How it goes with each."""
        return tuple(line.status() for line in self._lines)

    def take(self, alerts: Sequence[ToSend]) -> None:
        """Alerts to be told, from any thread. Before `run` and after its end they are let go: the evaluator tells them again."""
        loop = self._loop
        if loop is None or loop.is_closed() or not self._lines:
            return
        made = [payload(one, self._external_labels, self._page) for one in alerts]
        with contextlib.suppress(RuntimeError):  # the loop was closed in this moment
            loop.call_soon_threadsafe(self._put, made)

    async def run(self) -> None:
        """Sends until it is cancelled."""
        self._loop = asyncio.get_running_loop()
        try:
            async with asyncio.TaskGroup() as group:
                for line in self._lines:
                    group.create_task(self._send_all(line))
        finally:
            self._loop = None

    def _put(self, alerts: Sequence[Payload]) -> None:
        for line in self._lines:
            for alert in alerts:
                line.waiting.pop(alert.labels, None)  # its newest state goes to the end of the line
                line.waiting[alert.labels] = alert
            while len(line.waiting) > self._most_waiting:
                line.waiting.pop(next(iter(line.waiting)))
                line.dropped += 1
            line.came.set()

    async def _send_all(self, line: _Line) -> None:
        pause = FIRST_PAUSE
        while True:
            await line.came.wait()
            line.came.clear()
            while line.waiting:
                if await self._send_batch(line):
                    pause = FIRST_PAUSE
                    continue
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _send_batch(self, line: _Line) -> bool:
        """Whether it is of use to go on at once."""
        now = round(self._wall() * 1000)
        for own in [own for own, alert in line.waiting.items() if not alert.resolved and alert.ends_at <= now]:
            # Nobody said for minutes that it still fires; told now, it would arrive as resolved.
            del line.waiting[own]
            line.dropped += 1
        batch = line.batch()
        return not batch or await self._give(line, batch)

    async def _give(self, line: _Line, batch: Sequence[Payload]) -> bool:
        """Gives a batch to an Alertmanager, in halves where it is refused; whether it is of use to go on at once.

        Alertmanager itself takes the valid alerts of a request and answers 400 for the others; in halves it gets some twice, which it takes for one, and
        which of them it does not take is known. A proxy refuses a request as a whole.
        """
        place = line.alertmanager.place
        try:
            await line.alertmanager.post_alerts(batch)
        except AlertmanagerError as error:
            if error.refused and len(batch) > 1:
                middle = len(batch) // 2
                return await self._give(line, batch[:middle]) and await self._give(line, batch[middle:])
            line.failed += len(batch)
            words = f"{error}; of alert {_named(batch[0])}" if error.refused else str(error)
            before, line.error = line.error, words
            if error.refused:
                if line.give_up(batch[0], words, self._wall()):
                    logger.warning("%s, which is let go; the others are told", words)
                return True
            line.down = True
            if words != before:
                logger.warning("%s; it is tried again", words)
            return False
        except Exception as error:  # whatever it is, it ends neither the other lines nor the process
            line.failed += len(batch)
            words = f"Alertmanager {place.url}: {type(error).__name__}: {error}"
            if words != line.error:
                logger.exception("%s, a fault of Poise; it is tried again", words)
            line.error, line.down = words, True
            return False
        if line.down:
            logger.info("Alertmanager %s takes alerts again", place.url)
        line.error, line.down = "", False
        line.sent += len(batch)
        line.sent_at = self._wall()
        for alert in batch:
            line.refusals.pop(alert.labels, None)
            line.done(alert)
        return True


def _named(alert: Payload) -> str:
    """Which alert it is, in a line that stays a line."""
    text = ", ".join(f"{name}={value}" for name, value in alert.labels)
    return "{" + (text if len(text) <= _LONGEST_NAME else text[: _LONGEST_NAME - 1] + "…") + "}"
