"""Names, roles and addresses; latching; engines that vanish, come back, clash, or are configured."""

from __future__ import annotations

from dataclasses import replace

import pytest
from poise.exporter.engine_specs import EngineSpec
from poise.exporter.engines.argv import parse_server
from poise.exporter.engines.discovery import FoundEngine
from poise.exporter.engines.identity import CLASH_GRACE, KEEP_GONE, MOST_GONE, Located, Member, Roster
from poise.exporter.engines.roles import Declared
from poise.exporter.engines.table import ProcessKey
from poise.exporter.engines.urls import url_host, url_of
from poise.exporter.routers.addresses import Assignment
from poise.exporter.setting_values import is_loopback
from poise.exporter.snapshot import EngineIdentity, Role


def engine(*arguments: str, pid: int = 10, ticks: int = 1) -> FoundEngine:
    command = parse_server(["vllm", "serve", "m", *arguments])
    assert command is not None
    return FoundEngine(ProcessKey(pid, ticks), command, command.config, 5.0, (), frozenset({pid}), (pid,))


def located(*arguments: str, port: int | None = 8000, pid: int = 10, ticks: int = 1, reachable: bool = True) -> Located:
    return Located(engine(*arguments, pid=pid, ticks=ticks), port, reachable)


def roster(*specs: EngineSpec) -> Roster:
    return Roster("node-a", specs, lambda host: is_loopback(host) or host == "node-a")


def one(members: tuple[Member, ...]) -> Member:
    (member,) = members
    return member


def test_a_name_is_node_and_port_and_never_loopback() -> None:
    member = one(roster().update([located("--host", "127.0.0.1")], 0.0))
    assert member.identity.engine == member.identity.deployment == "node-a:8000"
    assert member.identity.discovered == "argv"
    assert member.url == "http://127.0.0.1:8000"


@pytest.mark.parametrize(
    ("arguments", "role", "source"),
    [
        ([], Role.MIXED, "default"),
        (["--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"kv_producer"}'], Role.PREFILL, "argv"),
        (["--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"kv_consumer"}'], Role.DECODE, "argv"),
        (["--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'], Role.UNKNOWN, "argv"),
        (["--kv-transfer-config", '{"kv_connector":"LMCacheConnectorV1"}'], Role.UNKNOWN, "argv"),
        (["--config", "v.yaml"], Role.UNKNOWN, "argv"),
        (["--kv-transfer-config", '{"kv_connector":"OffloadingConnector","kv_role":"kv_both"}'], Role.MIXED, "argv"),
        (["--kv-transfer-config", '{"kv_role":"kv_something"}'], Role.UNKNOWN, "argv"),
    ],
)
def test_the_role_is_what_the_command_line_says(arguments: list[str], role: Role, source: str) -> None:
    member = one(roster().update([located(*arguments)], 0.0))
    assert (member.identity.role, member.identity.role_source) == (role, source)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        (None, "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
        ("::", "127.0.0.1"),
        ("localhost", "127.0.0.1"),
        ("127.0.0.9", "127.0.0.1"),
        ("::1", "[::1]"),
        ("10.0.0.5", "10.0.0.5"),
        ("gpu-7.example", "gpu-7.example"),
        ("fd00::7", "[fd00::7]"),
        ("fe80::7%eth0", "[fe80::7%eth0]"),
        # What no server can listen under: anybody may run a process that is called so, which must not end the scan or send us elsewhere.
        ("a[b", "127.0.0.1"),
        ("::x", "127.0.0.1"),
        ("user@example.org", "127.0.0.1"),
        ("example.org/a?", "127.0.0.1"),
        ("\u2100.com", "127.0.0.1"),
        ("fe80::7%a]b", "127.0.0.1"),
    ],
)
def test_the_address_to_ask(host: str | None, address: str) -> None:
    arguments = ["--host", host] if host is not None else []
    assert url_of(engine(*arguments), 8000) == f"http://{address}:8000"


def test_a_tls_server_is_asked_with_tls() -> None:
    assert url_of(engine("--ssl-certfile", "c.pem"), 8443) == "https://127.0.0.1:8443"


def test_an_identity_stays_while_the_process_lives() -> None:
    engines = roster()
    first = one(engines.update([located()], 0.0))
    later = engine("--kv-transfer-config", '{"kv_connector":"C","kv_role":"kv_producer"}')
    assert one(engines.update([Located(later, 8000)], 1.0)).identity == first.identity


def test_an_engine_waits_for_its_port_before_it_is_published() -> None:
    engines = roster()
    assert engines.update([located("--config", "v.yaml", port=None)], 0.0) == ()
    assert one(engines.update([located("--config", "v.yaml", port=9000)], 1.0)).identity.engine == "node-a:9000"


def test_a_vanished_engine_keeps_its_identity_for_an_hour() -> None:
    engines = roster()
    before = one(engines.update([located()], 0.0))
    gone = one(engines.update([], 10.0))
    assert (gone.identity, gone.found, gone.gone_since, gone.start_time) == (before.identity, None, 10.0, 5.0)
    assert one(engines.update([], 10.0 + KEEP_GONE)).gone_since == 10.0
    assert engines.update([], 10.1 + KEEP_GONE) == ()


def test_a_restarted_engine_takes_the_identity_over() -> None:
    engines = roster()
    engines.update([located(pid=10)], 0.0)
    engines.update([], 10.0)
    again = one(engines.update([located(pid=20)], 20.0))
    assert (again.identity.engine, again.gone_since) == ("node-a:8000", None)
    assert again.found is not None
    assert again.found.key.pid == 20
    at_once = one(engines.update([located(pid=30)], 30.0))
    assert at_once.identity.engine == "node-a:8000"


def test_the_same_pid_started_again_is_another_process() -> None:
    engines = roster()
    engines.update([located(ticks=1)], 0.0)
    producer = located("--kv-transfer-config", '{"kv_connector":"C","kv_role":"kv_producer"}', ticks=2)
    assert one(engines.update([producer], 1.0)).identity.role is Role.PREFILL


def test_a_server_started_while_the_old_one_ends_takes_the_name_over() -> None:
    engines = roster()
    engines.update([located(pid=10)], 0.0)
    both = one(engines.update([located(pid=10), located(pid=20)], 10.0))
    assert both.found is not None
    assert both.found.key.pid == 10
    after = one(engines.update([located(pid=20)], 20.0))
    assert after.found is not None
    assert (after.identity.engine, after.found.key.pid) == ("node-a:8000", 20)


def test_two_servers_that_keep_one_port_have_two_names_and_the_second_leaves_no_trace() -> None:
    engines = roster()
    servers = [located(pid=10), located(pid=20), located(pid=30)]
    assert len(engines.update(servers, 0.0)) == 1
    assert len(engines.update(servers, CLASH_GRACE - 1)) == 1
    members = engines.update(servers, CLASH_GRACE)
    assert [member.identity.engine for member in members] == ["node-a:8000", "node-a:8000#2", "node-a:8000#3"]
    assert [member.identity.engine for member in engines.update(servers[:1], CLASH_GRACE + 1)] == ["node-a:8000"]


def test_a_second_start_that_fails_on_the_port_is_never_shown() -> None:
    engines = roster()
    engines.update([located(pid=10)], 0.0)
    engines.update([located(pid=10), located(pid=20)], 5.0)
    assert len(engines.update([located(pid=10)], 30.0)) == 1


def test_a_configured_engine_is_there_before_anything_is_found_and_for_ever() -> None:
    engines = roster(EngineSpec("qwen", "http://10.1.1.1:8000", "chat", Role.DECODE, 2))
    member = one(engines.update([], 0.0))
    assert (member.identity.engine, member.identity.deployment, member.identity.role) == ("qwen", "chat", Role.DECODE)
    assert (member.identity.role_source, member.identity.discovered) == ("config", "config")
    assert one(engines.update([], 10 * KEEP_GONE)).url == "http://10.1.1.1:8000"


def test_a_configured_engine_of_this_node_is_its_process() -> None:
    for url in ("http://127.0.0.1:8000", "http://localhost:8000", "http://node-a:8000", "http://[::1]:8000"):
        engines = roster(EngineSpec("qwen", url))
        member = one(engines.update([located("--kv-transfer-config", '{"kv_connector":"C","kv_role":"kv_consumer"}')], 0.0))
        assert (member.identity.engine, member.identity.role, member.identity.role_source) == ("qwen", Role.DECODE, "argv")
        assert member.url == url
        gone = one(engines.update([], 2 * KEEP_GONE))
        assert (gone.identity.engine, gone.gone_since) == ("qwen", 2 * KEEP_GONE)
        assert one(engines.update([], 9 * KEEP_GONE)).identity.engine == "qwen"
        assert one(engines.update([located(pid=77)], 9 * KEEP_GONE)).identity.engine == "qwen"


def test_a_configured_engine_that_restarts_with_overlap_stays_itself() -> None:
    engines = roster(EngineSpec("qwen", "http://127.0.0.1:8000"))
    engines.update([located(pid=10)], 0.0)
    assert one(engines.update([located(pid=10), located(pid=20)], 1.0)).identity.engine == "qwen"
    after = one(engines.update([located(pid=20)], 2.0))
    assert after.found is not None
    assert (after.identity.engine, after.found.key.pid) == ("qwen", 20)


def test_a_configured_engine_elsewhere_is_not_a_process_here() -> None:
    members = roster(EngineSpec("far", "http://10.1.1.1:8000")).update([located()], 0.0)
    assert [member.identity.engine for member in members] == ["far", "node-a:8000"]
    assert len(roster(EngineSpec("other", "http://127.0.0.1:9000")).update([located()], 0.0)) == 2


def apart(pid: int = 10, address: str | None = "10.0.0.2", port: int | None = 8000) -> Located:
    """A server in a network namespace of its own."""
    return replace(located(pid=pid, reachable=False, port=port), address=address, addresses=frozenset({"10.0.0.2"}), unreachable="no way")


def test_an_engine_in_another_network_namespace_is_asked_where_it_was_reached_and_never_at_our_loopback() -> None:
    engines = roster()
    member = one(engines.update([apart(address=None)], 0.0))
    assert (member.identity.engine, member.url, member.why_no_url) == ("node-a:8000", None, "no way")
    assert one(engines.update([apart()], 2.0)).url == "http://10.0.0.2:8000"
    assert one(roster().update([replace(apart(), address="fd00::2")], 0.0)).url == "http://[fd00::2]:8000"


def test_servers_in_network_namespaces_of_their_own_have_one_port_without_waiting_and_are_not_forgotten() -> None:
    engines = roster()
    names = [member.identity.engine for member in engines.update([located(pid=10), apart(20), apart(30)], 0.0)]
    assert names == ["node-a:8000", "node-a:8000#2", "node-a:8000#3"]
    after = engines.update([located(pid=10), apart(30)], 5.0)
    assert [(member.identity.engine, member.gone_since) for member in after] == [
        ("node-a:8000", None),
        ("node-a:8000#2", 5.0),
        ("node-a:8000#3", None),
    ]
    again = engines.update([located(pid=10), apart(30), apart(40)], 6.0)
    assert [member.found.key.pid for member in again if member.found is not None] == [10, 40, 30]


def test_a_configured_engine_at_an_address_of_a_container_is_its_process() -> None:
    engines = roster(EngineSpec("qwen", "http://10.0.0.2:8000"))
    member = one(engines.update([apart(address=None)], 0.0))
    assert (member.identity.engine, member.url, member.found is not None) == ("qwen", "http://10.0.0.2:8000", True)
    for host in ("127.0.0.1", "node-a"):
        forwarded = one(roster(EngineSpec("qwen", f"http://{host}:8080")).update([replace(apart(), forwarded=frozenset({8080}))], 0.0))
        assert (forwarded.identity.engine, forwarded.url, forwarded.found is not None) == ("qwen", f"http://{host}:8080", True)
    elsewhere = roster(EngineSpec("qwen", "http://127.0.0.1:8000")).update([apart()], 0.0)
    assert [(member.identity.engine, member.found is not None) for member in elsewhere] == [("node-a:8000", True), ("qwen", False)]


def test_a_headless_node_goes_by_the_first_node() -> None:
    first = one(roster().update([located("--headless", "--master-addr", "10.0.0.1", port=None)], 0.0))
    assert (first.identity.engine, first.url) == ("10.0.0.1:8000", None)
    assert "headless" in first.why_no_url
    assert one(roster().update([located("--headless", port=None)], 0.0)).identity.engine == "node-a:headless"


def test_a_server_on_a_unix_socket_says_so() -> None:
    member = one(roster().update([located("--uds", "/run/v.sock")], 0.0))
    assert member.url is None
    assert "--uds" in member.why_no_url


def test_members_hold_what_is_found_now() -> None:
    engines = roster()
    engines.update([located()], 0.0)
    changed = replace(engine(), pids=frozenset({10, 11}))
    found = one(engines.update([Located(changed, 8000)], 1.0)).found
    assert found is not None
    assert found.pids == {10, 11}


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("http://a:1", "a", 1),
        ("http://a", "a", 80),
        ("https://[::1]/x", "::1", 443),
        ("http://a:99999", "a", None),
        ("http://a[b:1", "", None),
    ],
)
def test_host_and_port_of_a_url(url: str, host: str, port: int | None) -> None:
    assert url_host(url) == (host, port)


# ---------------------------------------------------------------------------------------------------- another list of engines
URL_ONLY = EngineSpec("far", "http://10.0.0.9:8000")
LOCAL = EngineSpec("qwen", "http://127.0.0.1:8000", "chat", Role.DECODE, 2)


def names(members: tuple[Member, ...]) -> set[str]:
    return {member.identity.engine for member in members}


def test_a_configured_url_comes_changes_and_goes_with_the_list() -> None:
    engines = roster()
    assert engines.replace_specs([URL_ONLY]) == ()
    assert one(engines.update([], 0.0)).url == URL_ONLY.url
    assert engines.replace_specs([replace(URL_ONLY, deployment="chat", role=Role.PREFILL)]) == ()
    assert one(engines.update([], 1.0)).identity.deployment == "chat"
    assert engines.replace_specs([]) == ()
    assert engines.update([], 2.0) == ()


def test_a_living_engine_keeps_its_identity_whatever_the_list_says_now() -> None:
    engines = roster(LOCAL)
    first = one(engines.update([located()], 0.0))
    assert (first.identity.engine, first.identity.deployment) == ("qwen", "chat")
    assert engines.replace_specs([replace(LOCAL, deployment="other", role=Role.PREFILL, gpus=4)]) == ("qwen",)
    member = one(engines.update([located()], 1.0))
    assert member.identity == first.identity
    assert member.spec is not None
    assert member.spec.gpus == 4, "what is not part of the identity holds at once"
    assert engines.replace_specs([]) == ("qwen",)
    member = one(engines.update([located()], 2.0))
    assert (member.identity, member.spec, member.url) == (first.identity, None, "http://127.0.0.1:8000")
    assert one(engines.update([], 3.0)).gone_since == 3.0
    assert engines.update([], 3.0 + KEEP_GONE + 1) == ()


def test_an_engine_that_is_found_already_gets_its_configured_name_with_its_next_process() -> None:
    engines = roster()
    assert names(engines.update([located()], 0.0)) == {"node-a:8000"}
    assert engines.replace_specs([LOCAL]) == ("qwen",)
    assert names(engines.update([located()], 1.0)) == {"node-a:8000"}, "one server is not two engines"
    members = engines.update([located(pid=11)], 2.0)
    living = [member for member in members if member.found is not None]
    assert names(tuple(living)) == {"qwen"}
    assert living[0].spec == LOCAL


def test_a_name_that_moves_to_another_address_waits_for_the_end_of_its_process() -> None:
    engines = roster(LOCAL)
    engines.update([located()], 0.0)
    moved = replace(LOCAL, url="http://10.0.0.9:8000")
    assert engines.replace_specs([moved]) == ("qwen",)
    assert one(engines.update([located()], 1.0)).url == "http://127.0.0.1:8000"
    member = one(engines.update([], 2.0))
    assert (member.url, member.spec, member.gone_since) == (moved.url, moved, None)


@pytest.mark.parametrize("between", [[], [replace(LOCAL, url="http://10.0.0.9:8000")]])
def test_what_is_put_back_on_the_list_while_its_process_lives_is_as_before(between: list[EngineSpec]) -> None:
    engines = roster(LOCAL)
    first = one(engines.update([located()], 0.0))
    assert engines.replace_specs(between) == ("qwen",)
    assert one(engines.update([located()], 1.0)).spec is None
    assert engines.replace_specs([LOCAL]) == ()
    assert one(engines.update([located()], 2.0)) == first
    assert engines.replace_specs(between) == ("qwen",)
    again = replace(LOCAL, gpus=2, deployment="other")
    assert engines.replace_specs([again]) == ("qwen",), "a deployment that was published stays"
    member = one(engines.update([located()], 3.0))
    assert (member.spec, member.identity) == (again, first.identity)


def test_what_is_configured_under_the_name_that_was_found_is_asked_as_configured_at_once() -> None:
    engines = roster()
    first = one(engines.update([located()], 0.0))
    spec = EngineSpec(first.identity.engine, "http://node-a:8000", gpus=2)
    assert engines.replace_specs([spec]) == ()
    member = one(engines.update([located()], 1.0))
    assert (member.spec, member.url, member.identity) == (spec, spec.url, first.identity)
    elsewhere = roster()
    elsewhere.update([located()], 0.0)
    assert elsewhere.replace_specs([replace(spec, url="http://10.0.0.9:8000")]) == ()
    assert one(elsewhere.update([located()], 1.0)).url == first.url, "another server of that name has to wait"


@pytest.mark.parametrize("host", ["10.1.2.3", "gpu-7.example", "fd00::7", "169.254.169.254", "2130706433", "::ffff:10.1.2.3"])
def test_a_command_line_does_not_choose_which_other_machine_is_asked(host: str) -> None:
    member = one(roster().update([located("--host", host)], 0.0))
    assert member.identity.engine == "node-a:8000"
    assert member.url is None
    assert member.why_no_url == (
        f"its --host {host} is not this node's, so nobody is asked there; if it is right, name it with --engine NAME=URL"
    )
    configured = EngineSpec("qwen", f"http://[{host}]:8000" if ":" in host else f"http://{host}:8000")
    assert one(roster(configured).update([located("--host", host)], 0.0)).url == configured.url


def test_a_server_that_listens_on_a_name_of_this_node_is_asked_there() -> None:
    member = one(roster().update([located("--host", "node-a")], 0.0))
    assert (member.url, member.why_no_url) == ("http://node-a:8000", "")


def test_of_the_engines_that_are_gone_the_last_ones_are_remembered() -> None:
    engines = roster(URL_ONLY)
    for number in range(MOST_GONE + 2):
        engines.update([located(port=9000 + number, pid=number + 2)], float(number))
    members = engines.update([], 1000.0)
    gone = {member.identity.engine for member in members if member.gone_since is not None and member.spec is None}
    assert gone == {f"node-a:{9000 + number}" for number in range(2, MOST_GONE + 2)}
    assert URL_ONLY.name in names(members)


def test_an_unchanged_list_changes_nothing() -> None:
    engines = roster(URL_ONLY, LOCAL)
    before = engines.update([located()], 0.0)
    assert engines.replace_specs([URL_ONLY, LOCAL]) == ()
    assert engines.update([located()], 0.0) == before


# ------------------------------------------------------------------------------------------------------- filled once, and held
NIXL_BOTH = ("--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"kv_both"}')
PD = {"node-a:8000": Assignment("chat", Role.DECODE)}


def test_a_router_fills_what_nobody_said() -> None:
    engines = roster()
    engines.update([located(*NIXL_BOTH)], 0.0)
    identity = one(engines.fill(PD, {})).identity
    assert (identity.deployment, identity.role, identity.role_source) == ("chat", Role.DECODE, "router")
    assert one(engines.update([located(*NIXL_BOTH)], 2.0)).identity == identity


def test_what_was_filled_once_is_not_filled_again_while_the_process_lives() -> None:
    engines = roster()
    engines.update([located(*NIXL_BOTH)], 0.0)
    before = one(engines.fill(PD, {}))
    later = {"node-a:8000": Assignment("other", Role.PREFILL)}
    engines.update([located(*NIXL_BOTH)], 2.0)
    assert one(engines.fill(later, {"node-a:8000": Role.PREFILL})).identity == before.identity
    engines.update([], 4.0)
    engines.update([located(*NIXL_BOTH, pid=11, ticks=9)], 6.0)
    identity = one(engines.fill(later, {})).identity
    assert (identity.deployment, identity.role) == ("other", Role.PREFILL)


@pytest.mark.parametrize(
    ("spec", "said", "deployment", "role", "source"),
    [
        (EngineSpec("q", "http://127.0.0.1:8000", "mine", Role.MIXED), Declared(), "mine", Role.MIXED, "config"),
        (None, Declared(deployment="mine", role=Role.PREFILL), "mine", Role.PREFILL, "environment"),
        (EngineSpec("q", "http://127.0.0.1:8000", "mine"), Declared(deployment="theirs"), "mine", Role.DECODE, "router"),
        (None, Declared(deployment="node-a:8000"), "node-a:8000", Role.DECODE, "router"),
    ],
)
def test_what_somebody_said_is_not_filled(spec: EngineSpec | None, said: Declared, deployment: str, role: Role, source: str) -> None:
    engines = roster(*([spec] if spec is not None else []))
    member = one(engines.update([replace(located(*NIXL_BOTH), said=said)], 0.0))
    identity = one(engines.fill({member.identity.engine: Assignment("chat", Role.DECODE)}, {})).identity
    assert (identity.deployment, identity.role, identity.role_source) == (deployment, role, source)


def test_a_role_of_the_command_line_is_not_doubted_by_a_router() -> None:
    engines = roster()
    engines.update([located("--kv-transfer-config", '{"kv_connector":"C","kv_role":"kv_producer"}')], 0.0)
    identity = one(engines.fill(PD, {"node-a:8000": Role.DECODE})).identity
    assert (identity.deployment, identity.role, identity.role_source) == ("chat", Role.PREFILL, "argv")


def test_a_role_that_only_the_counters_show_is_the_last() -> None:
    engines = roster()
    engines.update([located(*NIXL_BOTH)], 0.0)
    unknown = {"node-a:8000": Assignment("chat", Role.UNKNOWN)}
    identity = one(engines.fill(unknown, {"node-a:8000": Role.PREFILL})).identity
    assert (identity.deployment, identity.role, identity.role_source) == ("chat", Role.PREFILL, "observed")


def test_a_url_that_was_given_no_role_is_filled_by_a_router() -> None:
    engines = roster(EngineSpec("far", "http://10.0.0.9:8000"))
    identity = one(engines.fill({"far": Assignment("chat", Role.DECODE)}, {})).identity
    assert (identity.deployment, identity.role, identity.role_source, identity.discovered) == ("chat", Role.DECODE, "router", "config")


def test_new_engines_are_held_and_known_ones_are_not() -> None:
    engines = roster()
    engines.update([located()], 0.0)
    new = located(port=9000, pid=20, ticks=3)
    assert one(engines.update([located(), new], 2.0, hold=6.0)).identity.engine == "node-a:8000"
    assert len(engines.update([located(), new], 4.0)) == 2


def test_an_engine_is_not_held_for_ever_by_a_router_that_restarts_all_the_time() -> None:
    engines = roster()
    assert [len(engines.update([located()], now, hold=6.0)) for now in (0.0, 2.0, 4.0, 6.0)] == [0, 0, 0, 1]


def test_an_engine_is_not_held_when_the_clock_is_set_back() -> None:
    engines = roster()
    assert [len(engines.update([located()], now, hold=6.0)) for now in (5000.0, 1000.0)] == [0, 1]


# ------------------------------------------------------------------------------------------------------------- several nodes
FIRST = ("--master-addr", "10.0.0.1", "--nnodes", "2")
DP = ("-dp", "4", "-dpl", "2", "--data-parallel-address", "10.0.0.1")


@pytest.mark.parametrize(
    ("arguments", "port", "name"),
    [
        ((*FIRST, "--node-rank", "0"), 8000, "10.0.0.1:8000"),
        ((*FIRST, "--node-rank", "1", "--headless"), None, "10.0.0.1:8000"),
        ((*FIRST, "--node-rank", "0", "--port", "9000"), 9000, "10.0.0.1:9000"),
        ((*FIRST, "--node-rank", "1", "--headless", "--port", "9000"), None, "10.0.0.1:9000"),
        (DP, 8000, "10.0.0.1:8000"),
        ((*DP, "--headless", "--data-parallel-start-rank", "2"), None, "10.0.0.1:8000"),
        ((*DP, "--data-parallel-hybrid-lb"), 8000, "node-a:8000"),
        ((*DP, "--data-parallel-start-rank", "2"), 8000, "node-a:8000"),
        (("-dp", "4", "--data-parallel-rank", "1", "--data-parallel-address", "10.0.0.1"), 8001, "node-a:8001"),
        (("-dp", "4", "--data-parallel-address", "10.0.0.1"), 8000, "node-a:8000"),
        (("--master-addr", "127.0.0.1", "--nnodes", "2"), 8000, "node-a:8000"),
        (("--master-addr", "127.0.0.1", "--nnodes", "2", "--headless"), None, "node-a:headless"),
    ],
)
def test_all_nodes_of_one_engine_have_one_name(arguments: tuple[str, ...], port: int | None, name: str) -> None:
    assert one(roster().update([located(*arguments, port=port)], 0.0)).identity.engine == name


def test_the_environment_names_a_headless_node_too() -> None:
    member = one(roster().update([replace(located(*FIRST, "--headless", port=None), said=Declared("qwen", "chat"))], 0.0))
    assert (member.identity.engine, member.identity.deployment) == ("qwen", "chat")


def test_one_configuration_names_the_engine_on_all_its_nodes() -> None:
    """The URL is the first node's; the headless one is named by it and asks nobody."""
    spec = EngineSpec("qwen", "http://10.0.0.1:8000", "chat", Role.MIXED)
    member = one(roster(spec).update([located(*FIRST, "--headless", port=8000)], 0.0))
    assert (member.identity, member.url) == (EngineIdentity("qwen", "chat", Role.MIXED, "config", "config"), None)
    here = Roster("node-a", (spec,), lambda host: host == "10.0.0.1")
    first = one(here.update([located(*FIRST, "--node-rank", "0")], 0.0))
    assert (first.identity, first.url) == (member.identity, "http://10.0.0.1:8000")


def test_a_headless_node_is_no_engine_that_is_configured_at_its_own_node() -> None:
    engines = roster(EngineSpec("other", "http://127.0.0.1:8000"))
    members = engines.update([located(*FIRST, "--headless", port=8000)], 0.0)
    assert [member.identity.engine for member in members] == ["10.0.0.1:8000", "other"]


def test_a_headless_node_is_of_its_engines_deployment() -> None:
    engines = roster()
    engines.update([located(*FIRST, "--headless", port=None)], 0.0)
    assert one(engines.fill({"10.0.0.1:8000": Assignment("chat", Role.MIXED)}, {})).identity.deployment == "chat"
