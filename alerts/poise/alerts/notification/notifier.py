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
MOST_WAITING = 10_000
#: Seconds until it is tried again: doubled from the first to the last.
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0


@dataclass(frozen=True, slots=True)
class LineStatus:
    """How it goes with one Alertmanager. `error` is empty while it takes what it gets; `sent_at` Unix seconds, None before the first time."""

    url: str
    waiting: int
    sent: int
    failed: int
    dropped: int
    error: str
    sent_at: float | None


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
        return tuple(
            LineStatus(line.alertmanager.place.url, len(line.waiting), line.sent, line.failed, line.dropped, line.error, line.sent_at)
            for line in self._lines
        )

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
        batch = list(line.waiting.values())[:BATCH]
        if not batch:
            return True
        try:
            await line.alertmanager.post_alerts(batch)
        except AlertmanagerError as error:
            line.failed += len(batch)
            if str(error) != line.error:
                logger.warning("%s; %s", error, "these alerts are not tried again" if error.refused else "it is tried again")
            line.error = str(error)
            if not error.refused:
                return False
        except Exception as error:  # whatever it is, it ends neither the other lines nor the process
            line.failed += len(batch)
            words = f"Alertmanager {line.alertmanager.place.url}: {type(error).__name__}: {error}"
            if words != line.error:
                logger.exception("%s, a fault of Poise; it is tried again", words)
            line.error = words
            return False
        else:
            if line.error:
                logger.info("Alertmanager %s takes alerts again", line.alertmanager.place.url)
            line.error = ""
            line.sent += len(batch)
            line.sent_at = self._wall()
        for alert in batch:
            if line.waiting.get(alert.labels) is alert:
                del line.waiting[alert.labels]
        return True
