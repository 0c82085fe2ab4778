"""Programs that tests need: found, or the test says so. In CI a missing one is a failure, elsewhere a skip with its reason.

A test that quietly skips in CI proves nothing, so nothing here can be switched off there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import NoReturn

import pytest

#: Names under which a program is installed, where it is not its own: Debian renames Alertmanager.
OTHER_NAMES = {"alertmanager": ("prometheus-alertmanager",)}


def needs_namespaces() -> None:
    """The right to make network, mount and pid namespaces, which containers are made of. Without it as without a program."""
    needs("ip")
    command = [needs("unshare"), "--net", "--mount", "--pid", "--fork", "--mount-proc", "true"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        _missing(f"namespaces cannot be made here ({done.stderr.strip() or 'unshare failed'}); root may make them")


def needs(program: str) -> str:
    """The path of a program on PATH. Without it the test fails (CI=true) or is skipped, with the reason and the way out."""
    for name in (program, *OTHER_NAMES.get(program, ())):
        path = shutil.which(name)
        if path is not None:
            return str(path)
    return _missing(f"{program} is not installed; `make test` as root installs it")


def _missing(reason: str) -> NoReturn:
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(f"{reason} (CI=true: nothing is skipped)", pytrace=False)
    pytest.skip(reason)
