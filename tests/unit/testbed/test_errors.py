"""What is said of a file that cannot be used."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from poise.testbed.errors import file_problem

OPTIONS = {"--progress": Path("/b/p.json"), "--state-dir": Path("/a/state")}


@pytest.mark.parametrize(
    ("number", "file", "said"),
    [
        (errno.ENOTDIR, "/a/state", "/a/state: Not a directory; give another --state-dir"),
        (errno.EACCES, "/a/state/lock", "/a/state/lock: Permission denied; give another --state-dir"),
        (errno.ENOSPC, b"/a/state/x", "/a/state/x: No space left on device; make room on its disk, or give another --state-dir"),
        (errno.ENOENT, "/b/p.json", "/b/p.json: No such file or directory; give another --progress"),
        (errno.EACCES, "/etc/shadow", "/etc/shadow: Permission denied"),
        (errno.ENOSPC, "/c/x", "/c/x: No space left on device; make room on its disk"),
        (errno.EACCES, "/c/\x1b[31m\n", r"'/c/\x1b[31m\n': Permission denied"),
        (errno.ECONNREFUSED, None, "Connection refused"),
    ],
)
def test_file_reason_and_way_out_are_one_line(number: int, file: str | bytes | None, said: str) -> None:
    assert file_problem(OSError(number, os.strerror(number), file), OPTIONS) == said


def test_an_error_that_says_nothing_is_called_by_its_name() -> None:
    assert file_problem(ConnectionResetError(), {}) == "ConnectionResetError"
