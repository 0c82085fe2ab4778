"""Ports that Docker publishes, read from its proxies' command lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poise.exporter.engines.forwards import Forward, forward_of, forwards
from poise.exporter.procfs import ProcFs

from tests.fake_proc import FakeProc

PROXY = ["/usr/bin/docker-proxy", "-proto", "tcp", "-host-ip", "0.0.0.0", "-host-port", "8080"]
PROXY += ["-container-ip", "172.17.0.2", "-container-port", "8000"]


def test_a_published_port_leads_to_a_container(tmp_path: Path) -> None:
    fake = FakeProc(tmp_path)
    fake.add(7, [*PROXY, "-use-listen-fd"])
    fake.add(8, ["vim", *PROXY])
    fake.add(9, ["docker-proxy", *PROXY[1:]], comm="other")
    assert list(forwards(ProcFs(fake.root))) == [Forward(8080, "172.17.0.2", 8000)]


def test_addresses_of_the_sixth_version_stand_as_they_are_written() -> None:
    assert forward_of([word.replace("172.17.0.2", "fd00::2") for word in PROXY]) == Forward(8080, "fd00::2", 8000)


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["docker-proxy"],
        ["python", *PROXY[1:]],
        [word.replace("tcp", "udp") for word in PROXY],
        [word.replace("8080", "many") for word in PROXY],
        PROXY[:-1],
        PROXY[:5],
    ],
)
def test_what_forwards_no_tcp_port(argv: list[str]) -> None:
    assert forward_of(argv) is None


@given(st.lists(st.sampled_from([*PROXY, "-", "", "-1"]) | st.text(max_size=5)))
def test_any_command_line_is_a_forward_or_none(argv: list[str]) -> None:
    forward_of(["docker-proxy", *argv])
