"""Reads what `Access` names, as it is now: the TLS context and the header that says who we are.

Files are looked at with every request, so that a token or a certificate that was renewed holds from the next poll on. A secret exists here
only while its request is made: no error, log or series quotes one.
"""

from __future__ import annotations

import base64
import os
import ssl
from collections.abc import Mapping
from pathlib import Path

from poise.exporter.access import Access
from poise.exporter.settings import SettingsError, content

#: How a discovered engine is asked: its process says who it is and its address is this node's, whatever its certificate names; it gets no
#: secret (docs/adr/0012-certificates-of-engines.md).
DISCOVERED = Access(insecure_skip_verify=True)


#: What to do about a server that ends a connection of TLS without a word.
BROKE_OFF = "if it wants a certificate of ours, give cert_file=FILE,key_file=FILE"


class AccessError(Exception):
    """What `Access` names cannot be used; the message names key, file and way out."""


class Credentials:
    """Reads for one server. `environment` holds the variables that `Access` may name. Not for several threads."""

    def __init__(self, access: Access, environment: Mapping[str, str] | None = None) -> None:
        self.access = access
        self._environment = os.environ if environment is None else environment
        self._context: ssl.SSLContext | None = None
        self._made_of: tuple[object, ...] = ()

    def headers(self) -> Mapping[str, str]:
        """The header that carries token or password; none when neither was said.

        Raises:
            AccessError: file or variable cannot be read, is empty, or holds what no header can carry.
        """
        access = self.access
        if access.bearer_token_file or access.bearer_token_env:
            return {"Authorization": f"Bearer {self._secret('bearer_token', access.bearer_token_file, access.bearer_token_env)}"}
        if access.username:
            pair = f"{access.username}:{self._secret('password', access.password_file, access.password_env)}"
            return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
        return {}

    def _secret(self, key: str, path: str, variable: str) -> str:
        where = f"{key}_file={path}" if path else f"{key}_env={variable}"
        if path:
            try:
                text = _read(f"{key}_file", path).decode()
            except UnicodeDecodeError:
                raise AccessError(f"{where} is no UTF-8 text; it has to hold the secret alone") from None
        else:
            text = self._environment.get(variable, "")
        secret = text.strip()
        if not secret:
            way = "write the secret into it" if path else "set it for the exporter and start that again"
            raise AccessError(f"{where} is empty; {way}")
        if not secret.isprintable() or (key == "bearer_token" and not secret.isascii()):
            raise AccessError(f"{where} holds more than one line or characters that no header carries; it has to hold the secret alone")
        return secret

    def context(self) -> ssl.SSLContext:
        """The TLS context, made anew when one of its files has changed.

        Raises:
            AccessError: a file cannot be read or is not what it should be.
        """
        made_of = tuple(_signature(path) for path in (self.access.ca_file, self.access.cert_file, self.access.key_file))
        if self._context is None or made_of != self._made_of:
            self._context, self._made_of = _context(self.access), made_of
        return self._context


def _signature(path: str) -> object:
    """What changes when a file does; None for one that is not there."""
    if not path:
        return None
    try:
        status = os.stat(path)
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev)


def _read(key: str, path: str) -> bytes:
    try:
        return content(Path(path), key)
    except OSError as error:
        raise AccessError(f"{key}={path}: {error.strerror or error}; put the file there or name another") from None
    except SettingsError as error:
        raise AccessError(str(error)) from None


def _context(access: Access) -> ssl.SSLContext:
    system = not access.ca_file and not access.insecure_skip_verify
    context = ssl.create_default_context() if system else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if access.ca_file:
        _read("ca_file", access.ca_file)
        try:
            context.load_verify_locations(cafile=access.ca_file)
        except (ssl.SSLError, OSError):
            raise AccessError(f"ca_file={access.ca_file} holds no certificate in PEM form; name the one that signed the engine's") from None
    if access.insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if access.cert_file:
        _load_own(context, access)
    return context


def _load_own(context: ssl.SSLContext, access: Access) -> None:
    """Our own certificate and key, for a server that asks for one."""
    for key, path in (("cert_file", access.cert_file), ("key_file", access.key_file)):
        if path:
            _read(key, path)
    files = f"cert_file={access.cert_file}" + (f" and key_file={access.key_file}" if access.key_file else "")
    try:
        context.load_cert_chain(access.cert_file, access.key_file or None, password=_no_password)
    except _Encrypted:
        raise AccessError(f"{files}: the key has a password, which nobody could type here; name a key without one") from None
    except (ssl.SSLError, OSError):
        way = "" if access.key_file else "; name the key with key_file"
        raise AccessError(f"{files} are no certificate with its key in PEM form{way}") from None


class _Encrypted(Exception):
    """A key that wants a password."""


def _no_password() -> str:
    """Without this OpenSSL would ask for one on the terminal, and the exporter would wait."""
    raise _Encrypted


def tls_problem(error: ssl.SSLError, host: str) -> tuple[str, str]:
    """What went wrong, in words, and the way out for a server that is asked with `Access`. Verification: OpenSSL's texts (openssl/x509_txt.c)."""
    if isinstance(error, ssl.SSLCertVerificationError):
        words = error.verify_message.rstrip(".")
        if "not valid for" in words:
            return f"the certificate does not name {host}", "give a name that it carries with server_name=NAME"
        if "expired" in words or "not yet valid" in words:
            return f"the certificate cannot be trusted: {words}", "renew it"
        way = "name the authority that signed it with ca_file=FILE, or trust any certificate with insecure_skip_verify=true"
        return f"the certificate cannot be verified: {words}", way
    told = getattr(error, "reason", None) or str(error)  # only OpenSSL sets a reason
    reason = told.upper()
    if "CERTIFICATE_REQUIRED" in reason or "HANDSHAKE_FAILURE" in reason:
        return "TLS failed: the server wants a certificate of ours", "give cert_file=FILE,key_file=FILE"
    if "UNKNOWN_CA" in reason or "BAD_CERTIFICATE" in reason:
        return "TLS failed: the server does not trust our certificate", "name one of an authority that it trusts with cert_file=FILE"
    if "WRONG_VERSION_NUMBER" in reason or "HTTP_REQUEST" in reason or "RECORD_LAYER" in reason:
        return "TLS failed: no TLS is spoken there", "write http:// in the URL"
    return f"TLS failed: {told}", ""
