"""What SIGHUP asks of `poise up`: settings, rules and targets are read anew, one time after the other, and what came of it is said.

Owns the order and the words. Reading is done in a thread, for files may be large or on a slow disk; knows no file itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from poise.alerts.settings import AlertSettings
from poise.exporter.settings import SettingsError
from poise.history.settings import HistorySettings

log = logging.getLogger(__name__)

Read = Callable[[], tuple[HistorySettings, AlertSettings]]
Take = Callable[[HistorySettings, AlertSettings], Awaitable[Sequence[str]]]


class Reloading:
    """Reads again whenever that was wished. `read` gives the settings, `take` puts them in force and tells what needs a restart, `pass_on` tells the
    exporter that was started here, and whether there is one."""

    def __init__(self, read: Read, take: Take, pass_on: Callable[[], bool]) -> None:
        self._read = read
        self._take = take
        self._pass_on = pass_on
        self._wished = asyncio.Event()

    def wish(self) -> None:
        """Asks for it; wishes that come while it reads are one."""
        self._wished.set()

    async def run(self) -> None:
        """Until cancelled. Whatever goes wrong is logged, and what was in force stays so."""
        while await self._wished.wait():
            self._wished.clear()
            passed_on = self._pass_on()
            try:
                left = await self._take(*await asyncio.to_thread(self._read))
            except SettingsError as error:
                log.error("page: rules, thresholds and targets stay as they were: %s", error)
            except Exception:
                log.exception("page: reading anew failed; what was in force stays so")
            else:
                log.info("page: rules, thresholds and targets are read anew%s", "; the exporter reads its settings" if passed_on else "")
                if left:
                    log.warning("needs a restart: %s", ", ".join(left))
