"""Single values of settings: durations, addresses, URLs, switches, numbers. Each parser takes what TOML or text gives and says in words
what is wrong with it (ValueError); which setting it was, the caller adds.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable
from urllib.parse import urlsplit

#: Below this a tick's own cost would show in what it measures; NVML's own sample period is 1/6 s at best (nvml.h, nvmlUtilization_t).
SHORTEST_INTERVAL = 0.1
LONGEST_INTERVAL = 3600.0

_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float:
    """Seconds from "1s", "500ms", "1m30s"; a plain number is seconds.

    Raises:
        ValueError: not a duration.
    """
    stripped = text.strip()
    if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", stripped):
        return float(stripped)
    parts = _DURATION_PART.findall(stripped)
    if not parts or "".join(number + unit for number, unit in parts) != stripped:
        raise ValueError("expected a duration such as 1s, 500ms or 1m30s")
    return sum(float(number) * _DURATION_UNITS[unit] for number, unit in parts)


def base_url(text: str) -> str:
    """The URL without a trailing slash or `/metrics`; raises ValueError when it is not one that can be asked."""
    try:
        parts = urlsplit(text)
        port_valid = parts.port is None or parts.port > 0
    except ValueError as error:
        # "Port could not be cast to integer value as 'word'": the word may be a password with a slash in it.
        words = "the port is no number" if "ort" in str(error) else str(error)
        raise ValueError(f"url is not valid: {words}") from None
    # The URL itself stays out of the messages once it may hold a password.
    if parts.username or parts.password:
        raise ValueError("url holds a user or password, which would show in logs; leave it out")
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_valid or re.search(r"\s", text):
        raise ValueError("url is not of the form http://HOST:PORT" if "@" in text else f"url {text!r} is not of the form http://HOST:PORT")
    if parts.query or parts.fragment:
        raise ValueError("url must have no query or fragment")
    path = parts.path.rstrip("/").removesuffix("/metrics").rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path}"


def authority(host: str, port: int) -> str:
    """``HOST:PORT`` as it stands in a URL: an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine's loopback; no name is resolved."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() in ("", "localhost")


def parse_listen(text: str) -> tuple[str, int]:
    """Host and port from ``HOST:PORT``, ``[IPV6]:PORT`` or ``:PORT``; the host is empty for all addresses of both families.

    Raises:
        ValueError: not an address.
    """
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^:\[\]\s/]*)):(\d{1,5})", text.strip())
    if match is None or int(match[3]) > 65535:
        raise ValueError("expected HOST:PORT, [IPV6]:PORT or :PORT with a port up to 65535")
    return match[1] or match[2] or "", int(match[3])


def listen(value: object) -> str:
    """An address as it stands, checked."""
    if not isinstance(value, str):
        raise ValueError("expected text such as 0.0.0.0:9747")
    parse_listen(value)
    return value.strip()


def interval(value: object) -> float:
    """Seconds from a duration or a number, within what makes sense."""
    seconds = parse_duration(value) if isinstance(value, str) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or math.isnan(seconds if isinstance(seconds, float) else 0.0):
        raise ValueError("expected a duration such as 1s or 500ms")
    if not SHORTEST_INTERVAL <= seconds <= LONGEST_INTERVAL:
        raise ValueError(f"must lie between {SHORTEST_INTERVAL:g} s and {LONGEST_INTERVAL:g} s")
    return float(seconds)


def boolean(value: object) -> bool:
    """A switch from true or false, yes or no, on or off, 1 or 0."""
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else ""
    if word in ("true", "yes", "on", "1"):
        return True
    if word in ("false", "no", "off", "0"):
        return False
    raise ValueError("expected true or false")


def expected_gpus(value: object) -> int:
    """A number of cards."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,4}", value.strip()):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1024:
        raise ValueError("expected a number of cards from 0 to 1024")
    return value


def path(value: object) -> str:
    """The path of a file; empty for none."""
    if not isinstance(value, str) or "\0" in value:
        raise ValueError("expected the path of a file")
    return value.strip()


def one_of(choices: tuple[str, ...]) -> Callable[[object], str]:
    """A parser that takes these words only."""

    def parse(value: object) -> str:
        if value not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}")
        return str(value)

    return parse
