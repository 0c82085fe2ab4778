"""Carries a run out: warm-up, each step with the exporter watched, saved at the end.

Owns the order of things. What is sent is in profile.py and workload.py, what becomes of it in figures.py, usage.py and run.py.
Ctrl-C ends the client at once. Whole steps that are behind it are saved, and the run says that it was interrupted; half a step is
not: `vllm bench serve` tells its figures at the end alone.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from poise.testbed import load, model, processes
from poise.testbed.bench import client, facts, figures, run, usage, warmup, watch
from poise.testbed.bench.observe import NodePage
from poise.testbed.bench.profile import LoadProfile
from poise.testbed.bench.run import RunFacts, Step
from poise.testbed.bench.workload import StepPlan, plan_workload, tokenizer_fingerprint
from poise.testbed.deployment import Deployment
from poise.testbed.environment import Note
from poise.testbed.errors import TestbedError
from poise.testbed.files import read_json_object
from poise.testbed.piping import run_tied
from poise.testbed.plan import DeploymentPlan
from poise.testbed.progress import Progress
from poise.testbed.request import authorization

# From its start to its first line the client imports torch: seconds, a minute on a machine that is out of breath. Between two requests
# that end there may be minutes.
SILENCE_SECONDS = 900.0
# A step that no exporter could watch says so.
NO_EXPORTER = "the deployment was brought up without an exporter"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Where a run was saved, and its content."""

    path: Path
    content: dict[str, Any]


def run_profile(
    deployment: Deployment,
    profile: LoadProfile,
    runs: Path,
    progress: Progress,
    environ: Mapping[str, str],
    direct: str | None = None,
    say: Callable[[str], None] = lambda _: None,
    wall: Callable[[], float] = time.time,
) -> Outcome:
    """Drives one profile and saves the run in the folder `runs`. `direct` names an engine to be asked past the router, `say` hears
    where the whole steps of an interrupted run are.

    Raises TestbedError: the client failed (with its last words), or all requests failed. KeyboardInterrupt goes on up;
    what was whole is saved before.
    """
    plan = deployment.plan
    url = plan.url if direct is None else deployment.engine(direct).url
    served = _tokenizer(plan)
    _check_context(plan, profile)
    versions = facts.installed(plan.environment)
    workload = plan_workload(profile, versions.get("vllm", "unknown"), tokenizer_fingerprint(served))
    read = None if plan.exporter_url is None else watch.reader(plan.exporter_url)
    page, began = _page(read), wall()

    def run_facts() -> RunFacts:
        """With the cards as the exporter knows them now: of a deployment that just came up it may not have found the processes before."""
        cards = _card_facts(plan, _page(read)) or _card_facts(plan, page)
        driver = "" if page is None else page.driver
        return RunFacts(
            workload=workload,
            deployment=facts.deployment_facts(plan, direct),
            versions=facts.versions(plan, driver, plan.simulated_cards > 0),
            machine=facts.machine(),
            cards=cards,
            simulated=plan.simulated_cards > 0 or plan.build == "cpu",
            began=began,
        )

    if profile.warmup_requests:
        _warm_up(plan, url, profile, progress, environ)
    steps: list[Step] = []
    interrupted = True
    try:
        for step_plan in workload.steps:
            name = f"{profile.name} {step_plan.rate:g} requests/s" if step_plan.rate is not None else profile.name
            with progress.step(name, f"starting vllm bench serve, {step_plan.requests} requests") as note:
                steps.append(_drive(deployment, plan, url, served, profile, step_plan, direct, read, environ, note, wall))
                note(_result_words(steps[-1]), fraction=1.0)
            if run.saturated(steps[-1], run.unloaded_seconds(steps)):
                break
        interrupted = False
    finally:
        # After an error, too: what was whole is worth as much.
        outcome = Outcome(*run.save(runs, run_facts(), steps, interrupted)) if steps else None
        if outcome is not None and interrupted:
            say(f"{len(steps)} of {len(workload.steps)} steps were whole and are kept in {outcome.path}")
    if outcome is None:
        raise TestbedError(f"profile {profile.name} has no step")
    return outcome


def _drive(
    deployment: Deployment,
    plan: DeploymentPlan,
    url: str,
    served: str,
    profile: LoadProfile,
    step: StepPlan,
    direct: str | None,
    read: watch.Read | None,
    environ: Mapping[str, str],
    note: Note,
    wall: Callable[[], float],
) -> Step:
    watching = None if read is None else watch.Watch(read, wall)
    times = [wall(), wall()]

    def line(text: str) -> None:
        event = client.read_line(text, step.requests)
        if event is None:
            return
        if event.kind == "started":
            if watching is not None:
                watching.began()
            times[0] = wall()
        elif event.kind == "ended":
            times[1] = wall()
            if watching is not None:
                watching.ended()
        else:
            seconds = max(wall() - times[0], 1e-3)
            words = f"{event.done} of {step.requests} requests, {event.done / seconds:.1f} requests/s"
            note(words, fraction=event.done / step.requests)

    def tick() -> None:
        note()
        if watching is not None:
            watching.look()

    with tempfile.TemporaryDirectory(prefix="bench-", dir=deployment.layout.temporary) as folder:
        command = client.bench_command(plan, url, served, profile, step, Path(folder))
        environment = client.bench_environment(plan, deployment.layout, environ)
        status, lines = run_tied(command, environment, line, tick, silence=SILENCE_SECONDS)
        result = read_json_object(Path(folder) / client.RESULT_NAME)
    if status != 0 or result is None:
        raise TestbedError(f"`vllm bench serve` ended with status {status}: {client.last_words(lines)}")
    seen = figures.read_result(result)
    if not seen.completed:
        raise TestbedError(f"all {seen.failed} requests to {url} failed: {next(iter(seen.errors), client.last_words(lines))}")
    observed, reason = None, NO_EXPORTER
    if watching is not None:
        note("reading the exporter's counters")
        try:
            observed, reason = _observed(deployment, plan, watching, seen, direct), ""
        except TestbedError as error:
            reason = str(error)
    return Step(step, times[0], times[1], seen, observed, reason or None)


def _observed(
    deployment: Deployment, plan: DeploymentPlan, watching: watch.Watch, seen: figures.StepFigures, direct: str | None
) -> usage.Usage:
    tokens = (seen.input_tokens, seen.output_tokens)
    meant = {engine.name: engine.gpus for engine in plan.healthy}
    exporter = deployment.record("exporter")

    def wait(seconds: float) -> None:
        processes.wait_gone([] if exporter is None else [exporter.identity], seconds)

    pages, settled = watching.settle(lambda before, after: usage.reached(plan.engines, direct, before, after, tokens), wait)
    planned = [(engine, meant.get(engine.name, engine.gpus)) for engine in plan.engines]
    return usage.usage(pages, planned, seen.duration_seconds, tokens, settled)


def _warm_up(plan: DeploymentPlan, url: str, profile: LoadProfile, progress: Progress, environ: Mapping[str, str]) -> None:
    settings = load.LoadSettings(
        url=url,
        model=plan.served_name,
        concurrency=profile.arrival.concurrency or profile.warmup_requests,
        requests=profile.warmup_requests,
        prompt_words=profile.prompts.prefix_tokens + profile.prompts.input_tokens,
        max_tokens=profile.prompts.output_tokens,
        seed=profile.seed,
        headers=authorization(environ),
    )
    with progress.step("warm-up", f"{profile.warmup_requests} requests") as note:
        result = warmup.warm_up(settings, lambda done: note(f"{done} of {settings.requests} requests"))
        note(f"{result.finished} requests, {result.failed} failed", fraction=1.0)


def _tokenizer(plan: DeploymentPlan) -> str:
    """Where the client finds the model's tokenizer: the folder of the tiny model, else what is served."""
    return str(model.make_tiny(plan.environment.parent / "models")) if plan.model == model.TINY else plan.model


def _page(read: watch.Read | None) -> NodePage | None:
    """What the exporter shows; None when it is not there, which each step says for itself."""
    try:
        return None if read is None else read()
    except TestbedError:
        return None


def _check_context(plan: DeploymentPlan, profile: LoadProfile) -> None:
    """Raises TestbedError when a prompt with its answer cannot fit into the model's context, before anything is sent."""
    longest = profile.prompts.longest
    for engine in plan.engines:
        told, _ = facts.told_arguments(facts.engine_words(plan, engine))
        limit = told.get("--max-model-len", "")
        if limit.isdecimal() and longest > int(limit):
            raise TestbedError(
                f"profile {profile.name} needs up to {longest} tokens for a request and {engine.name} takes {limit} (--max-model-len): "
                "give less with --input-tokens, --output-tokens, --prefix-tokens or --spread"
            )


def _card_facts(plan: DeploymentPlan, page: NodePage | None) -> list[Mapping[str, object]]:
    """The cards of the node that the deployment's engines see."""
    if page is None:
        return []
    ports = [engine.port for engine in plan.engines]
    seen = {place.uuid for port in ports if port in page.engines for place in page.engines[port].places if place.use != "other"}
    cards = sorted((card for card in page.cards.values() if card.uuid in seen), key=lambda card: card.gpu)
    return [{"gpu": card.gpu, "uuid": card.uuid, "name": card.name} for card in cards]


def _result_words(step: Step) -> str:
    seen = step.figures
    failed = f", {seen.failed} failed" if seen.failed else ""
    return f"{seen.completed} requests in {seen.duration_seconds:.1f} s, {seen.output_tokens_per_second:.0f} output tokens/s{failed}"
