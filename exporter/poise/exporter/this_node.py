"""Tells whether a host is this machine; no name is resolved."""

from __future__ import annotations

import ipaddress
import socket

from poise.exporter.setting_values import is_loopback


def is_this_node(host: str, node: str) -> bool:
    """Whether a host name or address from a URL is this machine: loopback, one of its names, or an address that it can bind."""
    if is_loopback(host) or host.partition(".")[0] in {node.partition(".")[0], socket.gethostname().partition(".")[0]}:
        return True
    try:
        address = ipaddress.ip_address(host)
        with socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except (ValueError, OSError):
        return False
    return True
