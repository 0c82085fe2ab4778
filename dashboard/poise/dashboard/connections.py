"""HTTP connections of the page's server with an end: a request has to be whole within seconds, and only so many connections are open at once.

uvicorn alone waits for ever for the rest of a request, so that some hundred silent clients would take every descriptor of the process, and the
exporter could not be scraped any more. Knows no page.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, ClassVar, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

#: Seconds from the first moment of a connection, or the first byte of a further request, to the last byte of that request.
REQUEST_SECONDS = 10.0
#: Connections at the same time: a browser holds up to seven for one tab. Well below the 1,024 descriptors that a process usually has.
MOST_CONNECTIONS = 256
#: Connections that wait to be taken. asyncio takes all of them at once, before any of them is looked at, so they need descriptors too.
BACKLOG = 64
#: Descriptors that clients never get, beside one for each target: history, memory, libraries, logs, the exporter, Alertmanagers, name lookups.
#: `poise up` with a history and an exporter of its own has 19 open.
RESERVE = 32
#: With fewer connections no page can be had.
FEWEST_CONNECTIONS, FEWEST_BACKLOG = 8, 4
#: Seconds between two lines that say that there are no descriptors left; asyncio tells of each connection that it could not take.
EXHAUSTION_EVERY = 60.0

log = logging.getLogger(__name__)

#: What uvicorn says when a client does not keep to HTTP or asks for what we do not have: its own affair.
_CLIENTS_FAULTS = ("Invalid HTTP request received", "Unsupported upgrade request", "No supported WebSocket library detected")


def of_the_clients(record: logging.LogRecord) -> bool:
    """A filter for uvicorn's log: False for what any client can make it say as often as it likes."""
    broken = record.exc_info[1] if record.exc_info else None
    if isinstance(broken, h11.ProtocolError) or record.getMessage().startswith(_CLIENTS_FAULTS):
        log.debug("a client: %s", broken or record.getMessage())
        return False
    return True


class Exhaustion:
    """An exception handler for the event loop: that nothing can be accepted is one line a minute, everything else is asyncio's to tell."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._told: float | None = None

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Tells of it."""
        if "socket.accept()" not in str(context.get("message")):
            loop.default_exception_handler(context)
            return
        now = self._clock()
        if self._told is None or now - self._told >= EXHAUSTION_EVERY:
            self._told = now
            log.warning("no connection can be taken: %s; a higher limit of open files (ulimit -n) helps", context.get("exception"))


def bounds(descriptors: int, targets: int) -> tuple[int, int]:
    """How many connections of clients may be open, and how many may wait, in a process of so many descriptors (-1: any number) and targets.

    What clients take is not there for scrapes, so that too many of them would make targets seem to be down.
    """
    free = MOST_CONNECTIONS + BACKLOG if descriptors < 0 else descriptors - RESERVE - targets
    backlog = min(BACKLOG, max(FEWEST_BACKLOG, free // 5))
    return min(MOST_CONNECTIONS, max(FEWEST_CONNECTIONS, free - backlog)), backlog


class BoundedConnection(H11Protocol):
    """One connection. When there are too many, the longest that sends its request makes room, else the longest of all; a browser comes back."""

    most: ClassVar[int] = MOST_CONNECTIONS

    @classmethod
    def at_most(cls, most: int) -> type[BoundedConnection]:
        """The same for so many connections."""
        return cast("type[BoundedConnection]", type(cls.__name__, (cls,), {"most": most}))

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Starts the clock, and makes room."""
        super().connection_made(transport)
        self._since = self.loop.time()
        self._deadline: asyncio.TimerHandle | None = self.loop.call_later(REQUEST_SECONDS, self.abort)
        others = [other for other in self.connections if isinstance(other, BoundedConnection) and other is not self]
        if len(others) >= self.most:
            min(others, key=lambda other: (not other.is_sending, other._since)).abort()

    def data_received(self, data: bytes) -> None:
        """Takes in bytes; the clock runs as long as a request is not whole."""
        super().data_received(data)
        if not self.is_sending:
            self._stop_clock()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_SECONDS, self.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops the clock."""
        self._stop_clock()
        super().connection_lost(exc)

    @property
    def is_sending(self) -> bool:
        """Whether the client has not sent a whole request (yet)."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def abort(self) -> None:
        """Ends the connection at once."""
        self._stop_clock()
        self.transport.abort()
        # The loop tells `connection_lost` later only, and others count until then.
        self.connections.discard(self)

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
