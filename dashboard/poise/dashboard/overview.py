"""Builds the whole context of the page `/` from one observation. Pure."""

from __future__ import annotations

from datetime import datetime

from poise.dashboard.cards import unowned_cards
from poise.dashboard.contexts import OverviewContext, ProgressContext, StepContext
from poise.dashboard.engines import deployments
from poise.dashboard.freshness import exporter_source
from poise.dashboard.numbers import TEXT_CHARACTERS, age, shortened
from poise.dashboard.observation import Observation
from poise.dashboard.texts import Texts
from poise.dashboard.verdict import MAX_LINES, checks, counts, verdict
from poise.exporter import metrics

#: Seconds for which finished work stays on the page.
PROGRESS_DONE = 20.0
#: Seconds without news after which running work is said to be silent. Its writer refreshes the file about once a second.
PROGRESS_QUIET = 15.0


def overview(observation: Observation, texts: Texts) -> OverviewContext:
    """The page for this moment."""
    window = observation.window
    newest = window.newest
    info = next(iter(window.select(metrics.NODE_INFO.name)), None)
    document = observation.checks
    exporter = exporter_source(observation, texts)
    groups = deployments(observation, exporter, texts)
    listed = checks(observation, exporter, texts)
    judged = verdict(observation, exporter, texts)
    at = datetime.fromtimestamp(newest.at).astimezone() if newest else None
    clock = at.strftime("%H:%M:%S") if at else ""
    stale = ""
    if newest is not None and exporter.state in ("down", "stale"):
        stale = texts.stale_text.format(age=age(max(0.0, observation.now - newest.at)), time=clock)
    return OverviewContext(
        node=shortened(info.label("node")) if info else (document.node if document else ""),
        simulated=(info is not None and info.label("simulated") == "true") or (document is not None and document.simulated),
        driver=shortened(info.label("driver"), 40) if info else "",
        as_of=texts.as_of.format(time=clock) if at else "",
        as_of_iso=at.isoformat(timespec="seconds") if at else "",
        stale=stale,
        notice=" ".join(part for part in (observation.exporter.notice, observation.progress_error) if part),
        waiting=newest is None,
        sources=(exporter, *(engine.source for group in groups for engine in group.engines)),
        progress=_progress(observation, texts),
        verdict=judged,
        checks=listed,
        checks_counts=counts(listed, texts),
        # Whatever the verdict had no room for must not be hidden behind a click.
        # A verdict with room left has dropped only what repeats it about the same card.
        checks_open=len(judged.lines) >= MAX_LINES and sum(1 for check in listed if check.status == "fail") > MAX_LINES,
        deployments=groups,
        unowned=unowned_cards(observation, texts),
    )


def _progress(observation: Observation, texts: Texts) -> ProgressContext | None:
    progress = observation.progress
    if progress is None or not progress.steps:
        return None
    silent = observation.now - progress.updated
    if progress.state == "done" and silent > PROGRESS_DONE:
        return None
    steps = tuple(
        StepContext(
            name=step.name,
            state=step.state,
            word=texts.steps[step.state],
            detail=shortened(step.detail, TEXT_CHARACTERS),
            fraction=step.fraction,
            seconds=age(step.seconds) if step.state != "waiting" and step.seconds >= 1 else "",
        )
        for step in progress.steps
    )
    quiet = texts.progress_quiet.format(age=age(silent)) if progress.state == "running" and silent > PROGRESS_QUIET else ""
    return ProgressContext(progress.title, progress.state, steps, quiet)
