"""The words for an address that cannot be listened on: what is wrong, and a way out."""

from __future__ import annotations

import errno
import os
import socket

import pytest
from poise.exporter.listening import refused


def system(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (system(errno.EADDRINUSE), "the port is taken, perhaps by another `poise x`. Choose another with --listen HOST:PORT."),
        (system(errno.EACCES), "no permission for this port. Choose one above 1023 with --listen HOST:PORT."),
        (system(errno.EADDRNOTAVAIL), "Cannot assign requested address. Choose another address with --listen HOST:PORT."),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "Name or service not known. Choose another address"),
        (OverflowError("port must be 0-65535"), "port must be 0-65535. Choose another address"),
    ],
)
def test_what_is_wrong_is_said_with_a_way_out(error: Exception, said: str) -> None:
    assert refused("h:1", error, "poise x").startswith(f"cannot listen on h:1: {said}")
