"""`poise testbed kubernetes` and `poise testbed compose`: writes the files and says what to do with them."""

from __future__ import annotations

import argparse
import shlex
from typing import Literal

from poise.cli import process
from poise.testbed.errors import TestbedError

NEXT = {
    "kubernetes": "build and push the images (docs/deploy.md#images), then kubectl kustomize {folder}/base | less, then kubectl apply --server-side -k {folder}/base",
    "compose": "build the images (docs/deploy.md#images), then cd {folder} && docker compose up -d; the page is http://127.0.0.1:9748",
}


def kubernetes(arguments: argparse.Namespace) -> int:
    """Writes the kustomize folders. Raises TestbedError."""
    return _write("kubernetes", arguments)


def compose(arguments: argparse.Namespace) -> int:
    """Writes the folder for `docker compose`. Raises TestbedError."""
    return _write("compose", arguments)


def _write(kind: Literal["kubernetes", "compose"], arguments: argparse.Namespace) -> int:
    try:
        from poise.testbed.manifests import files  # here and not above: reading rules needs an extra that the rest of the testbed does not
    except ModuleNotFoundError as error:
        raise TestbedError(
            f"`poise testbed {kind}` needs {error.name}, which is not installed: in a clone, pip install '.[dashboard]'"
        ) from None
    links = files.Links(dashboard=arguments.dashboard_base, runbooks=arguments.runbook_base)
    written = files.write(kind, arguments.output, links, force=arguments.force)
    for path in written:
        print(path)
    process.tell(f"poise: {len(written)} files written; next: {NEXT[kind].format(folder=shlex.quote(str(arguments.output)))}")
    return 0
