"""Routers told from other programs by their command lines, and what those say."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from poise.exporter.engines.argv import parse_server
from poise.exporter.routers.command_line import BACKENDS_LIMIT, RouterCommand, flag_names, parse_router
from poise.exporter.snapshot import Role, RouterBackend, RouterKind


def parsed(*argv: str) -> RouterCommand:
    command = parse_router(argv)
    assert command is not None
    return command


def backends(command: RouterCommand) -> list[tuple[str, str]]:
    return [(backend.url, str(backend.role)) for backend in command.backends]


VLLM_ROUTER_LINE = (
    "/venv/bin/python /venv/bin/vllm-router --policy round_robin --vllm-pd-disaggregation --kv-connector nixl --prefill http://127.0.0.1:18100 "
    "--decode http://127.0.0.1:18200 --port 18300 --prometheus-port 18301 --health-check-interval-secs 2"
)


def test_vllm_router_with_prefill_and_decode_apart() -> None:
    assert parsed(*VLLM_ROUTER_LINE.split()) == RouterCommand(
        RouterKind.VLLM_ROUTER,
        host="127.0.0.1",
        port=18300,
        metrics=("127.0.0.1", 18301),
        backends=(RouterBackend("http://127.0.0.1:18100", Role.PREFILL), RouterBackend("http://127.0.0.1:18200", Role.DECODE)),
        disaggregated=True,
    )


def test_vllm_router_before_whole_engines() -> None:
    command = parsed("vllm-router", "--worker-urls", "http://a:8000", "http://b:8000", "--host", "0.0.0.0", "--prometheus-host=0.0.0.0")
    assert (command.kind, command.host, command.port, command.disaggregated) == (RouterKind.VLLM_ROUTER, "0.0.0.0", 30000, False)
    assert command.metrics == ("0.0.0.0", 29000)
    assert backends(command) == [("http://a:8000", "mixed"), ("http://b:8000", "mixed")]


def test_a_bootstrap_port_is_no_engine() -> None:
    command = parsed(
        "vllm-router", "--prefill", "http://p1:8000", "9000", "--prefill", "http://p2:8000", "none", "--decode", "http://d:8001"
    )
    assert backends(command) == [("http://p1:8000", "prefill"), ("http://p2:8000", "prefill"), ("http://d:8001", "decode")]


@pytest.mark.parametrize("title", ["vllm::router", "vllm::router   "])
def test_a_title_in_place_of_a_command_line_tells_the_kind_alone(title: str) -> None:
    assert parsed(title) == RouterCommand(RouterKind.VLLM_ROUTER, told=False)


PRODUCTION_STACK_LINE = (
    "vllm-router --host 0.0.0.0 --port 8001 --service-discovery static --static-backends http://p:8100,http://d:8200,http://x:8300 "
    "--static-models m,m,m --static-model-labels pf,dc,zz --prefill-model-labels pf --decode-model-labels dc"
)


def test_production_stack_with_prefill_and_decode_apart() -> None:
    command = parsed(*PRODUCTION_STACK_LINE.split(), "--routing-logic", "disaggregated_prefill")
    assert (command.kind, command.port, command.metrics, command.disaggregated) == (RouterKind.PRODUCTION_STACK, 8001, None, True)
    assert backends(command) == [("http://p:8100", "prefill"), ("http://d:8200", "decode"), ("http://x:8300", "unknown")]


def test_production_stack_before_whole_engines() -> None:
    command = parsed(*PRODUCTION_STACK_LINE.split(), "--routing-logic", "roundrobin")
    assert (command.disaggregated, command.other_role) == (False, Role.MIXED)
    assert {role for _, role in backends(command)} == {"mixed"}


@pytest.mark.parametrize(
    ("argv", "kind"),
    [
        ("python3 -m vllm_router.app --service-discovery k8s", RouterKind.PRODUCTION_STACK),
        ("python3 src/vllm_router/app.py --port 9000", RouterKind.PRODUCTION_STACK),
        ("vllm-router --service-discovery k8s --routing-logic roundrobin --k8s-label-selector a=b", RouterKind.PRODUCTION_STACK),
        ("vllm-router --service-discovery --selector a=b", RouterKind.VLLM_ROUTER),
        ("/usr/local/bin/vllm-router --worker-urls http://a:1", RouterKind.VLLM_ROUTER),
        ("python -m vllm_router.launch_router --worker-urls http://a:1", RouterKind.VLLM_ROUTER),
        ("python3 toy_proxy_server.py", RouterKind.TOY_PROXY),
    ],
)
def test_the_kind_of_a_router(argv: str, kind: RouterKind) -> None:
    assert parsed(*argv.split()).kind is kind


def test_the_toy_proxy_has_defaults() -> None:
    command = parsed("python3", "tests/v1/kv_connector/nixl_integration/toy_proxy_server.py")
    assert (command.host, command.port) == (None, 8000)
    assert backends(command) == [("http://localhost:8100", "prefill"), ("http://localhost:8200", "decode")]


def test_hosts_and_ports_of_the_toy_proxy_go_side_by_side() -> None:
    line = "python3 toy_proxy_server.py --port 8192 --prefiller-hosts a b --prefiller-ports 1 2 --decoder-host c --decoder-ports 3 4"
    command = parsed(*line.split())
    assert command.port == 8192
    assert backends(command) == [
        ("http://a:1", "prefill"),
        ("http://b:2", "prefill"),
        ("http://c:3", "decode"),
        ("http://c:4", "decode"),
    ]


@pytest.mark.parametrize(
    "argv",
    [
        "python /srv/testbed/pd_proxy.py --port 18300 --prefill http://127.0.0.1:18100 --decode http://127.0.0.1:18200",
        "python3 disagg_proxy_demo.py --model m --prefill 127.0.0.1:18100 --decode 127.0.0.1:18200 --port 18300",
        "python3 disagg_prefill_proxy_server.py --port 18300 --prefill-url http://127.0.0.1:18100 --decode-url http://127.0.0.1:18200",
        "python3 disagg_proxy_server.py --port 18300 --prefiller-host 127.0.0.1 --prefiller-port 18100 --decoder-host 127.0.0.1 --decoder-port 18200",
    ],
)
def test_a_script_that_is_told_both_sides_is_a_proxy(argv: str) -> None:
    command = parsed(*argv.split())
    assert (command.kind, command.port, command.disaggregated) == (RouterKind.TOY_PROXY, 18300, True)
    assert backends(command) == [("http://127.0.0.1:18100", "prefill"), ("http://127.0.0.1:18200", "decode")]


@pytest.mark.parametrize(
    "argv",
    [
        "",
        "vllm serve m",
        "vim vllm-router",
        "grep vllm-router --worker-urls http://a:1",
        "bash -c vllm-router",
        "python -c vllm-router",
        "python3 my_proxy.py --port 1",
        "python3 my_proxy.py --port 1 --prefill http://a:1",
        "python3 my_proxy.py --prefill http://a:1 --decode http://b:1",
        "vllm-router --help",
        "VLLM::EngineCore",
        "vllm::router worker",
        "python3 -m vllm_router_tools",
    ],
)
def test_everything_else_is_no_router(argv: str) -> None:
    assert parse_router(argv.split()) is None


def test_a_router_is_no_engine() -> None:
    assert parse_server(VLLM_ROUTER_LINE.split()) is None
    assert parse_server(["vllm::router"]) is None


def test_ranks_of_one_engine_are_one_engine() -> None:
    command = parsed("vllm-router", "--worker-urls", "http://a:8000@0", "http://a:8000@1")
    assert backends(command) == [("http://a:8000", "mixed")]


def test_users_passwords_and_paths_stay_out_of_urls() -> None:
    command = parsed(
        "vllm-router", "--worker-urls", "http://user:planted-password@a:8000/v1?key=planted-password", "--api-key", "planted-password"
    )
    assert backends(command) == [("http://a:8000", "mixed")]
    assert "planted-password" not in repr(command)


def test_what_is_no_address_is_left_out() -> None:
    command = parsed("vllm-router", "--worker-urls", "http://", "ftp://a:1", "http://a:99999", "http://b\n:1", "[", "http://[::1]:8000")
    assert backends(command) == [("http://[::1]:8000", "mixed")]
    assert parsed("vllm-router", "--port", "x").port is None
    assert parsed("vllm-router", "--prometheus-port", "99999").metrics is None


def test_the_number_of_engines_is_limited() -> None:
    command = parsed("vllm-router", "--worker-urls", *(f"http://n{number}:8000" for number in range(BACKENDS_LIMIT + 9)))
    assert len(command.backends) == BACKENDS_LIMIT


def test_no_flag_that_may_hold_a_secret_is_read() -> None:
    assert not [
        flag for flag in flag_names() if any(word in flag for word in ("key", "token", "secret", "password", "header", "selector", "dsn"))
    ]


@settings(max_examples=50)
@given(
    st.lists(
        st.one_of(st.sampled_from([*flag_names(), "vllm-router", "python3", "toy_proxy_server.py", "-m", "=", ","]), st.text(max_size=30)),
        max_size=12,
    )
)
def test_no_command_line_breaks_it(argv: list[str]) -> None:
    for program in ([], ["vllm-router"], ["python3", "toy_proxy_server.py"], ["vllm-router", "--routing-logic", "disaggregated_prefill"]):
        command = parse_router([*program, *argv])
        assert command is None or all(backend.url.startswith(("http", "grpc")) and "@" not in backend.url for backend in command.backends)
