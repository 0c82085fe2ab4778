"""Reads the command line of a router: where it listens, where its metrics are, and which engines stand behind it in which role.

Only flags named in `_VLLM_ROUTER`, `_PRODUCTION_STACK` and `_PROXY` are looked at; the value of any other (api keys, selectors, paths) is skipped
and exists in no result. Pure; never raises. Sources: vllm-router 0.1.17 ``--help``; production-stack src/vllm_router/parsers/parser.py; vLLM
tests/v1/kv_connector/nixl_integration/toy_proxy_server.py and examples/…/disagg_proxy_demo.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

from poise.exporter.engines.program import How, Running, base_name, running
from poise.exporter.routers.addresses import address_of, backend_url
from poise.exporter.setting_values import authority
from poise.exporter.snapshot import Role, RouterBackend, RouterKind

#: More backends than this are no deployment that one node watches; the rest is left out.
BACKENDS_LIMIT = 256


@dataclass(frozen=True, slots=True)
class RouterCommand:
    """A router's command line as far as Poise reads it.

    `told` is False when the process hides it behind a title: then port and backends are not known from here. `metrics` is (host, port) of a
    metrics page elsewhere than at the router's own port. `other_role`: the part of an engine that no flag names (it was discovered).
    """

    kind: RouterKind
    told: bool = True
    host: str | None = None
    port: int | None = None
    metrics: tuple[str | None, int] | None = None
    backends: tuple[RouterBackend, ...] = ()
    disaggregated: bool = False
    other_role: Role = Role.UNKNOWN


#: What vllm-router calls its process once it runs (vllm_router/launch_router.py); its command line and environment are gone then.
_TITLE = "vllm::router"
_VLLM_ROUTER = frozenset(
    {"--host", "--port", "--worker-urls", "--prefill", "--decode", "--prometheus-host", "--prometheus-port", "--vllm-pd-disaggregation"}
)
#: Host and port, and where its metrics page is, when nothing is said (vllm-router 0.1.17).
_VLLM_ROUTER_ADDRESS = ("127.0.0.1", 30000)
_VLLM_ROUTER_METRICS = ("127.0.0.1", 29000)
_PRODUCTION_STACK = frozenset(
    {
        "--host",
        "--port",
        "--routing-logic",
        "--service-discovery",
        "--static-backends",
        "--static-model-labels",
        "--prefill-model-labels",
        "--decode-model-labels",
    }
)
_PRODUCTION_STACK_PORT = 8001
#: Both routers install a program of one name; with one of these flags it is production-stack's. (vllm-router's --service-discovery takes no value.)
_PRODUCTION_STACK_ONLY = (
    "--routing-logic",
    "--static-backends",
    "--static-models",
    "--k8s-port",
    "--k8s-namespace",
    "--k8s-label-selector",
)
_ROUTER_PROGRAMS = ("vllm-router", "vllm_router")
_VLLM_ROUTER_MODULES = ("vllm_router", "vllm_router.launch_router")
_PRODUCTION_STACK_MODULE = "vllm_router.app"
_PROXY = frozenset(
    {
        "--host",
        "--port",
        "--prefiller-hosts",
        "--prefiller-host",
        "--prefiller-ports",
        "--prefiller-port",
        "--decoder-hosts",
        "--decoder-host",
        "--decoder-ports",
        "--decoder-port",
        "--prefill",
        "--prefill-url",
        "--prefill-urls",
        "--decode",
        "--decode-url",
        "--decode-urls",
    }
)
_TOY_PROXY = "toy_proxy_server.py"
#: What vLLM's toy proxy takes when nothing is said.
_TOY_PROXY_PORT = 8000
_TOY_PROXY_PREFILL, _TOY_PROXY_DECODE = ("localhost", 8100), ("localhost", 8200)
_ASKS_ONLY = frozenset({"-h", "--help", "--version", "-V"})

#: Flag → the values behind each time that it was given.
_Flags = Mapping[str, Sequence[Sequence[str]]]


def parse_router(argv: Sequence[str]) -> RouterCommand | None:
    """The router that a command line starts, or None when it starts none."""
    if len(argv) == 1 and argv[0].strip() == _TITLE:
        return RouterCommand(RouterKind.VLLM_ROUTER, told=False)
    found = running(argv)
    if found is None or not _ASKS_ONLY.isdisjoint(found.arguments):
        return None
    kind = _kind(found)
    if kind is RouterKind.VLLM_ROUTER:
        return _vllm_router(_collect(found.arguments, _VLLM_ROUTER))
    if kind is RouterKind.PRODUCTION_STACK:
        return _production_stack(_collect(found.arguments, _PRODUCTION_STACK))
    if kind is RouterKind.TOY_PROXY:
        return _proxy(_collect(found.arguments, _PROXY), is_toy=base_name(found.target) == _TOY_PROXY)
    return None


def _kind(found: Running) -> RouterKind | None:
    target, arguments = found.target, found.arguments
    if found.how is How.MODULE:
        if target == _PRODUCTION_STACK_MODULE:
            return RouterKind.PRODUCTION_STACK
        return RouterKind.VLLM_ROUTER if target in _VLLM_ROUTER_MODULES else None
    if base_name(target) in _ROUTER_PROGRAMS:
        given = {item.partition("=")[0] for item in arguments}
        return RouterKind.VLLM_ROUTER if given.isdisjoint(_PRODUCTION_STACK_ONLY) else RouterKind.PRODUCTION_STACK
    if found.how is not How.SCRIPT:
        return None
    if target.endswith("vllm_router/app.py"):
        return RouterKind.PRODUCTION_STACK
    if target.endswith("vllm_router/launch_router.py"):
        return RouterKind.VLLM_ROUTER
    return RouterKind.TOY_PROXY if re.fullmatch(r"\w*proxy\w*\.py", base_name(target)) else None


def _collect(arguments: Sequence[str], wanted: frozenset[str]) -> _Flags:
    """The values of the wanted flags: all words behind one up to the next flag, or what stands behind its equals sign."""
    found: dict[str, list[list[str]]] = {}
    current: list[str] | None = None
    for item in arguments:
        if item.startswith("-") and len(item) > 1:
            name, equals, inline = item.partition("=")
            current = None
            if name in wanted:
                current = [inline] if equals else []
                found.setdefault(name, []).append(current)
                current = None if equals else current
        elif current is not None:
            current.append(item)
    return found


# ---------------------------------------------------------------------------------------------------------------- each kind
def _vllm_router(flags: _Flags) -> RouterCommand:
    workers = [(url, Role.MIXED) for url in _all(flags, "--worker-urls")]
    # Behind the URL of a prefill engine may stand its bootstrap port.
    prefill = [(values[0], Role.PREFILL) for values in flags.get("--prefill", ()) if values]
    decode = [(url, Role.DECODE) for url in _all(flags, "--decode")]
    metrics_port = _port(flags, "--prometheus-port", _VLLM_ROUTER_METRICS[1])
    return RouterCommand(
        RouterKind.VLLM_ROUTER,
        host=_last(flags, "--host") or _VLLM_ROUTER_ADDRESS[0],
        port=_port(flags, "--port", _VLLM_ROUTER_ADDRESS[1]),
        metrics=(_last(flags, "--prometheus-host") or _VLLM_ROUTER_METRICS[0], metrics_port) if metrics_port is not None else None,
        backends=_backends([*prefill, *decode, *workers]),
        disaggregated="--vllm-pd-disaggregation" in flags or bool(prefill or decode),
        other_role=Role.UNKNOWN if "--vllm-pd-disaggregation" in flags else Role.MIXED,
    )


def _production_stack(flags: _Flags) -> RouterCommand:
    disaggregated = (_last(flags, "--routing-logic") or "").startswith("disaggregated")
    roles = dict.fromkeys(_all(flags, "--prefill-model-labels"), Role.PREFILL)
    roles |= dict.fromkeys(_all(flags, "--decode-model-labels"), Role.DECODE)
    other = Role.UNKNOWN if disaggregated else Role.MIXED
    urls, labels = _all(flags, "--static-backends"), _all(flags, "--static-model-labels")
    paired = zip_longest(urls, labels[: len(urls)], fillvalue="")
    return RouterCommand(
        RouterKind.PRODUCTION_STACK,
        host=_last(flags, "--host"),
        port=_port(flags, "--port", _PRODUCTION_STACK_PORT),
        backends=_backends([(url, roles.get(label, other) if disaggregated else other) for url, label in paired]),
        disaggregated=disaggregated,
        other_role=other,
    )


def _proxy(flags: _Flags, *, is_toy: bool) -> RouterCommand | None:
    """A script with "proxy" in its name is a router when it is told where to prefill and where to decode; vLLM's own has defaults for both."""
    prefill, decode = _side(flags, "prefill", "prefiller"), _side(flags, "decode", "decoder")
    if is_toy:
        prefill, decode = prefill or [_TOY_PROXY_PREFILL], decode or [_TOY_PROXY_DECODE]
    port = _port(flags, "--port", _TOY_PROXY_PORT if is_toy else None)
    if not prefill or not decode or port is None:
        return None
    pairs = [*((at, Role.PREFILL) for at in prefill), *((at, Role.DECODE) for at in decode)]
    urls = [(f"http://{authority(*at)}", role) for at, role in pairs]
    return RouterCommand(
        RouterKind.TOY_PROXY, host=_last(flags, "--host"), port=port, backends=_backends(urls), disaggregated=True, other_role=Role.UNKNOWN
    )


def _side(flags: _Flags, role: str, part: str) -> list[tuple[str, int]]:
    """The engines of one role of a proxy: addresses as they stand, or hosts and ports side by side (one host may have several ports)."""
    given = chain(*(_all(flags, f"--{role}{ending}") for ending in ("", "-url", "-urls")))
    found = [at for text in given if (at := address_of(text)) is not None]
    hosts = _all(flags, f"--{part}-hosts") or _all(flags, f"--{part}-host")
    ports = [port for text in _all(flags, f"--{part}-ports") or _all(flags, f"--{part}-port") if (port := _number(text)) is not None]
    if ports and len(hosts) <= 1:
        hosts = (hosts or ["localhost"]) * len(ports)
    return [*found, *zip(hosts, ports, strict=False)]


# ------------------------------------------------------------------------------------------------------------------- values
def _all(flags: _Flags, name: str) -> list[str]:
    """All values of a flag, those that commas separate apart."""
    return [part for values in flags.get(name, ()) for value in values for part in value.split(",") if part]


def _last(flags: _Flags, name: str) -> str | None:
    values = _all(flags, name)
    return values[-1] if values else None


def _port(flags: _Flags, name: str, otherwise: int | None) -> int | None:
    given = _last(flags, name)
    return _number(given) if given is not None else otherwise


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d{1,5}", text, re.ASCII) and 0 < int(text) <= 65535 else None


def _backends(pairs: Sequence[tuple[str, Role]]) -> tuple[RouterBackend, ...]:
    """Backends with clean URLs, each once; what is no address is left out."""
    urls: dict[str, Role] = {}
    for text, role in pairs:
        url = backend_url(text)
        if url is not None and len(urls) < BACKENDS_LIMIT:
            urls.setdefault(url, role)
    return tuple(RouterBackend(url, role) for url, role in urls.items())


def flag_names() -> Iterator[str]:
    """Every flag whose value is kept, for the test that no secret's flag is among them."""
    yield from sorted(_VLLM_ROUTER | _PRODUCTION_STACK | _PROXY)
