"""Addresses that routers write, and which engine each is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from poise.exporter.routers.addresses import KnownEngine, address_of, backend_url, join
from poise.exporter.setting_values import is_loopback
from poise.exporter.snapshot import Role, RouterBackend


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("http://a:8000", ("a", 8000)),
        ("https://a", ("a", 443)),
        ("a:8000", ("a", 8000)),
        ("http://a:8000@3", ("a", 8000)),
        ("http://[fd00::7]:8000/v1", ("fd00::7", 8000)),
        ("grpc://a:5000", ("a", 5000)),
        ("ftp://a:1", None),
        ("http://a:x", None),
        ("http://a:99999", None),
        ("http://[::1", None),
        ("http://a b:1", None),
        ("", None),
    ],
)
def test_host_and_port(text: str, address: tuple[str, int] | None) -> None:
    assert address_of(text) == address


@settings(max_examples=50)
@given(st.text(max_size=60))
def test_no_text_breaks_it_and_what_is_kept_is_an_address(text: str) -> None:
    url = backend_url(text)
    assert url is None or (address_of(url) == address_of(text) and url.isprintable())


ENGINES = (
    KnownEngine("node-a:8100", "127.0.0.1", 8100, here=True),
    KnownEngine("node-a:8000", "10.244.0.7", 8000, here=False),  # in a container
    KnownEngine("remote", "10.0.0.9", 8000, here=False),
    KnownEngine("node-a:8000#2", "172.17.0.2", 8000, here=False, forwarded=frozenset({18000})),
)


def is_local(host: str) -> bool:
    return is_loopback(host) or host in ("node-a", "10.0.0.5")


@pytest.mark.parametrize(
    ("url", "engine"),
    [
        ("http://127.0.0.1:8100", "node-a:8100"),
        ("http://localhost:8100", "node-a:8100"),
        ("http://[::1]:8100", "node-a:8100"),
        ("http://10.0.0.5:8100", "node-a:8100"),
        ("http://node-a:8100", "node-a:8100"),
        ("http://10.244.0.7:8000", "node-a:8000"),
        ("http://10.0.0.9:8000", "remote"),
        ("http://10.0.0.5:18000", "node-a:8000#2"),
        ("http://172.17.0.2:8000", "node-a:8000#2"),
        ("http://127.0.0.1:9999", "node-a:9999"),
        ("http://node-b:8200", "node-b:8200"),
        ("http://[fd00::7]:8200", "[fd00::7]:8200"),
        ("nonsense", ""),
    ],
)
def test_each_backend_has_the_id_of_its_engine(url: str, engine: str) -> None:
    (backend,) = join([RouterBackend(url, Role.DECODE)], ENGINES, "node-a", is_local)
    assert (backend.engine, backend.role, backend.url) == (engine, Role.DECODE, url)


def test_loopback_is_the_routers_own_node() -> None:
    (backend,) = join([RouterBackend("http://127.0.0.1:8100", Role.MIXED)], ENGINES, "node-a", is_local, "node-b")
    assert backend.engine == "node-b:8100"
    (known,) = join([RouterBackend("http://localhost:8000", Role.MIXED)], ENGINES, "node-a", is_local, "10.0.0.9")
    assert known.engine == "remote"


@settings(max_examples=50)
@given(st.lists(st.text(max_size=40), max_size=5))
def test_no_id_is_ever_a_loopback_address(urls: list[str]) -> None:
    for backend in join([RouterBackend(url, Role.MIXED) for url in urls], ENGINES, "node-a", is_local):
        assert backend.engine == "" or not is_loopback(backend.engine.rpartition(":")[0])
