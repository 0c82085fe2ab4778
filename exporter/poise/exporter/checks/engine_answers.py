"""Check `engine_answers`: each engine's process lives and its page answers; one that loads is said to load."""

from __future__ import annotations

from collections.abc import Iterator

from poise.exporter.checks import thresholds as t
from poise.exporter.checks import words
from poise.exporter.checks.result import CheckResult, State, Status
from poise.exporter.checks.window import Window
from poise.exporter.snapshot import Engine, NodeSnapshot

NAME = "engine_answers"
TITLE = "Engine alive and answering"


def is_loading(engine: Engine, now: float) -> bool:
    """Whether the engine's process lives, has not answered yet in this life, and is young enough to be loading.

    One without an address here cannot show that it has loaded, so it counts as loading for as long as that may take: checks wait with it.
    """
    observed = engine.observed
    if observed.page is not None or observed.process_up is not True:
        return False
    if observed.start_time is None or now - observed.start_time > t.LOADING_GRACE:
        return False
    return observed.last_page_at is None or observed.last_page_at < observed.start_time


def check(snapshot: NodeSnapshot, window: Window) -> Iterator[CheckResult]:
    """One result per engine."""
    del window
    for engine in snapshot.engines:
        yield _check(engine, snapshot.taken_at)


def _check(engine: Engine, now: float) -> CheckResult:
    observed, name = engine.observed, engine.identity.engine
    evidence = {"address": observed.url or "unknown", "process": str(observed.pid) if observed.process_up else "gone"}
    if observed.process_up is None:
        del evidence["process"]
    if observed.page_error:
        evidence["page"] = observed.page_error
    if observed.page is not None:
        version = f"vLLM {observed.page.version}" if observed.page.version else "vLLM of unknown version"
        return CheckResult(NAME, TITLE, Status.PASS, State.OK, f"{version} answers", engine=name, evidence=evidence)
    if observed.process_up is False:
        sentence = "the engine's process is gone"
        if observed.gone_since is not None:
            sentence = f"the engine's process went {now - observed.gone_since:.0f} s ago"
        return CheckResult(
            NAME,
            TITLE,
            Status.FAIL,
            # Whoever names an engine wants it to run; one that was found may have been stopped on purpose.
            State.PROBLEM if engine.identity.discovered == "config" else State.WATCH,
            sentence,
            engine=name,
            cause="vLLM ended: when a worker dies the whole server exits within seconds",
            fix="read the last lines of its log; look for an out-of-memory kill (`dmesg | grep -i kill`) and XIDs; start it again",
            evidence=evidence,
        )
    if observed.url is None:
        # A headless node of a multi-node engine, a Unix socket, another network namespace: silence says nothing about the engine.
        sentence = observed.page_error or "the engine has no address here that could be asked"
        return CheckResult(NAME, TITLE, Status.UNKNOWN, State.OK, sentence, engine=name, evidence=evidence)
    if is_loading(engine, now):
        age = now - (observed.start_time or now)
        return CheckResult(
            NAME,
            TITLE,
            Status.UNKNOWN,
            State.OK,
            f"loading since {age:.0f} s ({words.parallelism(engine)})",
            engine=name,
            evidence=evidence,
        )
    answered_before = observed.last_page_at is not None
    silent = now - observed.last_page_at if observed.last_page_at is not None else None
    return CheckResult(
        NAME,
        TITLE,
        Status.FAIL,
        State.WATCH if silent is not None and silent < t.PROBLEM_WINDOW else State.PROBLEM,
        f"the engine's page does not answer{f' since {silent:.0f} s' if silent is not None else ''}",
        engine=name,
        cause=observed.page_error or "no answer",
        fix="look at the server's log; a collective that hangs or a worker that died shows there"
        if answered_before
        else "check the address, and that nothing between exporter and engine refuses the connection",
        evidence=evidence,
    )
