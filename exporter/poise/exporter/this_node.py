"""Tells whether a host is this machine; no name is resolved."""

from __future__ import annotations

import errno
import ipaddress
import socket
import struct

from poise.exporter.procnet import Address
from poise.exporter.setting_values import is_loopback

#: linux/netlink.h and linux/rtnetlink.h.
_NETLINK_ROUTE, _NLM_F_REQUEST, _NLMSG_ERROR = 0, 1, 2
_RTM_NEWROUTE, _RTM_GETROUTE, _RTA_DST, _RTN_LOCAL = 24, 26, 1, 2
_HEADER, _ROUTE, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=BBBBBBBBI"), struct.Struct("=HH")
#: The kernel answers while it is asked.
_KERNEL_SECONDS = 1.0


def is_this_node(host: str, node: str) -> bool:
    """Whether a host name or address from a URL is this machine: loopback, one of its names, or an address of its own."""
    if is_loopback(host) or host.partition(".")[0] in {node.partition(".")[0], socket.gethostname().partition(".")[0]}:
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    if address.version == 6 and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.is_unspecified:
        return True
    try:
        delivered = _is_delivered_here(address)
    except (OSError, struct.error, IndexError):
        delivered = None
    return _can_be_bound(host, address) if delivered is None else delivered


def _is_delivered_here(address: Address) -> bool | None:
    """Whether the kernel delivers to this machine what is sent to an address; None when it does not tell (some sandboxes). Raises OSError."""
    attribute = _ATTRIBUTE.pack(_ATTRIBUTE.size + len(address.packed), _RTA_DST) + address.packed
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    route = _ROUTE.pack(family, 8 * len(address.packed), 0, 0, 0, 0, 0, 0, 0)
    header = _HEADER.pack(_HEADER.size + len(route) + len(attribute), _RTM_GETROUTE, _NLM_F_REQUEST, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_ROUTE) as kernel:
        kernel.settimeout(_KERNEL_SECONDS)
        kernel.sendto(header + route + attribute, (0, 0))
        answer = kernel.recv(65536)
    _, kind, *_ = _HEADER.unpack_from(answer)
    if kind == _RTM_NEWROUTE:
        return bool(_ROUTE.unpack_from(answer, _HEADER.size)[7] == _RTN_LOCAL)
    unreachable = kind == _NLMSG_ERROR and -struct.unpack_from("=i", answer, _HEADER.size)[0] in (errno.ENETUNREACH, errno.EHOSTUNREACH)
    return False if unreachable else None


def _can_be_bound(host: str, address: Address) -> bool:
    """The same in another way, which is wrong where the sysctl ip_nonlocal_bind is set: there every address can be bound."""
    try:
        with socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address) if address.version == 4 else host, 0))
    except OSError:
        return False
    return True
