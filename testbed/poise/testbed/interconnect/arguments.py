"""The words of `poise testbed interconnect`: options, defaults and their help. Knows nothing of what they do."""

from __future__ import annotations

import argparse

from poise.testbed import argument_types
from poise.testbed.interconnect.sizes import parse_sizes

GPU_SIZES = "1K..256M"
CPU_SIZES = "1K..16M"
DEFAULT_ROUNDS = 20
MOST_ROUNDS = 10_000


def add_interconnect_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `poise testbed interconnect`."""
    parser.add_argument("--gpus", type=_numbers, metavar="0,1", help="cards by their NVML numbers (default: all)")
    parser.add_argument(
        "--sizes",
        type=_sizes,
        metavar="SIZES",
        help=f"messages, a range in which each is four times the one before, or a list (default {GPU_SIZES}; without GPUs {CPU_SIZES})",
    )
    parser.add_argument(
        "--iterations",
        type=argument_types.whole(1, MOST_ROUNDS),
        default=DEFAULT_ROUNDS,
        metavar="N",
        help=f"rounds for each size (default {DEFAULT_ROUNDS})",
    )
    parser.add_argument("--busy", action="store_true", help="measure although somebody works on the cards; it is not kept then")
    parser.add_argument(
        "--keep",
        type=argument_types.path,
        metavar="FILE",
        help="where the result is kept for the exporter (default $POISE_STATE_DIR/interconnect.json or ~/.local/state/poise/interconnect.json)",
    )
    parser.add_argument("--no-keep", action="store_true", help="show it only")
    parser.add_argument("--json", action="store_true", help="print the result as JSON on stdout")


def _numbers(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() and len(part.strip()) < 5 for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of card numbers such as 0,1")
    return tuple(int(part) for part in parts)


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return parse_sizes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
