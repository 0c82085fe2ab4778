"""Which Host names a loopback listener answers to."""

from __future__ import annotations

import pytest
from poise.dashboard.security import HEADERS, allowed_hosts, host_of, is_loopback


@pytest.mark.parametrize(
    ("header", "host"),
    [
        ("localhost:9748", "localhost"),
        ("127.0.0.1", "127.0.0.1"),
        ("[::1]:9748", "::1"),
        ("::1", "::1"),
        ("Poise.Example:80", "poise.example"),
        ("", ""),
    ],
)
def test_the_host_of_a_header(header: str, host: str) -> None:
    assert host_of(header) == host


def test_loopback_listeners_know_their_names_and_those_that_were_allowed() -> None:
    assert allowed_hosts("127.0.0.1", ["gpu.example:443"]) == {"localhost", "127.0.0.1", "::1", "gpu.example"}
    assert allowed_hosts("127.0.0.2", []) is not None
    assert "127.0.0.2" in (allowed_hosts("127.0.0.2", []) or ())
    assert allowed_hosts("0.0.0.0", []) is None
    assert allowed_hosts("::1", []) is not None
    assert not is_loopback("example.org")


def test_scripts_and_styles_come_from_this_host_only() -> None:
    policy = HEADERS["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
