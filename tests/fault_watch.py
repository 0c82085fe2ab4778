"""Watches a deployment second by second while faults are put on it: the exporter's page, its checklist, and the alerts that fire.

Knows how to look and to wait, and nothing of any fault; what is expected stands in the fault's own declaration.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from poise.testbed.deployment import Deployment
from poise.testbed.errors import TestbedError
from poise.testbed.faults import signs

from tests.monitoring import Monitoring
from tests.vllm.deploying import read

#: How often it looks; Prometheus scrapes as often.
LOOK_SECONDS = 1.0
#: Rates are taken over so long: the exporter polls engines once a second, and a loaded machine is late.
RATE_SECONDS = 6.0
#: Pages are kept for so long, what failed and fired for ever.
PAGES_SECONDS = 60.0
#: Alerts that are for people: not the Watchdog, nor sources of inhibition.
FIRING = 'ALERTS{alertstate="firing",severity!="none"}'


@dataclass(frozen=True)
class Look:
    """What stood there at `time` (monotonic seconds): failing check → its line, and the alerts that fired."""

    time: float
    failing: Mapping[str, str]
    firing: frozenset[str]


class Watch:
    """Looks in a thread of its own until it is closed; a look that fails (an exporter that restarts) is left out."""

    def __init__(self, deployment: Deployment, alerts: Monitoring | None = None) -> None:
        self._deployment = deployment
        self._alerts = alerts
        self._pages: deque[signs.Page] = deque()
        self._looks: list[Look] = []
        self._changed = threading.Condition()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch")
        self._thread.start()

    def close(self) -> None:
        self._ending.set()
        self._thread.join(60)

    @property
    def alerts_watched(self) -> bool:
        """Whether alerts are looked at too."""
        return self._alerts is not None

    @property
    def looks(self) -> list[Look]:
        """Everything that was seen, in order."""
        with self._changed:
            return list(self._looks)

    @property
    def last(self) -> Look | None:
        """The newest look, None before the first."""
        with self._changed:
            return self._looks[-1] if self._looks else None

    def pages(self, since: float = 0.0) -> tuple[signs.Page, signs.Page] | None:
        """The newest page and one from RATE_SECONDS before, both younger than `since`; None while there are none."""
        with self._changed:
            found = [page for page in self._pages if page.time >= since]
        if not found or found[-1].time - found[0].time < RATE_SECONDS:
            return None
        return [page for page in found if page.time <= found[-1].time - RATE_SECONDS][-1], found[-1]

    def wait(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Looks at `holds` after each look until it is true, which it returns, or `seconds` have passed."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while not holds():
                if not self._changed.wait(deadline - time.monotonic()) and time.monotonic() >= deadline:
                    return holds()
        return True

    def _run(self) -> None:
        while not self._ending.wait(LOOK_SECONDS):
            with contextlib.suppress(OSError, ValueError, AssertionError, TestbedError):
                page, look = self._look()
                with self._changed:
                    self._pages.append(page)
                    while page.time - self._pages[0].time > PAGES_SECONDS:
                        self._pages.popleft()
                    self._looks.append(look)
                    self._changed.notify_all()

    def _look(self) -> tuple[signs.Page, Look]:
        exporter = self._deployment.plan.exporter_url
        page = signs.read(read(f"{exporter}/metrics"), time.monotonic())
        ports = tuple(f":{engine.port}" for engine in self._deployment.plan.engines)
        lines = [line for line in json.loads(read(f"{exporter}/checks"))["checks"] if line["status"] == "fail"]
        failing = {line["check"]: line["line"] for line in lines if not line["engine"] or line["engine"].endswith(ports)}
        firing = {labels["alertname"] for labels, _ in self._alerts.query(FIRING)} if self._alerts else set()
        return page, Look(page.time, failing, frozenset(firing))


@contextlib.contextmanager
def watching(deployment: Deployment, alerts: Monitoring | None = None) -> Iterator[Watch]:
    """A watch until the block ends."""
    watch = Watch(deployment, alerts)
    try:
        yield watch
    finally:
        watch.close()
