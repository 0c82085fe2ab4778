"""How fresh each source is, as a word: live, late, stale, down, loading, waiting, unknown (an engine that nobody can ask).

Owns the words' limits. Knows the window and the few series that tell of sources; no page.
"""

from __future__ import annotations

from poise.dashboard.contexts import SourceContext
from poise.dashboard.numbers import LABEL_CHARACTERS, TEXT_CHARACTERS, age, seconds, shortened
from poise.dashboard.observation import ExporterMode, Observation
from poise.dashboard.texts import Texts
from poise.exporter import metrics
from poise.exporter.checks.thresholds import LOADING_GRACE
from poise.history.recent import WINDOW

#: In scrape intervals: younger is live, then late, then stale (or down when the last attempt failed). Two and a bit, so that one
#: slow scrape is no news; six is half a minute at the default interval.
LIVE_INTERVALS = 2.2
LATE_INTERVALS = 6.0
#: Seconds. The exporter reads the node every second; a snapshot this old means that its sampler hangs.
SNAPSHOT_LATE = 15.0


def exporter_source(observation: Observation, texts: Texts) -> SourceContext:
    """The exporter's freshness."""
    attempt, newest, now = observation.window.attempt, observation.window.newest, observation.now
    error = shortened(attempt.error, TEXT_CHARACTERS) if attempt else ""
    if newest is None:
        if observation.exporter.mode is not ExporterMode.ATTACHED or attempt is None:
            return _source(texts.exporter, "waiting", texts.source_never.format(error=error) if error else texts.source_first, texts)
        return _source(texts.exporter, "down", texts.source_never.format(error=error), texts)
    old = max(0.0, now - newest.at)
    if error:
        state = "late" if old <= LIVE_INTERVALS * observation.interval else "down"
        return _source(texts.exporter, state, texts.source_failed.format(age=age(old), error=error), texts)
    if old > LATE_INTERVALS * observation.interval:
        return _source(texts.exporter, "stale", texts.source_old.format(age=age(old)), texts)
    if old > LIVE_INTERVALS * observation.interval:
        return _source(texts.exporter, "late", texts.source_old.format(age=age(old)), texts)
    snapshot = observation.window.one(metrics.SNAPSHOT_AGE.name)
    if snapshot is not None and snapshot > SNAPSHOT_LATE:
        return _source(texts.exporter, "late", texts.snapshot_old.format(age=age(snapshot)), texts)
    return _source(texts.exporter, "live", texts.source_live.format(age=age(old), duration=seconds(newest.duration)), texts)


def engine_source(observation: Observation, engine: str, exporter: SourceContext, texts: Texts) -> SourceContext:
    """An engine's freshness: never better than that of the exporter that tells of it."""
    window = observation.window
    name = shortened(engine, LABEL_CHARACTERS)
    up = window.one(metrics.ENGINE_UP.name, engine=engine)
    process = window.one(metrics.ENGINE_PROCESS_UP.name, engine=engine)
    if up == 1.0:
        if exporter.state != "live":
            return _source(name, "stale" if exporter.state == "down" else exporter.state, exporter.detail, texts)
        took = window.one(metrics.ENGINE_SCRAPE_DURATION.name, engine=engine)
        detail = texts.engine_live_plain if took is None else texts.engine_live.format(duration=seconds(took))
        return _source(name, "live", detail, texts)
    if up is None and process == 1.0:
        # The exporter publishes nothing about a page that it has no address for.
        return _source(name, "unknown", texts.engine_without_address, texts)
    if process == 0.0:
        return _source(name, "down", texts.engine_gone, texts)
    if process == 1.0:
        if is_loading(observation, engine):
            return _source(name, "loading", texts.engine_loading, texts)
        return _source(name, "down", texts.engine_silent, texts)
    return _source(name, "down", texts.engine_down, texts)


def is_loading(observation: Observation, engine: str) -> bool:
    """Whether an engine whose process lives and whose page is silent has never answered and started not long ago."""
    window = observation.window
    for series in window.select(metrics.ENGINE_UP.name, engine=engine):
        if any(point.value == 1.0 for point in window.points(series, WINDOW)):
            return False
    started = window.one(metrics.ENGINE_START_TIME.name, engine=engine)
    return started is None or observation.now - started < LOADING_GRACE


def _source(name: str, state: str, detail: str, texts: Texts) -> SourceContext:
    return SourceContext(name, state, texts.freshness[state], detail)
