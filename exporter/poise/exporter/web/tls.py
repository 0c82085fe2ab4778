"""The server's side of TLS from the web configuration: the context of OpenSSL, and which client certificates are let in.

Opens the files that the configuration names; nothing else of it does.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path

from poise.exporter.settings import SettingsError, content
from poise.exporter.web.config import ClientAuth, TlsConfig

_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_VERIFY = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.VERIFY_IF_GIVEN: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRE_AND_VERIFY: ssl.CERT_REQUIRED,
}
#: The kinds of alternative names that exporter-toolkit compares (web/tls_config.go), as Python calls them.
_NAME_KINDS = ("DNS", "email", "IP Address", "URI")


def context(config: TlsConfig) -> ssl.SSLContext:
    """A context that serves with the files as they are now.

    Raises:
        ValueError: a file cannot be read or is not what it should be, or key and certificate do not belong together; names the key.
    """
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = _VERSIONS[config.min_version]
    made.maximum_version = _VERSIONS[config.max_version]
    made.verify_mode = _VERIFY[config.client_auth]
    if not config.prefer_server_cipher_suites:
        made.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    if config.cipher_suites:
        made.set_ciphers(":".join(config.cipher_suites))
    if config.curve:
        made.set_ecdh_curve(config.curve)
    for key, path in (("cert_file", config.cert_file), ("key_file", config.key_file), ("client_ca_file", config.client_ca_file)):
        if path is not None:
            _readable(key, path)
    try:
        made.load_cert_chain(config.cert_file, config.key_file, password=_no_password)
    except (ssl.SSLError, OSError) as error:
        raise ValueError(
            f"tls_server_config: {config.cert_file} and {config.key_file} are no certificate with its key ({_words(error)})"
        ) from None
    if config.client_ca_file is not None:
        try:
            made.load_verify_locations(cafile=config.client_ca_file)
        except (ssl.SSLError, OSError) as error:
            raise ValueError(f"tls_server_config.client_ca_file={config.client_ca_file} holds no certificate ({_words(error)})") from None
    return made


def _readable(key: str, path: Path) -> None:
    try:
        content(path, f"tls_server_config.{key}")
    except OSError as error:
        raise ValueError(f"tls_server_config.{key}={path}: {error.strerror or error}") from None
    except SettingsError as error:
        raise ValueError(str(error)) from None


def _no_password() -> str:
    """Without this OpenSSL would ask for one on the terminal, and the exporter would wait."""
    raise ValueError("tls_server_config.key_file is encrypted; exporters take keys without a password")


def _words(error: OSError) -> str:
    return str(getattr(error, "reason", None) or error.strerror or "unreadable").lower().replace("_", " ")


def allowed(certificate: Mapping[str, object] | None, names: tuple[str, ...]) -> bool:
    """Whether a client's certificate (as `getpeercert` gives it) carries one of these alternative names; any is good when none is named."""
    if not names:
        return True
    given = (certificate or {}).get("subjectAltName", ())
    assert isinstance(given, tuple)
    return any(kind in _NAME_KINDS and value in names for kind, value in given)
