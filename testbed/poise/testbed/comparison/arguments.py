"""The words of `poise testbed compare`. Knows nothing of what they do."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from poise.testbed import argument_types
from poise.testbed.bench.arguments import add_profile_arguments

DEFAULT_PROFILE = "chat"
# Three tell a spread from an accident and keep a comparison of four shapes under a quarter of an hour on two cores.
DEFAULT_REPETITIONS = 3


def add_compare_arguments(parser: argparse.ArgumentParser, shape: Callable[[str], str]) -> None:
    """`shape` is the type of a shape's name, as `up` has it."""
    parser.add_argument(
        "shapes", nargs="*", type=shape, metavar="SHAPE", help="shapes to measure, single first: it is what others are compared with"
    )
    parser.add_argument("--runs", nargs="+", metavar="RUN", help="compare these saved runs instead (files, or names that `runs` lists)")
    parser.add_argument(
        "--repeat", type=argument_types.positive, metavar="N", help=f"times that each shape is loaded (default {DEFAULT_REPETITIONS})"
    )
    add_profile_arguments(parser)
    parser.add_argument("-c", "--concurrency", type=argument_types.clients, help="clients (default: the profile's)")
    ends = parser.add_mutually_exclusive_group()
    ends.add_argument("--requests", type=argument_types.positive, metavar="N", help="requests (default: the profile's)")
    ends.add_argument(
        "--for", dest="seconds", type=argument_types.duration, metavar="SECONDS", help="as many requests as arrive in SECONDS, with --rate"
    )
    parser.add_argument("--seed", type=argument_types.seed, help="of the first repetition's prompts (default: the profile's)")
    parser.add_argument("--model", help="folder or Hugging Face name, as for `up`")
    parser.add_argument(
        "--engine-argument", action="append", default=[], metavar="ARGUMENT", help="a further argument for each `vllm serve`"
    )
    parser.add_argument("--any-ports", action="store_true", help="take any free ports instead of the usual ones")
    parser.add_argument(
        "--write", type=argument_types.path, metavar="DIR", help="folder for table and plot (default: comparisons/ in the state directory)"
    )
    parser.add_argument("--no-plot", action="store_true", help="no picture (it needs the extra `testbed`)")
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON on stdout")
