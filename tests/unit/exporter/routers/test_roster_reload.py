"""Another list of configured routers while the exporter runs: labels that were published stay while their process lives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from poise.exporter.engines.identity import KEEP_GONE
from poise.exporter.engines.table import ProcessKey
from poise.exporter.router_specs import RouterSpec
from poise.exporter.routers.poll import RouterPoll
from poise.exporter.routers.roster import RouterRoster, SeenRouter
from poise.exporter.setting_values import is_loopback
from poise.exporter.snapshot import RouterKind

FAR = RouterSpec("far", "http://10.0.0.9:30000", "chat")
HERE = RouterSpec("front", "http://127.0.0.1:30000", "chat")
UP = RouterPoll(up=True, asked=True)


def roster(*specs: RouterSpec) -> RouterRoster:
    return RouterRoster("node-a", specs, lambda host: is_loopback(host) or host == "node-a")


def seen(pid: int = 10) -> SeenRouter:
    return SeenRouter(ProcessKey(pid, 1), RouterKind.VLLM_ROUTER, "http://127.0.0.1:30000", UP)


def shown(routers: RouterRoster, now: float, processes: Sequence[SeenRouter] = ()) -> dict[str, str]:
    """Name → deployment of what is published after a scan."""
    routers.update(processes, dict.fromkeys(routers.only_by_url(), UP), now)
    routers.group((), {}, now)
    return {router.name: router.deployment for router in routers.published()}


def test_a_configured_url_comes_changes_and_goes_with_the_list() -> None:
    routers = roster()
    assert shown(routers, 0.0) == {}
    assert routers.replace_specs([FAR]) == ()
    assert shown(routers, 1.0) == {"far": "chat"}
    assert routers.replace_specs([replace(FAR, deployment="code")]) == ()
    assert shown(routers, 2.0) == {"far": "code"}
    assert routers.replace_specs([]) == ()
    assert shown(routers, 3.0) == {}


def test_a_living_router_keeps_its_labels_whatever_the_list_says_now() -> None:
    routers = roster(HERE)
    assert shown(routers, 0.0, [seen()]) == {"front": "chat"}
    for specs in ([replace(HERE, deployment="code")], [replace(HERE, url="http://10.0.0.9:30000")], []):
        assert routers.replace_specs(specs) in (("front",), ())
        assert shown(routers, 1.0, [seen()]) == {"front": "chat"}


def test_a_router_that_is_found_already_is_not_shown_twice_and_gets_its_name_with_its_next_process() -> None:
    routers = roster()
    assert shown(routers, 0.0, [seen()]) == {"node-a:30000": "node-a:30000"}
    assert routers.replace_specs([HERE]) == ("front",)
    assert shown(routers, 1.0, [seen()]) == {"node-a:30000": "node-a:30000"}
    assert shown(routers, 2.0, [seen(pid=11)])["front"] == "chat"


def test_what_is_put_back_on_the_list_while_its_process_lives_is_configured_again() -> None:
    routers = roster(HERE)
    assert shown(routers, 0.0, [seen()]) == {"front": "chat"}
    assert routers.replace_specs([]) == ("front",)
    assert routers.replace_specs([HERE]) == ()
    assert shown(routers, 1.0, [seen()]) == {"front": "chat"}
    assert shown(routers, 2.0 + 2 * KEEP_GONE) == {"front": "chat"}, "a configured router is not forgotten"
    assert routers.replace_specs([]) == ()
    assert shown(routers, 3.0 + 2 * KEEP_GONE) == {}


def test_an_unchanged_list_changes_nothing() -> None:
    routers = roster(FAR, HERE)
    before = shown(routers, 0.0, [seen()])
    assert routers.replace_specs([FAR, HERE]) == ()
    assert shown(routers, 1.0, [seen()]) == before
