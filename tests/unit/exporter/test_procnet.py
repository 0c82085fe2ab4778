"""What files below /proc/PID/net say, on real ones of this machine and on recorded and broken ones."""

from __future__ import annotations

import ipaddress
import socket
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poise.exporter.procnet import ESTABLISHED, LISTEN, addresses, is_routed, tcp_rows

HEADER = b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
REST = b" 00000000:00000000 00:00000000 00000000     0        0 4711 1 0\n"
little = pytest.mark.skipif(sys.byteorder == "big", reason="recorded on a little-endian machine")


@little
@pytest.mark.parametrize(
    ("local", "address"),
    [
        (b"0100007F", "127.0.0.1"),
        (b"00000000", "0.0.0.0"),
        (b"0200F40A", "10.244.0.2"),
        (b"0" * 32, "::"),
        (b"00000000000000000000000001000000", "::1"),
        (b"0000000000000000FFFF00000200F40A", "10.244.0.2"),
        (b"000000FD000000000000000002000000", "fd00::2"),
    ],
)
def test_addresses_are_read_as_the_kernel_writes_them(local: bytes, address: str) -> None:
    (row,) = tcp_rows(HEADER + b"   0: " + local + b":1F40 " + b"0" * len(local) + b":C350 0A" + REST)
    assert (str(row.address), row.local_port, row.remote_port, row.state, row.inode) == (address, 8000, 50000, LISTEN, 4711)


def test_real_sockets_are_found_with_their_addresses() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        port, ours = server.getsockname()[1], client.getsockname()[1]
        rows = [row for row in tcp_rows(Path("/proc/self/net/tcp").read_bytes()) if port in (row.local_port, row.remote_port)]
    assert {row.address for row in rows} == {ipaddress.ip_address("127.0.0.1")}
    assert {(row.local_port, row.remote_port, row.state) for row in rows} == {
        (port, 0, LISTEN),
        (port, ours, ESTABLISHED),
        (ours, port, ESTABLISHED),
    }


@pytest.mark.parametrize("row", [b"garbage\n", b" 0: zz:zz a 0A\n", b"\n", b" 0: 0100007F:1F40 0:0 0A\n"])
def test_rows_that_make_no_sense_are_left_out(row: bytes) -> None:
    assert list(tcp_rows(HEADER + row)) == []


@given(st.binary(max_size=300))
def test_any_bytes_are_rows_or_nothing(data: bytes) -> None:
    for row in tcp_rows(HEADER + data):
        assert row.address is None or row.address.version in (4, 6)


FIB_TRIE = """Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 10.0.0.0/8 2 0 2
        +-- 10.244.1.0/24 2 0 2
           |-- 10.244.1.0
              /24 link UNICAST
           |-- 10.244.1.7
              /32 host LOCAL
           |-- 10.244.1.255
              /32 link BROADCAST
        |-- 10.9.0.4
           /32 host LOCAL
     +-- 127.0.0.0/8 2 0 2
        |-- 127.0.0.0
           /8 host LOCAL
        |-- 127.0.0.1
           /32 host LOCAL
     |-- 169.254.1.1
        /32 link UNICAST
        /32 host LOCAL
Local:
  |-- 10.244.1.7
     /32 host LOCAL
"""
ROUTE = """Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t0101F40A\t0003\t0\t0\t0\t00000000\t0\t0\t0
net1\t0000090A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
eth0\t0001F40A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
"""
IF_INET6 = """00000000000000000000000000000001 01 80 10 80       lo
fe8000000000000000fc00fffe000001 04 40 20 80     eth0
fd000000000000000000000000000002 04 40 00 82     eth0
"""


@little
def test_the_address_on_the_default_routes_interface_comes_first_and_loopback_never() -> None:
    assert [str(address) for address in addresses(FIB_TRIE, IF_INET6, ROUTE)] == ["10.244.1.7", "10.9.0.4", "fd00::2"]
    assert [str(address) for address in addresses(FIB_TRIE, "", "")] == ["10.9.0.4", "10.244.1.7"]
    assert addresses("", "", "") == ()


@given(st.text(), st.text(), st.text())
def test_any_texts_are_addresses_or_nothing(fib_trie: str, if_inet6: str, route: str) -> None:
    assert all(not address.is_loopback for address in addresses(fib_trie, if_inet6, route))


@given(st.text(alphabet="0123456789abcdef: |-/.\n\t", max_size=200))
def test_almost_right_texts_do_no_harm(text: str) -> None:
    addresses(FIB_TRIE + text, IF_INET6 + text, ROUTE + text)


IPV6_ROUTE = """fd000000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001 eth0
00000000000000000000000000000000 00 00000000000000000000000000000000 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003 eth0
fd990000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 00000001 00000000 00200200 lo
"""


@little
@pytest.mark.parametrize(
    ("address", "routed"),
    [
        ("10.244.1.7", True),
        ("10.9.0.77", True),
        ("10.10.0.1", False),
        ("192.0.2.8", False),
        ("fd00::7", True),
        ("fd01::7", False),
        ("fd99::1", False),
    ],
)
def test_the_default_route_is_no_way_to_a_container(address: str, routed: bool) -> None:
    assert is_routed(ipaddress.ip_address(address), ROUTE, IPV6_ROUTE) is routed
    assert not is_routed(ipaddress.ip_address(address), "", "")


@given(st.text(), st.sampled_from(["10.0.0.1", "fd00::1"]))
def test_any_routes_lead_somewhere_or_nowhere(text: str, address: str) -> None:
    is_routed(ipaddress.ip_address(address), ROUTE + text, IPV6_ROUTE + text)
