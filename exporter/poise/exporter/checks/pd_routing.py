"""Check `pd_routing`: the router sends prefill to prefill engines and decode to decode engines, by its list and by what the engines count."""

from __future__ import annotations

from collections.abc import Iterator

from poise.exporter import metrics as m
from poise.exporter.checks import thresholds as t
from poise.exporter.checks import words
from poise.exporter.checks.pools import SPLIT_ROLES, Split, names, prompt_tokens, splits
from poise.exporter.checks.result import CheckResult, Line, State
from poise.exporter.checks.window import Window
from poise.exporter.engines.kv_transfer import moves_between_engines
from poise.exporter.snapshot import Engine, NodeSnapshot, Role

NAME = "pd_routing"
TITLE = "Router sends each phase to its role"
_LINE = Line(NAME, TITLE)


def check(snapshot: NodeSnapshot, window: Window) -> Iterator[CheckResult]:
    """One result per deployment that splits."""
    for split in splits(snapshot):
        yield _by_list(split) or _by_counts(split, window.longest())


def _by_list(split: Split) -> CheckResult | None:
    """What the router's own list shows, or None when it fits the engines."""
    known = {engine.identity.engine: engine for engine in split.engines}
    for router in split.routers:
        evidence = {backend.engine or backend.url: str(backend.role) for backend in router.backends}
        if router.up and router.backends and not router.disaggregated and all(split.pool(role) for role in SPLIT_ROLES):
            return _LINE.failed(
                State.PROBLEM,
                f"router {router.name} sends whole requests to engines that only prefill or only decode",
                split.about,
                evidence,
                cause="it was not started for disaggregated prefill",
                fix="start it with --vllm-pd-disaggregation --prefill URL --decode URL (vllm-router), or use a router that splits",
            )
        for backend in router.backends:
            engine = known.get(backend.engine)
            if engine is None or engine.identity.role_source == "router" or backend.role not in SPLIT_ROLES:
                continue
            if engine.identity.role in SPLIT_ROLES and engine.identity.role is not backend.role:
                return _LINE.failed(
                    State.PROBLEM,
                    f"router {router.name} sends {backend.role} to {backend.engine}, which was started for {engine.identity.role}",
                    split.about,
                    evidence,
                    cause=f"the engine's role is from its {engine.identity.role_source} and the router's list says otherwise",
                    fix="exchange the addresses in the router's command line, or the kv_role in --kv-transfer-config",
                )
    return None


def _by_counts(split: Split, part: Window) -> CheckResult:
    pools = {role: split.pool(role) for role in SPLIT_ROLES}
    finished = {role: _sum(part, engines, m.ENGINE_REQUESTS_FINISHED) for role, engines in pools.items()}
    generated = {role: _sum(part, engines, m.ENGINE_GENERATION_TOKENS) for role, engines in pools.items()}
    for role in SPLIT_ROLES:
        if finished[role] is None:  # its engines are elsewhere: the router counts what it sent them
            finished[role] = _of_routers(part, split, m.ROUTER_REQUESTS, role)
    evidence = {f"{role}, finished": f"{count:.0f}" for role, count in finished.items() if count is not None}
    failing = _router_errors(split, part, evidence)
    if failing is not None:
        return failing
    span = f"in the last {part.seconds:.0f} s"
    at_prefill, at_decode = finished[Role.PREFILL], finished[Role.DECODE]
    made = generated[Role.PREFILL]
    if at_prefill is not None and made is not None and at_prefill >= t.ROUTED_REQUESTS and made > t.PREFILL_TOKENS * at_prefill:
        return _LINE.failed(
            State.WATCH,
            f"prefill engines generated {made / at_prefill:.0f} tokens per request {span}",
            split.about,
            evidence,
            cause="clients reach them directly, or the router does not ask them for max_tokens=1",
            fix=f"close {names(pools[Role.PREFILL])} to clients; check the router's prefill request",
        )
    if at_prefill is not None and at_decode is not None:
        computed = _computed_share(pools[Role.DECODE], part)
        # Answers take their time: what decode finishes now may have passed prefill before the window. Such prompts it does not compute.
        if at_decode >= t.ROUTED_REQUESTS and at_prefill == 0 and computed != 0:
            return _LINE.failed(
                State.PROBLEM,
                f"decode answered {at_decode:.0f} requests {span} and prefill none",
                split.about,
                evidence,
                cause="requests go past prefill: clients reach decode directly, or the router decides for decode only",
                fix=f"send clients to the router, not to {names(pools[Role.DECODE])}; check the router's prefill list and its threshold",
            )
        past = at_decode - at_prefill
        whole = any(moves_between_engines(engine.config.kv_connector or "") for engine in pools[Role.DECODE])
        if past >= t.ROUTED_REQUESTS and whole and computed is not None and computed > t.RECOMPUTED_SHARE:
            return _LINE.failed(
                State.WATCH,
                f"{past:.0f} of the {at_decode:.0f} requests that decode answered {span} did not pass prefill",
                split.about,
                evidence | {"prompt tokens computed by decode": words.percent(computed)},
                cause="some clients reach decode directly, or the router decides for decode only",
                fix=f"send clients to the router, not to {names(pools[Role.DECODE])}; check the router's threshold",
            )
        if at_prefill >= t.ROUTED_REQUESTS and at_decode == 0 and not generated[Role.DECODE]:
            return _LINE.failed(
                State.PROBLEM,
                f"prefill answered {at_prefill:.0f} requests {span} and decode none",
                split.about,
                evidence,
                cause="prefilled requests do not reach decode",
                fix="read the router's log; check that it reaches the decode engines and that their KV transfers succeed",
            )
    if all(count is None for count in finished.values()):
        return _LINE.unknown("no engine of this deployment has told its counters twice", split.about, evidence)
    if not any(finished.values()):
        return _LINE.passed(
            f"no request {span}"
            + ("; the router's list fits the engines" if any(router.up and router.backends for router in split.routers) else ""),
            split.about,
            evidence,
        )
    counted = ", ".join(f"{count:.0f} at {role}" for role, count in finished.items() if count is not None)
    return _LINE.passed(f"requests {span}: {counted}", split.about, evidence)


def _computed_share(decode: tuple[Engine, ...], part: Window) -> float | None:
    """The share of its prompt tokens that decode computed itself, 0 when it took in none; None when it tells no source."""
    prompts = prompt_tokens(decode, part)
    return prompts.get("local_compute", 0.0) / max(1.0, sum(prompts.values())) if prompts else None


def _router_errors(split: Split, part: Window, evidence: dict[str, str]) -> CheckResult | None:
    """Fails when more than a few of the requests that the routers sent on failed."""
    for role in SPLIT_ROLES:
        errors = _of_routers(part, split, m.ROUTER_ERRORS, role) or 0.0
        sent = max(_of_routers(part, split, m.ROUTER_REQUESTS, role) or 0.0, errors)
        if errors >= t.FAILED_REQUESTS and errors / sent > t.FAILED_REQUEST_SHARE:
            return _LINE.failed(
                State.PROBLEM,
                f"{errors:.0f} of {sent:.0f} requests that the router sent to {role} failed in the last {part.seconds:.0f} s",
                split.about,
                evidence | {f"{role}, failed": f"{errors:.0f}"},
                cause=f"{role} refuses them, ends them with an error, or is not reached",
                fix=f"read the logs of the router and of {names(split.pool(role)) if split.pool(role) else f'the {role} engines'}",
            )
    return None


def _of_routers(part: Window, split: Split, metric: m.Metric, role: Role) -> float | None:
    """Growth of a router's counter for a role; None when no router tells."""
    grown = [part.increase(router.name, metric, str(role)) for router in split.routers]
    known = [value for value in grown if value is not None]
    return sum(known) if known else None


def _sum(part: Window, engines: tuple[Engine, ...], metric: m.Metric) -> float | None:
    """Growth over a pool; None when nobody of it told."""
    grown = [part.increase(engine.identity.engine, metric) for engine in engines]
    known = [value for value in grown if value is not None]
    return sum(known) if known else None
