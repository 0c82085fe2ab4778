"""Certificates for tests, made on the spot by the real OpenSSL: an authority, and what it signs. Elliptic keys, so that it takes milliseconds."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.needs import needs

SECONDS = 30
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")


class Pair(NamedTuple):
    """A certificate and its key, as PEM files."""

    certificate: Path
    key: Path


def _openssl(*arguments: str | Path) -> None:
    done = subprocess.run([needs("openssl"), *map(str, arguments)], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr


def encrypt(key: Path, password: str) -> None:
    """Puts a password on a key file."""
    _openssl("ec", "-in", key, "-aes256", "-passout", f"pass:{password}", "-out", key)


@dataclass(frozen=True)
class Authority:
    """An authority with its own key, in a folder."""

    folder: Path
    name: str = "authority"

    @classmethod
    def create(cls, folder: Path, name: str = "authority") -> Authority:
        """A new one."""
        made = cls(folder, name)
        usage = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
        _openssl("req", "-x509", *_KEY, "-subj", f"/CN={name}", *usage, "-out", made.certificate, "-keyout", folder / f"{name}.key")
        return made

    @property
    def certificate(self) -> Path:
        return self.folder / f"{self.name}.pem"

    def issue(self, name: str, alternative_names: str = "DNS:localhost,IP:127.0.0.1", usage: str = "serverAuth,clientAuth") -> Pair:
        """A certificate of this authority; `alternative_names` as OpenSSL writes them."""
        pair = Pair(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        extensions = [
            item
            for extension in ("basicConstraints=CA:FALSE", f"extendedKeyUsage={usage}", f"subjectAltName={alternative_names}")
            for item in ("-addext", extension)
        ]
        signing = ("-CA", self.certificate, "-CAkey", self.folder / f"{self.name}.key")
        _openssl("req", "-x509", *_KEY, "-subj", f"/CN={name}", *extensions, *signing, "-out", pair.certificate, "-keyout", pair.key)
        return pair
