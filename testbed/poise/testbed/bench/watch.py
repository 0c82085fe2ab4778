"""Watches the exporter while a step runs: reads its page at the moments that usage.py needs. The edge to HTTP and to time.

Knows nothing of what the figures mean. A page that cannot be had while the step runs costs its window, not the step.
"""

from __future__ import annotations

import http.client
import time
import urllib.request
from collections.abc import Callable

from poise.exporter.engines.page import PageError
from poise.testbed.bench.observe import NodePage, read_page
from poise.testbed.bench.usage import Pages
from poise.testbed.errors import TestbedError

# The exporter's cards tick once a second; oftener would read the same.
LOOK_SECONDS = 1.0
TIMEOUT_SECONDS = 10.0
# The exporter asks each engine every 5 s (jittered): three rounds.
SETTLE_SECONDS = 15.0
SETTLE_LOOK_SECONDS = 0.5

Read = Callable[[], NodePage]


def reader(url: str) -> Read:
    """Reads the exporter's page at `url`. It raises TestbedError when there is none."""

    def read() -> NodePage:
        try:
            with urllib.request.urlopen(f"{url}/metrics", timeout=TIMEOUT_SECONDS) as answer:
                return read_page(answer.read())
        except (OSError, http.client.HTTPException, PageError) as error:
            raise TestbedError(f"the exporter on {url} gave no page: {error}") from None

    return read


class Watch:
    """One step. `began`, `look` and `ended` in this order, then `pages`. Clocks: `wall` as the exporter's samples have it."""

    def __init__(self, read: Read, wall: Callable[[], float] = time.time) -> None:
        self._read = read
        self._wall = wall
        self._before: NodePage | None = None
        self._missed = "the client never said that it began"
        self._from: float | None = None
        self._until: float | None = None
        self._looked = float("-inf")
        self._first: NodePage | None = None
        self._last: NodePage | None = None

    def began(self) -> None:
        """The step begins: what its servers counted before is before it, the warm-up too."""
        try:
            self._before = self._read()
        except TestbedError as error:
            self._missed = str(error)
        self._from = self._wall()

    def look(self) -> None:
        """To be called often while the step runs; reads the page at most once a second. The first page counts all of whose samples
        are from within the step."""
        now = self._wall()
        if self._from is None or self._until is not None or 0 <= now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        try:
            page = self._read()
        except TestbedError:
            return
        if self._first is not None:
            self._last = page
        elif all(card.figures.get("sampled", now) >= self._from for card in page.cards.values()):
            self._first = page

    def ended(self) -> None:
        """The step ended: later samples are not of it."""
        self._until = self._wall()

    def settle(self, reached: Callable[[NodePage, NodePage], bool], wait: Callable[[float], None]) -> tuple[Pages, bool]:
        """The pages, once the counters reach what the client counted (`reached` of the page before and one after), and whether they did
        within SETTLE_SECONDS. `wait` takes seconds. Raises TestbedError when the exporter is gone, or was when the step began."""
        before = self._before
        if before is None:
            raise TestbedError(self._missed)
        deadline = self._wall() + SETTLE_SECONDS
        while True:
            after = self._read()
            if reached(before, after):
                wait(LOOK_SECONDS)  # the cards' counters may be a tick behind
                return Pages(before, self._first, self._last, self._read()), True
            if self._wall() >= deadline:
                return Pages(before, self._first, self._last, after), False
            wait(SETTLE_LOOK_SECONDS)
