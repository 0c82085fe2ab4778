"""The web configuration file of Prometheus' exporter-toolkit (docs/web-configuration.md there), checked and as values.

What Python's TLS or this server cannot do is refused by its name: a key that is accepted is in force. Nothing is opened here but by tls.py,
and no message quotes a hash. Format as of exporter-toolkit 0.15.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import cast

from poise.exporter import setting_values
from poise.exporter.web import document

#: bcrypt doubles its work with each step: 10 takes 0.07 s, 16 takes 4 s, and a request has to be done within 10 s (server.py).
HIGHEST_COST = 16
#: The headers that exporter-toolkit lets a file set, with the values that it takes where it does not take all (web/handler.go).
HEADERS: Mapping[str, tuple[str, ...]] = {
    "Strict-Transport-Security": (),
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": (),
    "Content-Security-Policy": (),
}
VERSIONS = ("TLS12", "TLS13")
#: Go's names of curves → OpenSSL's.
CURVES = {"CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1", "X25519": "X25519"}
#: Go's names of the cipher suites up to TLS 1.2 that it holds to be safe (crypto/tls, CipherSuites) → OpenSSL's.
CIPHER_SUITES = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
}
#: The suites of TLS 1.3, which neither Go nor Python lets anybody choose among.
TLS13_CIPHER_SUITES = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")

_HASH = re.compile(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}")


class ClientAuth(StrEnum):
    """What is asked of a client: a certificate by no means, one that is checked if it comes, one in any case."""

    NONE = "NoClientCert"
    VERIFY_IF_GIVEN = "VerifyClientCertIfGiven"
    REQUIRE_AND_VERIFY = "RequireAndVerifyClientCert"


#: What Go offers and Python's ssl cannot do: a certificate that is asked for and not checked.
_UNCHECKED = ("RequestClientCert", "RequireAnyClientCert", "RequireClientCert")


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """The table `tls_server_config`. Cipher suites and curve by OpenSSL's names; empty for OpenSSL's own choice."""

    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None
    client_auth: ClientAuth = ClientAuth.NONE
    client_allowed_sans: tuple[str, ...] = ()
    min_version: str = "TLS12"
    max_version: str = "TLS13"
    cipher_suites: tuple[str, ...] = ()
    curve: str = ""
    prefer_server_cipher_suites: bool = True

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that these settings are read from."""
        return (self.cert_file, self.key_file, *([self.client_ca_file] if self.client_ca_file is not None else []))


@dataclass(frozen=True, slots=True)
class RateLimit:
    """One request per `interval` seconds, and `burst` at once."""

    interval: float
    burst: int


@dataclass(frozen=True, slots=True)
class WebConfig:
    """The whole file. `users`: name → bcrypt hash; nobody is asked who he is when it is empty."""

    tls: TlsConfig | None = None
    headers: tuple[tuple[str, str], ...] = ()
    users: Mapping[str, str] = field(default_factory=dict, repr=False)
    rate_limit: RateLimit | None = None


def parse(text: str, folder: Path) -> WebConfig:
    """The configuration that `text` is; relative paths in it are below `folder`.

    Raises:
        ValueError: what is wrong, with the key and the way out.
    """
    top = _Table("", document.read(text), ("tls_server_config", "http_server_config", "basic_auth_users", "rate_limit"))
    return WebConfig(
        _tls(top.table("tls_server_config", _TLS_KEYS), folder),
        _headers(top.table("http_server_config", ("http2", "headers"))),
        _users(top),
        _rate_limit(top.table("rate_limit", ("interval", "burst"))),
    )


class _Table:
    """A mapping of the file, read key by key; every complaint starts with the key's full name."""

    def __init__(self, name: str, value: object, known: tuple[str, ...] | None) -> None:
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise ValueError(f"{name or 'the file'} must be a table of keys and values")
        self.name = name
        # A key without a value is as good as absent, as it is for exporter-toolkit.
        self.keys = tuple(cast("dict[str, object]", value))
        self.given = {key: given for key, given in cast("dict[str, object]", value).items() if given is not None}
        unknown = sorted(set(value) - set(known)) if known is not None else []
        if unknown:
            # What stands in the wrong place may be anything, a password too: only what looks like a key is repeated.
            shown = self.full(unknown[0]) if re.fullmatch(r"[a-z_]{1,40}", unknown[0]) else f"in {self.name or 'the file'}"
            raise ValueError(f"unknown key {shown}; known are {', '.join(known or ())}")

    def full(self, key: str) -> str:
        return f"{self.name}.{key}" if self.name else key

    def table(self, key: str, known: tuple[str, ...] | None) -> _Table:
        return _Table(self.full(key), self.given.get(key), known)

    def text(self, key: str) -> str:
        value = self.given.get(key, "")
        if not isinstance(value, str):
            raise ValueError(f"{self.full(key)} must be a single value")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.given.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            raise ValueError(f"{self.full(key)} must be a list of values")
        return tuple(value)

    def switch(self, key: str, otherwise: bool) -> bool:
        if key not in self.given:
            return otherwise
        try:
            return setting_values.boolean(self.given[key])
        except ValueError as error:
            raise ValueError(f"{self.full(key)}: {error}") from None

    def one_of(self, key: str, choices: tuple[str, ...], otherwise: str) -> str:
        value = self.text(key) or otherwise
        if value not in choices:
            raise ValueError(f"{self.full(key)}={value[:64]} is not one of {', '.join(choices)}")
        return value


# ---------------------------------------------------------------------------------------------------------------------- TLS
_TLS_KEYS = (
    "cert_file",
    "key_file",
    "client_ca_file",
    "client_auth_type",
    "client_allowed_sans",
    "min_version",
    "max_version",
    "cipher_suites",
    "prefer_server_cipher_suites",
    "curve_preferences",
    "cert",
    "key",
    "client_ca",
)


def _tls(table: _Table, folder: Path) -> TlsConfig | None:
    if not table.given:
        return None
    for key in ("cert", "key", "client_ca"):
        if key in table.given:
            raise ValueError(f"{table.full(key)}: certificates and keys inside this file are not supported; name a file in {key}_file")
    for key in ("cert_file", "key_file"):
        if not table.text(key):
            raise ValueError(f"{table.full(key)} is missing: TLS needs cert_file and key_file")
    authority = table.text("client_ca_file")
    auth = _client_auth(table, authority)
    names = table.texts("client_allowed_sans")
    if names and auth is not ClientAuth.REQUIRE_AND_VERIFY:
        raise ValueError(f"{table.full('client_allowed_sans')} needs client_auth_type: {ClientAuth.REQUIRE_AND_VERIFY}")
    lowest, highest = (
        table.one_of(key, VERSIONS, otherwise) for key, otherwise in (("min_version", VERSIONS[0]), ("max_version", VERSIONS[-1]))
    )
    if lowest > highest:
        raise ValueError(f"{table.full('min_version')}={lowest} is above max_version={highest}; leave one of them out")
    return TlsConfig(
        _file(table, "cert_file", folder),
        _file(table, "key_file", folder),
        _file(table, "client_ca_file", folder) if authority else None,
        auth,
        names,
        lowest,
        highest,
        _cipher_suites(table, lowest),
        _curve(table),
        table.switch("prefer_server_cipher_suites", True),
    )


def _file(table: _Table, key: str, folder: Path) -> Path:
    value = table.text(key)
    if "\0" in value:
        raise ValueError(f"{table.full(key)} is not the path of a file")
    return folder / value


def _client_auth(table: _Table, authority: str) -> ClientAuth:
    value = table.text("client_auth_type")
    if value in _UNCHECKED:
        raise ValueError(
            f"{table.full('client_auth_type')}={value} takes certificates that nobody has checked, which Python's TLS does not do; "
            f"use {ClientAuth.REQUIRE_AND_VERIFY}"
        )
    auth = ClientAuth(table.one_of("client_auth_type", tuple(ClientAuth), ClientAuth.NONE))
    if auth is ClientAuth.NONE and authority:
        raise ValueError(f"{table.full('client_ca_file')} is given, and no client is asked for a certificate; set client_auth_type")
    if auth is not ClientAuth.NONE and not authority:
        raise ValueError(f"{table.full('client_auth_type')}={auth} needs client_ca_file: whose certificates are good")
    return auth


def _cipher_suites(table: _Table, lowest: str) -> tuple[str, ...]:
    chosen = []
    for name in table.texts("cipher_suites"):
        if name in CIPHER_SUITES:
            chosen.append(CIPHER_SUITES[name])
        elif name not in TLS13_CIPHER_SUITES:
            raise ValueError(f"{table.full('cipher_suites')}: {name[:64]!r} is not one of {', '.join(CIPHER_SUITES)}")
    if table.texts("cipher_suites") and not chosen and lowest != "TLS13":
        raise ValueError(
            f"{table.full('cipher_suites')} names suites of TLS 1.3 only, among which nobody can choose; leave it out and set min_version: TLS13"
        )
    return tuple(chosen)


def _curve(table: _Table) -> str:
    names = table.texts("curve_preferences")
    for name in names:
        if name not in CURVES:
            raise ValueError(f"{table.full('curve_preferences')}: {name[:64]!r} is not one of {', '.join(CURVES)}")
    if len(names) > 1:
        raise ValueError(f"{table.full('curve_preferences')} has {len(names)} curves, and Python's TLS takes one; name one or leave it out")
    return CURVES[names[0]] if names else ""


# --------------------------------------------------------------------------------------------------------------------- HTTP
def _headers(table: _Table) -> tuple[tuple[str, str], ...]:
    if table.switch("http2", False):
        raise ValueError(f"{table.full('http2')}: this server speaks HTTP/1.1 only; say false or leave it out")
    headers = table.table("headers", None)
    chosen = []
    for name in headers.given:
        if name not in HEADERS:
            raise ValueError(f"{headers.name}: a header that cannot be set is among them; these can: {', '.join(HEADERS)}")
        value = headers.text(name)
        if HEADERS[name] and value not in HEADERS[name]:
            raise ValueError(f"{headers.full(name)} must be {' or '.join(HEADERS[name])}")
        if not re.fullmatch(r"[\t -~]*", value):
            raise ValueError(f"{headers.full(name)} has characters that no header may hold")
        chosen.append((name, value))
    return tuple(chosen)


def _users(top: _Table) -> dict[str, str]:
    table = top.table("basic_auth_users", None)
    # All keys, those without a value too: a user without a hash must not become a server without users.
    for number, name in enumerate(table.keys, 1):
        # Neither the name nor the hash is repeated: what stands in the wrong place here may well be a password.
        if ":" in name or not name:
            raise ValueError(f"{table.name}: the name of user {number} is empty or has a colon in it, which basic auth cannot carry")
        hashed = table.given.get(name)
        match = _HASH.fullmatch(hashed) if isinstance(hashed, str) else None
        if match is None:
            raise ValueError(f"{table.name}: user {number} has no bcrypt hash; make one with: htpasswd -nBC 10 NAME")
        if not 4 <= int(match[1]) <= HIGHEST_COST:
            raise ValueError(f"{table.name}: the hash of user {number} has the cost {match[1]}; take one from 4 to {HIGHEST_COST}")
    if table.keys:
        document.library("bcrypt", "bcrypt", table.name)
    return {name: table.text(name) for name in table.keys}


def _rate_limit(table: _Table) -> RateLimit | None:
    text = table.text("interval") or "0"
    try:
        interval = setting_values.parse_duration(text)
    except ValueError as error:
        raise ValueError(f"{table.full('interval')}={text[:64]}: {error}") from None
    if not interval:
        return None
    burst = table.text("burst")
    if not re.fullmatch(r"[1-9]\d{0,5}", burst):
        raise ValueError(
            f"{table.full('burst')}={burst[:64] or 'nothing'}: must be a number from 1 on, else no request would ever be answered"
        )
    return RateLimit(interval, int(burst))
