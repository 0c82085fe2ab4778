"""The error that the testbed shows to a person, and what is said of a file that cannot be used. Knows nothing else."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path

_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class TestbedError(Exception):
    """Something a person can act on. The text names the thing, the value and the way out; it is shown without traceback."""

    __test__ = False  # pytest collects classes by name


def file_problem(error: OSError, options: Mapping[str, Path]) -> str:
    """One line about a file or folder that cannot be used: which, why, and the way out. `options` are flags of the command line with the
    path of each: that which the file is, or lies in, is to be given another."""
    if error.filename is None:
        return error.strerror or str(error) or type(error).__name__
    file = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else str(error.filename)
    found = next((option for option, path in options.items() if Path(file) == path or path in Path(file).parents), None)
    ways = [f"make room on its disk{', or ' if found else ''}"] if error.errno in _DISK_FULL else []
    way = "".join([*ways, f"give another {found}" if found else ""])
    return f"{file if file.isprintable() else ascii(file)}: {error.strerror or error}{f'; {way}' if way else ''}"
