"""`poise token`: prints the token that changes through a running `poise up` need. The edge: arguments, environment, output."""

from __future__ import annotations

import argparse
import os
import sys

from poise.history import page_token
from poise.history.page_token import TokenError

DONE, COULD_NOT = 0, 2
_WAY_OUT = "`poise up` makes one at its first start, `poise token --new` makes one now; another folder is named with POISE_STATE_DIR"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `poise token`."""
    parser.description = (
        "Prints the token that silences and acknowledgements through a running `poise up` need. It is kept in Poise's state folder "
        "(POISE_STATE_DIR), in a file that only its owner reads. `poise up --no-history` keeps none there and shows its own in its log."
    )
    parser.add_argument("--new", action="store_true", help="make another, which holds at once; the one before is worth nothing then")


def run(arguments: argparse.Namespace) -> int:
    """Carries out the command; returns the exit code. What a person can mend is one line on stderr."""
    path = page_token.token_path(os.environ)
    try:
        token = page_token.make(path, anew=True) if arguments.new else page_token.read(path, _WAY_OUT)
    except TokenError as error:
        print(f"poise: {error}", file=sys.stderr)
        return COULD_NOT
    print(token)
    return DONE
