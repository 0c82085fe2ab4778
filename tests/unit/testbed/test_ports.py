"""Ports give way to what is there, unless they were asked for."""

from __future__ import annotations

import socket

import pytest
from poise.testbed import ports
from poise.testbed.errors import TestbedError


def test_free_preferred_ports_are_taken_without_remark() -> None:
    plan = ports.plan({"server": 8000, "exporter": 9747}, {}, free=lambda port: True)
    assert plan == ports.PortPlan({"server": 8000, "exporter": 9747}, ())


def test_a_taken_preferred_port_gives_way_to_the_next_and_that_is_said() -> None:
    plan = ports.plan({"server": 8000}, {}, free=lambda port: port > 8001)
    assert plan.ports == {"server": 8002}
    assert plan.remarks == ("port 8000 is taken: server uses 8002",)


def test_two_parts_that_prefer_one_port_get_two() -> None:
    plan = ports.plan({"first": 8000, "second": 8000}, {}, free=lambda port: True)
    assert plan.ports == {"first": 8000, "second": 8001}


def test_a_fixed_port_goes_before_a_preference_for_it() -> None:
    plan = ports.plan({"first": 8000, "second": 8001}, {"second": 8000}, free=lambda port: True)
    assert plan.ports == {"first": 8001, "second": 8000}


def test_a_taken_fixed_port_is_an_error_that_says_how_to_look() -> None:
    with pytest.raises(TestbedError, match=r"port 8000 for server is taken \(see `ss -ltnp 'sport = :8000'`\): give another one"):
        ports.plan({"server": 8000}, {"server": 8000}, free=lambda port: False)


def test_one_port_asked_for_twice_is_an_error() -> None:
    with pytest.raises(TestbedError, match="port 8000 is asked for by server and exporter"):
        ports.plan({}, {"server": 8000, "exporter": 8000}, free=lambda port: True)


def test_zero_means_any_and_never_the_same_twice() -> None:
    given = iter([40001, 40001, 40002])
    plan = ports.plan({}, {"a": 0, "b": 0}, free=lambda port: True, ephemeral=lambda: next(given))
    assert plan.ports == {"a": 40001, "b": 40002}


def test_when_all_near_a_preferred_port_are_taken_the_kernel_gives_one() -> None:
    plan = ports.plan({"server": 8000}, {}, free=lambda port: False, ephemeral=lambda: 40001)
    assert plan.ports == {"server": 40001}


@pytest.mark.parametrize("address", ["127.0.0.1", ""])
def test_a_listening_socket_makes_its_port_not_free(address: str) -> None:
    with socket.socket() as listener:
        listener.bind((address, 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert not ports.is_free(port)
    assert ports.is_free(port)
    assert ports.any_free() > 0
