"""The static files in memory, each with a content hash in its URL and a compressed copy. Knows no page.

They are few and small, so they are read once; a name that is not in the list is not there, whatever its path looks like.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

#: URL name → (files below static/, joined; content type). htmx and its extension are one file, because htmx sets the page up as soon as
#: it can, and an extension that arrives later is not asked.
FILES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "poise.css": (("poise.css",), "text/css; charset=utf-8"),
    "poise.js": (("poise.js",), "text/javascript; charset=utf-8"),
    "favicon.svg": (("favicon.svg",), "image/svg+xml"),
    "htmx.js": (("vendor/htmx-4.0.1.min.js", "vendor/hx-sse-4.0.1.min.js"), "text/javascript; charset=utf-8"),
    "inter.woff2": (("vendor/inter-5.3.0-latin.woff2",), "font/woff2"),
}


@dataclass(frozen=True, slots=True)
class Asset:
    """A static file. `compressed` is None where compression gains nothing."""

    content_type: str
    body: bytes
    compressed: bytes | None
    digest: str


def load() -> dict[str, Asset]:
    """All static files by URL name. Raises FileNotFoundError at start rather than a 404 later."""
    root = files("poise.dashboard") / "static"
    found: dict[str, Asset] = {}
    # The style sheet comes last: it names the font by its hash, as the page does, so that a browser fetches it once.
    for name, (paths, content_type) in sorted(FILES.items(), key=lambda item: item[0].endswith(".css")):
        body = b";\n".join((root / path).read_bytes() for path in paths)
        if name.endswith(".css"):
            body = body.replace(b"inter.woff2", f"inter.woff2?v={found['inter.woff2'].digest}".encode())
        packed = gzip.compress(body, 9, mtime=0)
        small = len(packed) < 0.95 * len(body)
        found[name] = Asset(content_type, body, packed if small else None, hashlib.sha256(body).hexdigest()[:12])
    return found
