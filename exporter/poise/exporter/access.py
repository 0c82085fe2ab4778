"""How a server that a person named lets itself be asked: whose certificate is good, and who we say that we are. Values only.

A secret is never a value here: a file or an environment variable holds it, and this says which. engines/credentials.py reads it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from poise.exporter import setting_values


@dataclass(frozen=True, slots=True)
class Access:
    """Paths of PEM files and of files with one secret; "" for what was not said.

    `ca_file` replaces the system's authorities, `server_name` is the name that the certificate has to carry instead of the URL's host,
    `insecure_skip_verify` takes any certificate. Either a bearer token or a user with a password.
    """

    ca_file: str = ""
    server_name: str = ""
    cert_file: str = ""
    key_file: str = ""
    insecure_skip_verify: bool = False
    bearer_token_file: str = ""
    bearer_token_env: str = ""
    username: str = ""
    password_file: str = ""
    password_env: str = ""

    @property
    def has_secret(self) -> bool:
        """Whether a token or a password goes with each request."""
        return bool(self.bearer_token_file or self.bearer_token_env or self.username)

    def beside(self, folder: Path) -> Access:
        """The same with relative paths below `folder`."""
        paths: dict[str, Any] = {key: str(folder / getattr(self, key)) for key in _FILES if getattr(self, key)}
        return replace(self, **paths)


#: Nothing was said: a certificate has to be good by the system's authorities, and nobody logs in.
PLAIN = Access()
KEYS = tuple(item.name for item in fields(Access))
#: Of those, the ones that speak of TLS.
_TLS_KEYS = ("ca_file", "server_name", "cert_file", "key_file", "insecure_skip_verify")
_FILES = tuple(key for key in KEYS if key.endswith("_file"))
#: What people write for a secret, and what to write instead.
_SECRETS = {
    **dict.fromkeys(("bearer_token", "token", "api_key", "authorization"), "bearer_token_file=FILE or bearer_token_env=VARIABLE"),
    **dict.fromkeys(("password", "basic_auth"), "username=NAME with password_file=FILE or password_env=VARIABLE"),
}


def secret_hint(key: str) -> str:
    """What to write instead of a key that would hold a secret itself; empty for any other key."""
    way = _SECRETS.get(key.strip().lower().replace("-", "_"), "")
    return f"{key} would hold a secret, which shows in process lists and logs; give {way}" if way else ""


def from_values(values: Mapping[str, Any], url: str) -> Access:
    """The access that the keys of `KEYS` among `values` describe, for a server at `url`.

    Raises:
        ValueError: what is wrong with them, in words.
    """
    given = {key: values[key] for key in KEYS if key in values}
    if "insecure_skip_verify" in given:
        try:
            given["insecure_skip_verify"] = setting_values.boolean(given["insecure_skip_verify"])
        except ValueError as error:
            raise ValueError(f"insecure_skip_verify: {error}") from None
    for key in _FILES:
        if key in given:
            given[key] = setting_values.path(given[key])
    access = Access(**given)
    _check_tls(access, url)
    _check_secret(access)
    return access


def _check_tls(access: Access, url: str) -> None:
    said = [key for key in _TLS_KEYS if getattr(access, key)]
    if said and not url.startswith("https:"):
        raise ValueError(f"{said[0]} is about TLS, and the url is {url.partition(':')[0]}; write https, or leave it out")
    if access.key_file and not access.cert_file:
        raise ValueError("key_file needs cert_file, the certificate that it belongs to")
    if access.server_name and not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.:-]{0,252})", access.server_name):
        raise ValueError(f"server_name {access.server_name!r} is no host name as a certificate carries it, such as qwen.internal")
    if access.insecure_skip_verify and (access.ca_file or access.server_name):
        what = "ca_file" if access.ca_file else "server_name"
        raise ValueError(f"insecure_skip_verify takes any certificate, so {what} would say nothing; leave one of them out")


def _check_secret(access: Access) -> None:
    tokens = [key for key in ("bearer_token_file", "bearer_token_env") if getattr(access, key)]
    passwords = [key for key in ("password_file", "password_env") if getattr(access, key)]
    if len(tokens) > 1 or len(passwords) > 1:
        both = tokens if len(tokens) > 1 else passwords
        raise ValueError(f"{both[0]} and {both[1]} name two places for one secret; leave one of them out")
    if tokens and (access.username or passwords):
        raise ValueError(f"{tokens[0]} and {'username' if access.username else passwords[0]} are two ways to log in; leave one of them out")
    if bool(access.username) != bool(passwords):
        missing = "password_file or password_env" if access.username else "username"
        raise ValueError(f"{'username' if access.username else passwords[0]} needs {missing}")
    if ":" in access.username or not access.username.isprintable():
        raise ValueError("username holds a colon or an unprintable character, which HTTP basic auth cannot carry")
    for key in ("bearer_token_env", "password_env"):
        name = getattr(access, key)
        if name and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            # The name itself stays out of the message: it may be the secret.
            raise ValueError(f"{key} is not the name of an environment variable; give the name of the variable that holds the secret")
