"""Observations of scenes for the tests of the builders: so many seconds of scrapes, then a look."""

from __future__ import annotations

import asyncio

from poise.dashboard.checks_document import read
from poise.dashboard.contexts import CardContext, EngineContext, FigureContext, OverviewContext
from poise.dashboard.numbers import SPACE
from poise.dashboard.observation import ExporterStatus, Observation
from poise.dashboard.overview import overview
from poise.dashboard.progress import Progress
from poise.dashboard.texts import ENGLISH
from poise.history.recent import RecentWindow
from poise.history.scrape import Scrape, Scraper

from tests.node_scenes import FakeExporter, NodeScene

INTERVAL = 5.0


def watched(
    *scenes: NodeScene,
    seconds: float = 120.0,
    silent: float = 0.0,
    error: str = "",
    checks: bool = True,
    progress: Progress | None = None,
    exporter: ExporterStatus | None = None,
) -> Observation:
    """Scrape each scene for `seconds`, one after the other on one clock, then look `silent` seconds later, when the last attempt had `error`."""
    window = RecentWindow()
    fake = FakeExporter(scenes[0])
    scraper = Scraper("http://x/metrics", wall_clock=fake.clock, clock=fake.clock, get=fake)

    async def scrape_all() -> None:
        for scene in scenes:
            fake.scene = scene
            for _ in range(int(seconds / INTERVAL)):
                fake.now += INTERVAL
                window.append(await scraper.scrape())

    asyncio.run(scrape_all())
    document = read(scenes[-1].checks_document(fake.now)) if checks and scenes[-1].checks else None
    fake.now += silent
    if error:
        window.append(Scrape(fake.now, 1.0, error=error))
    return Observation(fake.now, INTERVAL, window, document, "", progress, "", ExporterStatus() if exporter is None else exporter)


def page_of(*scenes: NodeScene, **how: object) -> OverviewContext:
    """The overview of what `watched` saw."""
    return overview(watched(*scenes, **how), ENGLISH)  # type: ignore[arg-type]  # passed through unchanged


def engine_of(page: OverviewContext, name: str = "") -> EngineContext:
    """The engine of this name, or the only one."""
    engines = [engine for group in page.deployments for engine in group.engines if not name or engine.engine == name]
    assert len(engines) == 1
    return engines[0]


def card_of(page: OverviewContext, index: int) -> CardContext:
    """The card of this index in whatever group it stands."""
    cards = [card for group in page.deployments for engine in group.engines for card in engine.cards] + list(page.unowned)
    return next(card for card in cards if card.index == str(index))


def figure(engine: EngineContext, key: str) -> FigureContext:
    """One figure of an engine."""
    return next(one for one in engine.figures if one.key == key)


def plain(text: str) -> str:
    """With ordinary spaces."""
    return text.replace(SPACE, " ")
