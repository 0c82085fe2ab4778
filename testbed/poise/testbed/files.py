"""Small JSON files that another process reads while we write them: whole, or not at all.

Knows nothing of what the files mean.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path


def write_json(path: Path, value: object) -> None:
    """Replaces `path` atomically. Raises OSError that names `path`, ValueError for NaN and infinity, which JSON does not have."""
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                json.dump(value, stream, ensure_ascii=False, allow_nan=False)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def read_json_object(path: Path) -> dict[str, object] | None:
    """The object in `path`; None when there is no such file or what it holds is not one: a disk can cut a file short, and anybody can put
    a folder there, or a text that is nested too deep."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
