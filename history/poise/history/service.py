"""The history of one process, put together: store, scraping, querier, self-metrics. For whoever serves pages or evaluates rules.

service = HistoryService.open(load(arguments, os.environ), os.environ, wall_clock=time.time, clock=time.monotonic)
await service.run()        # until cancelled
service.reload(lambda: load(arguments, os.environ))    # on SIGHUP
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from poise.exporter.settings import SettingsError
from poise.history.querier.embedded import EmbeddedQuerier
from poise.history.scrape import Scrape
from poise.history.scraping import ScrapePool
from poise.history.self_metrics import HistoryCollector
from poise.history.settings import HistorySettings, default_path
from poise.history.store.store import Retention, Store
from poise.history.targets import Target

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HistoryService:
    """Everything that a process with a history has. `settings` are those that it was opened with."""

    settings: HistorySettings
    store: Store
    pool: ScrapePool
    querier: EmbeddedQuerier
    collector: HistoryCollector

    @classmethod
    def open(
        cls,
        settings: HistorySettings,
        environment: Mapping[str, str],
        *,
        wall_clock: Callable[[], float],
        clock: Callable[[], float],
        observe: Callable[[Target, Scrape], None] = lambda target, scrape: None,
    ) -> HistoryService:
        """Opens the store. `observe` gets every scrape at once, in the event loop.

        Raises:
            StoreError: the file cannot be used; the message has the way out.
        """
        path = Path(settings.path) if settings.path else default_path(environment)
        store = Store(path, Retention(settings.retention, settings.retention_size), wall=wall_clock, monotonic=clock)
        # The first picture does not wait for a slot: somebody who starts this looks at the page.
        pool = ScrapePool(store, wall_clock=wall_clock, clock=clock, observe=observe, at_once=True)
        pool.set_targets(settings.targets)
        querier = EmbeddedQuerier(store, clock=clock, metadata=lambda: [families for _, families in pool.metadata()])
        return cls(settings, store, pool, querier, HistoryCollector(store.status, pool.status))

    async def run(self) -> None:
        """Scrape until cancelled; then everything is on disk and the file is free."""
        try:
            await self.pool.run()
        finally:
            await self.querier.close()
            self.store.close()

    def reload(self, load: Callable[[], HistorySettings]) -> None:
        """Takes over the targets as they are configured now. What is wrong is logged, and the targets stay as they were."""
        try:
            settings = load()
        except SettingsError as error:
            log.error("the targets stay as they were: %s", error)
            return
        self.pool.set_targets(settings.targets)
        log.info("targets: %s", ", ".join(target.name for target in settings.targets) or "none")
        if (settings.path, settings.retention, settings.retention_size) != (
            self.settings.path,
            self.settings.retention,
            self.settings.retention_size,
        ):
            log.warning("where and how long the history is kept changes with the next start")
