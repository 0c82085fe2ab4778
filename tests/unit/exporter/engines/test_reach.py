"""An address is a server's only if a connection to it shows in the server's own network namespace. Real sockets; no name is resolved."""

from __future__ import annotations

import ipaddress
import os
import socket
from pathlib import Path

import pytest
from poise.exporter.engines.reach import MOST_ADDRESSES, Attempt, candidates, is_reached
from poise.exporter.procfs import ProcFs, Sockets
from poise.exporter.procnet import Address

from tests.fake_proc import FakeProc
from tests.waiting import wait_until

LOOPBACK = ipaddress.ip_address("127.0.0.1")
A, B, SIX = (ipaddress.ip_address(text) for text in ("10.0.0.2", "10.0.1.2", "fd00::2"))
ANY, ANY_SIX = ipaddress.ip_address("0.0.0.0"), ipaddress.ip_address("::")


def bound(*places: Address, port: int = 8000) -> Sockets:
    return Sockets({}, {}, {port: frozenset(places)})


@pytest.mark.parametrize(
    ("places", "tried"),
    [
        ((ANY,), [A, B]),
        ((ANY_SIX,), [A, B, SIX]),
        ((ANY, ANY_SIX), [A, B, SIX]),
        ((B,), [B]),
        ((B, LOOPBACK), [B]),
        ((SIX,), [SIX]),
    ],
)
def test_addresses_are_tried_where_the_server_listens(places: tuple[Address, ...], tried: list[Address]) -> None:
    assert candidates(bound(*places), (A, B, SIX), (8000,)) == tuple((address, 8000) for address in tried)


def test_why_there_is_nothing_to_try_is_told() -> None:
    assert "only on the loopback of its own network namespace (port 8000)" in candidates(bound(LOOPBACK), (A,), (8000,))
    assert "does not listen there yet" in candidates(bound(ANY, port=9000), (A,), (8000,))
    assert "does not listen there yet" in candidates(bound(ANY), (A,), ())
    assert "no address besides loopback" in candidates(bound(ANY), (), (8000,))


def test_not_more_addresses_than_a_limit_are_tried() -> None:
    many = tuple(ipaddress.IPv4Address(0x0A000000 + number) for number in range(100))
    assert len(candidates(bound(ANY), many, (8000,))) == MOST_ADDRESSES


def test_a_connection_that_arrives_is_proof_and_one_that_arrives_elsewhere_is_none(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert is_reached(ProcFs(), os.getpid(), LOOPBACK, port)
        # Somebody answers at the address, but not in the namespace of that process.
        assert not is_reached(ProcFs(FakeProc(tmp_path).root), 100, LOOPBACK, port)
    assert not is_reached(ProcFs(), os.getpid(), LOOPBACK, port)


def test_an_attempt_tells_the_first_address_that_was_reached_and_accepted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        first, second = one.getsockname()[1], other.getsockname()[1]
        asked: list[int] = []

        def accepts(address: Address, port: int) -> bool:
            asked.append(port)
            return port == second

        attempt = Attempt(ProcFs(), os.getpid(), [(LOOPBACK, first), (LOOPBACK, second)], accepts)
        attempt.start()
        wait_until(lambda: not attempt.runs(), "the attempt ends")
        assert attempt.result is not None
        assert (attempt.result.address, attempt.result.port, asked) == (LOOPBACK, second, [first, second])
        refused = Attempt(ProcFs(), os.getpid(), [(LOOPBACK, first)], lambda address, port: False)
        refused.start()
        wait_until(lambda: not refused.runs(), "the attempt ends")
        assert refused.result is not None
        assert "answers as vLLM" in refused.result.why_not


def test_an_attempt_that_fails_names_what_was_tried_and_the_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    attempt = Attempt(ProcFs(), os.getpid(), [(LOOPBACK, port)])
    attempt.start()
    wait_until(lambda: not attempt.runs(), "the attempt ends")
    assert attempt.result is not None
    assert attempt.result.address is None
    assert "(127.0.0.1) can be reached from here" in attempt.result.why_not
    assert "--engine NAME=URL" in attempt.result.why_not


def test_where_no_thread_can_be_had_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = Attempt(ProcFs(), os.getpid(), [(LOOPBACK, 1)])

    def refuse() -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(attempt._thread, "start", refuse)
    attempt.start()
    assert attempt.result is not None
    assert "can't start new thread" in attempt.result.why_not


def test_from_the_nodes_own_network_nobody_beyond_its_gateway_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeProc(tmp_path)
    for name, space in (("self", "net:[1]"), ("1", "net:[1]"), ("2", "net:[2]")):
        (fake.root / name / "ns").mkdir(parents=True)
        (fake.root / name / "ns" / "net").symlink_to(space)
    proc = ProcFs(fake.root)
    asked: list[object] = []

    def connect(address: tuple[str, int], timeout: float) -> socket.socket:
        asked.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr("poise.exporter.engines.reach.socket.create_connection", connect)
    assert not is_reached(proc, 2, A, 8000)
    assert asked == []
    # In a container of its own Poise has only a default route, which leads to the others.
    (fake.root / "self" / "ns" / "net").unlink()
    (fake.root / "self" / "ns" / "net").symlink_to("net:[3]")
    assert not is_reached(proc, 2, A, 8000)
    assert asked == [("10.0.0.2", 8000)]
