"""Names and deployments of routers; which engines they group; routers that restart, vanish, or are two before one deployment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from poise.exporter import metrics as m
from poise.exporter.engines.identity import KEEP_GONE
from poise.exporter.engines.table import ProcessKey
from poise.exporter.router_specs import RouterSpec
from poise.exporter.routers.addresses import Assignment, KnownEngine
from poise.exporter.routers.poll import RouterPoll
from poise.exporter.routers.roster import ROUTER_GRACE, RouterRoster, SeenRouter
from poise.exporter.setting_values import is_loopback
from poise.exporter.snapshot import Role, Router, RouterBackend, RouterKind

P, D = "http://127.0.0.1:8100", "http://127.0.0.1:8200"
TOLD = (RouterBackend(P, Role.PREFILL, True), RouterBackend(D, Role.DECODE, False))
ENGINES = (KnownEngine("node-a:8100", "127.0.0.1", 8100, True), KnownEngine("node-a:8200", "127.0.0.1", 8200, True))
URL = "http://127.0.0.1:30000"


def answered(backends: tuple[RouterBackend, ...] | None = TOLD, url: str = URL, **counts: float) -> RouterPoll:
    known = {(m.ROUTER_REQUESTS, Role(role)): value for role, value in counts.items()}
    return RouterPoll(True, "", url=url, kind=RouterKind.VLLM_ROUTER, backends=backends, disaggregated=True, counts=known, asked=True)


DOWN = RouterPoll(error="connection refused", asked=True)


def seen(poll: RouterPoll, *, pid: int = 7, url: str | None = URL, told: tuple[RouterBackend, ...] = ()) -> SeenRouter:
    return SeenRouter(ProcessKey(pid, pid), RouterKind.VLLM_ROUTER, url, poll, told=told)


def roster(*specs: RouterSpec) -> RouterRoster:
    return RouterRoster("node-a", specs, lambda host: is_loopback(host) or host == "node-a")


def step(
    routers: RouterRoster,
    *found: SeenRouter,
    now: float = 0.0,
    told: Mapping[str, str] | None = None,
    asked: Mapping[str, RouterPoll] | None = None,
) -> Mapping[str, Assignment]:
    routers.update(found, asked or {}, now)
    return routers.group(ENGINES, told or {}, now)


def one(routers: RouterRoster) -> Router:
    (router,) = routers.published()
    return router


def test_a_router_is_named_by_node_and_port_and_groups_its_engines_under_that_name() -> None:
    routers = roster()
    assigned = step(routers, seen(answered(prefill=3.0)))
    assert assigned == {
        "node-a:8100": Assignment("node-a:30000", Role.PREFILL),
        "node-a:8200": Assignment("node-a:30000", Role.DECODE),
    }
    router = one(routers)
    assert (router.name, router.deployment, router.up, router.pid, router.disaggregated) == ("node-a:30000", "node-a:30000", True, 7, True)
    assert router.readings == {
        m.ROUTER_INFO: {("vllm-router",): 1.0},
        m.ROUTER_UP: {(): 1.0},
        m.ROUTER_BACKEND_INFO: {("node-a:8100", "prefill", "true"): 1.0, ("node-a:8200", "decode", "false"): 1.0},
        m.ROUTER_REQUESTS: {("prefill",): 3.0},
    }


def test_a_configured_router_has_its_name_and_deployment() -> None:
    routers = roster(RouterSpec("front", "http://node-a:30000", "chat"))
    assigned = step(routers, seen(answered()))
    assert (one(routers).name, one(routers).deployment) == ("front", "chat")
    assert assigned["node-a:8100"].deployment == "chat"
    assert routers.only_by_url() == {}


def test_a_router_is_of_the_deployment_that_its_engines_were_given() -> None:
    routers = roster()
    assigned = step(routers, seen(answered()), told={"node-a:8100": "chat"})
    assert one(routers).deployment == "chat"
    assert assigned["node-a:8200"].deployment == "chat"


def test_a_router_before_engines_of_several_deployments_keeps_its_own_name() -> None:
    routers = roster()
    step(routers, seen(answered()), told={"node-a:8100": "chat", "node-a:8200": "code"})
    assert one(routers).deployment == "node-a:30000"


def test_a_second_router_before_the_same_engines_is_of_their_deployment() -> None:
    routers = roster()
    step(routers, seen(answered()))
    other = "http://127.0.0.1:31000"
    assigned = step(routers, seen(answered()), seen(answered(url=other), pid=8, url=other), now=2.0)
    assert [(router.name, router.deployment) for router in routers.published()] == [
        ("node-a:30000", "node-a:30000"),
        ("node-a:31000", "node-a:30000"),
    ]
    assert {assignment.deployment for assignment in assigned.values()} == {"node-a:30000"}


def test_a_silent_router_says_so_and_groups_as_before() -> None:
    routers = roster()
    step(routers, seen(answered(decode=1.0)))
    assigned = step(routers, seen(DOWN), now=2.0)
    router = one(routers)
    assert (router.up, router.backends, router.error) == (False, (), "connection refused")
    assert router.readings == {m.ROUTER_INFO: {("vllm-router",): 1.0}, m.ROUTER_UP: {(): 0.0}}
    assert assigned["node-a:8100"].deployment == "node-a:30000"


def test_a_router_that_went_stays_down_for_an_hour_and_a_restarted_one_takes_over() -> None:
    routers = roster()
    step(routers, seen(answered()))
    assert step(routers, now=10.0)["node-a:8100"] == Assignment("node-a:30000", Role.PREFILL)
    assert (one(routers).up, one(routers).pid, one(routers).error) == (False, None, "its process is gone")
    step(routers, seen(answered(), pid=9), now=20.0)
    assert (one(routers).up, one(routers).pid) == (True, 9)
    step(routers, now=30.0)
    assert step(routers, now=30.0 + KEEP_GONE) != {}
    assert step(routers, now=31.0 + KEEP_GONE) == {}
    assert routers.published() == ()


def test_a_living_router_is_heard_before_one_that_went() -> None:
    routers = roster()
    step(routers, seen(answered()))
    step(routers, now=10.0)
    other = "http://127.0.0.1:31000"
    backends = (RouterBackend(P, Role.MIXED, True),)
    assigned = step(routers, seen(answered(backends, other), pid=8, url=other), now=20.0)
    assert assigned["node-a:8100"] == Assignment("node-a:31000", Role.MIXED)
    assert assigned["node-a:8200"].deployment == "node-a:30000"


def test_a_configured_router_stays_for_ever() -> None:
    routers = roster(RouterSpec("front", "http://node-a:30000"))
    step(routers, seen(answered()))
    step(routers, now=10.0, asked={"front": DOWN})
    step(routers, now=10.0 + 2 * KEEP_GONE, asked={"front": DOWN})
    assert (one(routers).name, one(routers).up) == ("front", False)


def test_a_router_that_is_only_a_url_is_asked_there_and_its_loopback_is_its_own_node() -> None:
    routers = roster(RouterSpec("front", "http://node-b:30000", "chat"))
    routers.update([], {}, 0.0)
    assert list(routers.only_by_url()) == ["front"]
    assigned = step(routers, asked={"front": answered(url="http://node-b:30000")}, now=1.0)
    assert one(routers).up
    assert set(assigned) == {"node-b:8100", "node-b:8200"}


@pytest.mark.parametrize("told", [(), TOLD])
def test_engines_wait_a_moment_for_a_router_that_has_not_told_them(told: tuple[RouterBackend, ...]) -> None:
    routers = roster()
    step(routers, seen(DOWN, told=told))
    assert routers.is_undecided(1.0) is (told == ())
    assert not routers.is_undecided(ROUTER_GRACE + 0.1)
    assert not routers.is_undecided(-3600.0)  # the clock was set back
    step(routers, seen(answered(), told=told), now=2.0)
    assert not routers.is_undecided(2.0)


def test_a_router_whose_port_is_not_known_is_not_shown_and_engines_wait_for_it_a_moment() -> None:
    routers = roster()
    assert step(routers, seen(DOWN, url=None)) == {}
    assert routers.published() == ()
    assert routers.is_undecided(1.0)
    assert routers.overdue(1.0) == frozenset()
    step(routers, seen(DOWN, url=None), now=ROUTER_GRACE + 1)
    assert not routers.is_undecided(ROUTER_GRACE + 1)
    assert routers.overdue(ROUTER_GRACE + 1) == {ProcessKey(7, 7)}
    step(routers, seen(answered()), now=ROUTER_GRACE + 2)
    assert one(routers).up
    assert routers.overdue(ROUTER_GRACE + 2) == frozenset()


def test_a_silent_router_is_shown_after_a_moment_and_keeps_its_labels_when_it_answers() -> None:
    routers = roster(RouterSpec("front", "http://node-b:30000"))
    step(routers, asked={"front": DOWN})
    assert routers.published() == ()
    step(routers, asked={"front": DOWN}, now=ROUTER_GRACE + 1)
    assert (one(routers).deployment, one(routers).up, one(routers).kind) == ("front", False, None)
    assert one(routers).readings[m.ROUTER_INFO] == {("",): 1.0}
    step(routers, asked={"front": answered()}, now=ROUTER_GRACE + 2, told={"node-b:8100": "chat"})
    assert (one(routers).deployment, one(routers).up) == ("front", True)


def test_a_router_is_not_called_down_before_it_was_asked() -> None:
    routers = roster()
    assigned = step(routers, seen(RouterPoll(), told=TOLD))
    assert assigned["node-a:8100"].deployment == "node-a:30000"
    assert routers.published() == ()
    step(routers, seen(answered()), now=2.0)
    step(routers, seen(RouterPoll(), pid=9), now=4.0)  # started again: it was seen up, and is not now
    assert not one(routers).up


def test_what_a_router_does_not_tell_now_is_not_shown_and_still_groups() -> None:
    routers = roster()
    step(routers, seen(answered()))
    assigned = step(routers, seen(answered(backends=None)), now=2.0)
    assert (one(routers).up, one(routers).backends) == (True, ())
    assert assigned["node-a:8100"].deployment == "node-a:30000"


@pytest.mark.parametrize(
    ("role", "models", "expected"),
    [
        (Role.MIXED, ("qwen", "qwen"), {"node-a:30000"}),
        (Role.MIXED, ("qwen", "llama"), {"node-a:30000/qwen", "node-a:30000/llama"}),
        (Role.MIXED, ("qwen", ""), {"node-a:30000"}),
        (Role.DECODE, ("qwen", "llama"), {"node-a:30000"}),
    ],
)
def test_a_deployment_answers_for_one_model(role: Role, models: tuple[str, str], expected: set[str]) -> None:
    routers = roster()
    backends = (RouterBackend(P, role), RouterBackend(D, role))
    routers.update([seen(answered(backends))], {}, 0.0)
    engines = [replace(engine, model=model) for engine, model in zip(ENGINES, models, strict=True)]
    assert {assignment.deployment for assignment in routers.group(engines, {}, 0.0).values()} == expected


def test_two_processes_behind_one_address_are_one_router() -> None:
    routers = roster()
    step(routers, seen(answered()), seen(answered(), pid=8))
    assert one(routers).pid == 7


def test_an_engine_that_stands_twice_is_unhealthy_when_either_is() -> None:
    routers = roster()
    twice = (RouterBackend(P, Role.MIXED, False), RouterBackend("http://localhost:8100", Role.MIXED, True))
    step(routers, seen(answered(twice)))
    assert one(routers).readings[m.ROUTER_BACKEND_INFO] == {("node-a:8100", "mixed", "false"): 1.0}
