"""Reads what the files below /proc/PID/net say of a network namespace: its addresses, what listens, what is connected. Pure.

Formats: Documentation/networking/proc_net_tcp.rst; net/ipv4/fib_trie.c (fib_trie_seq_show), net/ipv6/addrconf.c (if6_seq_show),
net/ipv4/fib_trie.c (fib_route_seq_show) of Linux. Addresses are written as the 32-bit words in which this machine holds them.
"""

from __future__ import annotations

import ipaddress
import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

ESTABLISHED = 0x01  # include/net/tcp_states.h
TIME_WAIT = 0x06
_REJECT = 0x0200  # RTF_REJECT, include/uapi/linux/route.h
LISTEN = 0x0A

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_LEAF = re.compile(r"\|--\s+(\d+\.\d+\.\d+\.\d+)\s*\Z")
_LINK_SCOPES = {"10", "20"}  # IPV6_ADDR_LOOPBACK, IPV6_ADDR_LINKLOCAL (include/net/ipv6.h): good inside only


class TcpRow(NamedTuple):
    """One socket. A tuple, and the local address as written until it is asked for: a busy node has 100,000 of them, most only counted."""

    local: str
    local_port: int
    remote_port: int
    state: int
    inode: int

    @property
    def address(self) -> Address | None:
        """The local address, an IPv4 one also where an IPv6 socket holds it; None when it is no address."""
        try:
            words = [self.local[start : start + 8] for start in range(0, len(self.local), 8)]
            packed = b"".join(struct.pack("=I", int(word, 16)) for word in words)
            if len(packed) == 4:
                return ipaddress.IPv4Address(packed)
            address = ipaddress.IPv6Address(packed)
        except (ValueError, struct.error):
            return None
        return address.ipv4_mapped or address


def tcp_rows(data: bytes) -> Iterator[TcpRow]:
    """The rows of a /proc/PID/net/tcp or tcp6; those that make no sense are left out."""
    for line in data.splitlines()[1:]:
        fields = line.split(None, 10)
        try:
            local, _, port = fields[1].partition(b":")
            remote_port = fields[2].rpartition(b":")[2]
            yield TcpRow(local.decode("ascii"), int(port, 16), int(remote_port, 16), int(fields[3], 16), int(fields[9]))
        except (IndexError, ValueError):
            continue


def addresses(fib_trie: str, if_inet6: str, route: str) -> tuple[Address, ...]:
    """The addresses of a namespace by which others may reach it: neither loopback nor link-local. Those of the default route's interface
    come first, IPv4 before IPv6: a second interface often belongs to a network that only the containers see.
    """
    found = {address for address in _local_ipv4(fib_trie) if not (address.is_loopback or address.is_link_local or address.is_unspecified)}
    preferred = _default_networks(route)
    four = sorted(found, key=lambda address: (not any(address in network for network in preferred), address))
    return (*four, *dict.fromkeys(_ipv6(if_inet6)))


def _local_ipv4(fib_trie: str) -> Iterator[ipaddress.IPv4Address]:
    """Leaves of the tree under which `/32 host LOCAL` stands."""
    leaf = ""
    for line in fib_trie.splitlines():
        found = _LEAF.search(line)
        if found is not None:
            leaf = found[1]
        elif leaf and line.split() == ["/32", "host", "LOCAL"]:
            try:
                yield ipaddress.IPv4Address(leaf)
            except ValueError:
                continue


def _ipv6(if_inet6: str) -> Iterator[ipaddress.IPv6Address]:
    """Lines are: address, interface index, prefix length, scope, flags, interface."""
    for line in if_inet6.splitlines():
        fields = line.split()
        try:
            if fields[3] not in _LINK_SCOPES:
                yield ipaddress.IPv6Address(bytes.fromhex(fields[0]))
        except (IndexError, ValueError):
            continue


def is_routed(address: Address, route: str, ipv6_route: str) -> bool:
    """Whether a namespace with these tables has a route to an address besides its default route."""
    if isinstance(address, ipaddress.IPv4Address):
        return any(network.prefixlen and address in network for _, network in _routes(route))
    return any(network.prefixlen and address in network for network in _ipv6_routes(ipv6_route))


def _default_networks(route: str) -> list[ipaddress.IPv4Network]:
    """The networks on the interface of the default route."""
    rows = list(_routes(route))
    default = {interface for interface, network in rows if network.prefixlen == 0}
    return [network for interface, network in rows if interface in default and network.prefixlen]


def _routes(route: str) -> Iterator[tuple[str, ipaddress.IPv4Network]]:
    """Interface and network of each route; columns are: interface, destination, gateway, flags, …, mask (the eighth)."""
    for line in route.splitlines()[1:]:
        fields = line.split()
        try:
            destination, mask = (ipaddress.IPv4Address(struct.pack("=I", int(fields[column], 16))) for column in (1, 7))
            if not int(fields[3], 16) & _REJECT:
                yield fields[0], ipaddress.IPv4Network((int(destination), str(mask)), strict=False)
        except (IndexError, ValueError, struct.error):
            continue


def _ipv6_routes(ipv6_route: str) -> Iterator[ipaddress.IPv6Network]:
    """The network of each route; columns are: destination, prefix length, source, its length, next hop, metric, references, use, flags,
    interface (net/ipv6/route.c, ip6_fib.c).
    """
    for line in ipv6_route.splitlines():
        fields = line.split()
        try:
            if not int(fields[8], 16) & _REJECT:
                yield ipaddress.IPv6Network((bytes.fromhex(fields[0]), int(fields[1], 16)), strict=False)
        except (IndexError, ValueError):
            continue
