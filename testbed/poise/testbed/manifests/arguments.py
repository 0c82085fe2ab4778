"""The words of `poise testbed kubernetes` and `poise testbed compose`. Knows nothing of what they do."""

from __future__ import annotations

import argparse

from poise.testbed import argument_types


def add_manifest_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of both."""
    parser.add_argument(
        "--output", type=argument_types.path, required=True, metavar="DIR", help="folder to write into; made if it is not there"
    )
    parser.add_argument("--force", action="store_true", help="overwrite files there that differ")
    parser.add_argument("--dashboard-base", metavar="URL", help="where alerts point for the page (default http://localhost:9748)")
    parser.add_argument(
        "--runbook-base", metavar="URL", help="where runbooks are: the alert's name is appended, or put where URL says {alert}"
    )
