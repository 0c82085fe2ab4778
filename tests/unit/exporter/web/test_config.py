"""The web configuration file: what exporter-toolkit's says is taken as it is meant, and what cannot be in force is refused by its name."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from poise.exporter.web.config import CIPHER_SUITES, ClientAuth, RateLimit, TlsConfig, WebConfig, parse

from tests.complaints import complaint

FOLDER = Path("/etc/poise")
#: "fakepassword", as exporter-toolkit has it for users that there are not.
HASH = "$2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi"
TLS = "tls_server_config:\n  cert_file: server.pem\n  key_file: /keys/server.key\n"


def test_every_key_is_taken() -> None:
    config = parse(
        f"""
{TLS}
  client_ca_file: ca.pem
  client_auth_type: RequireAndVerifyClientCert
  client_allowed_sans: [prometheus.example, 10.0.0.1]
  min_version: TLS12
  max_version: TLS12
  cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, TLS_AES_128_GCM_SHA256]
  prefer_server_cipher_suites: false
  curve_preferences: [X25519]
http_server_config:
  http2: false
  headers:
    Strict-Transport-Security: max-age=63072000
    X-Frame-Options: deny
    X-XSS-Protection:
basic_auth_users:
  alice: {HASH}
  0123: {HASH}
rate_limit:
  interval: 500ms
  burst: 20
""",
        FOLDER,
    )
    assert config == WebConfig(
        TlsConfig(
            FOLDER / "server.pem",
            Path("/keys/server.key"),
            FOLDER / "ca.pem",
            ClientAuth.REQUIRE_AND_VERIFY,
            ("prometheus.example", "10.0.0.1"),
            "TLS12",
            "TLS12",
            ("ECDHE-RSA-AES128-GCM-SHA256",),
            "X25519",
            False,
        ),
        (("Strict-Transport-Security", "max-age=63072000"), ("X-Frame-Options", "deny")),
        {"alice": HASH, "0123": HASH},
        RateLimit(0.5, 20),
    )
    assert HASH not in repr(config)


@pytest.mark.parametrize("text", ["", "# nothing\n", "tls_server_config:\nhttp_server_config:\n", "rate_limit: {interval: 0}\n"])
def test_a_file_that_demands_nothing_is_good(text: str) -> None:
    assert parse(text, FOLDER) == WebConfig()


def test_defaults_are_those_of_exporter_toolkit() -> None:
    tls = parse(TLS, FOLDER).tls
    assert tls is not None
    assert (tls.client_auth, tls.min_version, tls.max_version, tls.prefer_server_cipher_suites) == ("NoClientCert", "TLS12", "TLS13", True)
    assert tls.files == (FOLDER / "server.pem", Path("/keys/server.key"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- a\n", ["the file must be a table"]),
        ("tls: {}\n", ["unknown key tls", "tls_server_config"]),
        ("tls_server_config: server.pem\n", ["tls_server_config must be a table"]),
        ("tls_server_config: {cert_file: a}\n", ["tls_server_config.key_file is missing"]),
        ("tls_server_config: {key_file: a}\n", ["tls_server_config.cert_file is missing"]),
        ("tls_server_config: {min_version: TLS13}\n", ["cert_file is missing"]),
        ("tls_server_config: {certfile: a}\n", ["unknown key tls_server_config.certfile"]),
        (TLS + "  cert: abc\n", ["tls_server_config.cert", "cert_file"]),
        (TLS + "  client_auth_type: RequestClientCert\n", ["RequestClientCert", "RequireAndVerifyClientCert"]),
        (TLS + "  client_auth_type: RequireAnyClientCert\n", ["RequireAnyClientCert", "RequireAndVerifyClientCert"]),
        (TLS + "  client_auth_type: Always\n", ["client_auth_type=Always", "VerifyClientCertIfGiven"]),
        (TLS + "  client_auth_type: RequireAndVerifyClientCert\n", ["needs client_ca_file"]),
        (TLS + "  client_ca_file: ca.pem\n", ["set client_auth_type"]),
        (
            TLS + "  client_ca_file: ca.pem\n  client_auth_type: VerifyClientCertIfGiven\n  client_allowed_sans: [a]\n",
            ["client_allowed_sans needs client_auth_type: RequireAndVerifyClientCert"],
        ),
        (TLS + "  min_version: TLS10\n", ["min_version=TLS10", "TLS12, TLS13"]),
        (TLS + "  min_version: TLS13\n  max_version: TLS12\n", ["min_version=TLS13 is above max_version=TLS12"]),
        (TLS + "  cipher_suites: [TLS_RSA_WITH_RC4_128_SHA]\n", ["TLS_RSA_WITH_RC4_128_SHA", next(iter(CIPHER_SUITES))]),
        (TLS + "  cipher_suites: [TLS_AES_128_GCM_SHA256]\n", ["TLS 1.3 only", "min_version: TLS13"]),
        (TLS + "  cipher_suites: all\n", ["cipher_suites must be a list"]),
        (TLS + "  curve_preferences: [X25519, CurveP256]\n", ["2 curves", "name one"]),
        (TLS + "  curve_preferences: [P256]\n", ["'P256'", "CurveP256"]),
        (TLS + "  prefer_server_cipher_suites: perhaps\n", ["prefer_server_cipher_suites", "true or false"]),
        (TLS + "  client_allowed_sans: [[a]]\n", ["client_allowed_sans must be a list of values"]),
        ("http_server_config: {http2: true}\n", ["http_server_config.http2", "HTTP/1.1"]),
        ("http_server_config: {headers: {X-Frame-Options: maybe}}\n", ["X-Frame-Options must be deny or sameorigin"]),
        ("http_server_config: {headers: {Server: me}}\n", ["cannot be set", "Strict-Transport-Security"]),
        ('http_server_config: {headers: {Content-Security-Policy: "a\\r\\nSet-Cookie: b"}}\n', ["no header may hold"]),
        ("rate_limit: {interval: soon, burst: 1}\n", ["rate_limit.interval=soon", "500ms"]),
        ("rate_limit: {interval: 1s}\n", ["rate_limit.burst=nothing", "from 1 on"]),
        ("rate_limit: {interval: 1s, burst: 0}\n", ["rate_limit.burst=0"]),
        ("basic_auth_users: [alice]\n", ["basic_auth_users must be a table"]),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(text: str, words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"\w") as error:
        parse(text, FOLDER)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    "users",
    [
        "alice: hunter2",
        "alice: {hunter2: hunter2}",
        "alice:",
        "hunter2:",
        "'': " + HASH,
        "'al:hunter2': " + HASH,
        "alice: " + HASH.replace("$10$", "$31$"),
        "alice: " + HASH.replace("$2y$", "$1$"),
        "alice: " + HASH + "x",
    ],
)
def test_a_user_without_a_good_hash_is_refused_and_nothing_of_him_repeated(users: str) -> None:
    with pytest.raises(ValueError, match="basic_auth_users") as error:
        parse(f"basic_auth_users:\n  {users}\n", FOLDER)
    assert not re.search(r"hunter2|alice|\$", str(error.value))


def test_a_secret_in_the_place_of_a_key_is_not_repeated() -> None:
    for text in (f"{HASH}: a\n", "Hunter2!: a\n", f"http_server_config: {{headers: {{{HASH}: a}}}}\n"):
        with pytest.raises(ValueError, match=r"unknown key|cannot be set") as error:
            parse(text, FOLDER)
        assert not re.search(r"unter2|\$2y", str(error.value))


def test_without_bcrypt_users_are_refused_and_the_rest_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bcrypt", None)
    with pytest.raises(ValueError, match=r"basic_auth_users needs bcrypt.*'\.\[web-config\]'"):
        parse(f"basic_auth_users: {{alice: {HASH}}}\n", FOLDER)
    assert parse(TLS, FOLDER).tls is not None


KEYS = [
    "tls_server_config",
    "http_server_config",
    "basic_auth_users",
    "rate_limit",
    "cert_file",
    "headers",
    "interval",
    "cipher_suites",
    "a",
]
VALUES = st.recursive(
    st.text(max_size=8) | st.sampled_from(["true", "TLS12", HASH, "1s", "5"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=60)
@given(VALUES)
def test_no_document_breaks_the_parser(value: object) -> None:
    yaml = pytest.importorskip("yaml")
    said = complaint(lambda: parse(yaml.safe_dump(value, allow_unicode=True), FOLDER), ValueError)
    assert said != "an empty message"
    assert HASH not in said
