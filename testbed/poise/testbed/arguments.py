"""The words of `poise testbed …`: subcommands, options, defaults and their help. Knows nothing of what they do."""

from __future__ import annotations

import argparse
import re

from poise.testbed import argument_types, demo, faults, shapes
from poise.testbed.bench.arguments import add_load_arguments, add_runs_arguments
from poise.testbed.comparison.arguments import add_compare_arguments
from poise.testbed.interconnect.arguments import add_interconnect_arguments
from poise.testbed.manifests.arguments import add_manifest_arguments

LOG_LINES = 100
# Of the light client; a profile has its own.
DEFAULT_LOAD_SECONDS = 30.0
DEFAULT_CLIENTS = 4
DEFAULT_PROMPT_WORDS = 48
DEFAULT_MAX_TOKENS = 64
DEFAULT_SEED = 1
_RANKS = argument_types.whole(1, shapes.MOST_RANKS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Fills in the subcommands of `poise testbed`."""
    commands = parser.add_subparsers(dest="testbed_command", metavar="COMMAND", required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--state-dir",
        type=argument_types.not_empty,
        metavar="DIR",
        help="folder of the deployment (default $POISE_STATE_DIR/testbed or ~/.local/state/poise/testbed)",
    )
    installing = argparse.ArgumentParser(add_help=False)
    installing.add_argument(
        "--index",
        metavar="URL",
        action="append",
        default=[],
        help="a further package index for pip, e.g. the one of PyTorch's CPU builds (also: PIP_EXTRA_INDEX_URL)",
    )

    def add(name: str, words: str, *parents: argparse.ArgumentParser) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=words, description=words[0].upper() + words[1:] + ".", parents=list(parents))

    add("install", "install vLLM into an environment of its own (GPU build with an NVIDIA driver, else the CPU build)", installing)
    up = add("up", "start a deployment and wait until it answers", common, installing)
    ships = "; ".join(f"{name}: {shapes.load(name).title}" for name in shapes.names())
    up.add_argument("shape", type=_shape, metavar="SHAPE", help=f"{ships}; or the path of a TOML file of your own (docs/testbed.md)")
    _add_up_arguments(up)
    driving = add("load", "send requests and show throughput, time to first token and inter-token latency", common)
    _add_load_arguments(driving)
    add_load_arguments(driving)
    add_runs_arguments(add("runs", "list the saved runs of measured load", common))
    comparing = add(
        "compare", "measure shapes one after the other with the same load, and say which is faster than one card", common, installing
    )
    add_compare_arguments(comparing, _shape)
    breaking = add("fault", "put a fault on the deployment, or take it back", common)
    what = breaking.add_mutually_exclusive_group(required=True)
    what.add_argument("name", nargs="?", choices=[fault.name for fault in faults.FAULTS], help="see --list")
    what.add_argument("--undo", action="store_true", help="bring the healthy deployment back")
    what.add_argument("--list", action="store_true", help="the faults, what each should raise, and whether this deployment can take it")
    breaking.add_argument("--json", action="store_true", help="with --list: for machines")
    add_interconnect_arguments(add("interconnect", "measure all-reduces over the cards, with and without peer-to-peer, for the doctor"))
    add_manifest_arguments(add("kubernetes", "write the manifests for a cluster: exporter, monitoring, and a model to serve"))
    add_manifest_arguments(add("compose", "write a compose folder for one host: exporter, page, Prometheus, Alertmanager, Grafana"))
    look = add("status", "processes, roles, cards and readiness", common)
    look.add_argument("--json", action="store_true", help="for machines")
    logs = add("logs", "show the logs of the parts", common)
    logs.add_argument("part", nargs="?", help="one part (see `poise testbed status`); all without")
    logs.add_argument("-f", "--follow", action="store_true", help="go on showing what is added")
    logs.add_argument("-n", "--lines", type=argument_types.positive, default=LOG_LINES, help=f"last lines of each (default {LOG_LINES})")
    add("down", "end everything and remove what it left", common)
    show = add("demo", "page, deployment and endless light load in one; Ctrl-C ends all of it", common, installing)
    show.add_argument("shape", nargs="?", default="tp", type=_shape, metavar="SHAPE", help="as for `up`; default tp")
    show.add_argument(
        "--page-port", type=argument_types.port, default=demo.PAGE_PORT, help=f"of the page (default {demo.PAGE_PORT}, 0: any)"
    )
    show.add_argument("--for", dest="seconds", type=argument_types.duration, metavar="SECONDS", help="end by itself")
    _add_up_arguments(show)


def _add_up_arguments(parser: argparse.ArgumentParser) -> None:
    for role in ("prefill", "decode"):
        parser.add_argument(
            f"--{role}", type=_RANKS, metavar="N", help=f"so many {role} servers, in shapes that split the two (pd, hybrid)"
        )
    for role in ("prefill", "decode"):
        parser.add_argument(f"--{role}-tp", type=_RANKS, metavar="N", help=f"tensor-parallel size of each {role} server")
    parser.add_argument(
        "--model",
        type=argument_types.not_empty,
        help="folder or Hugging Face name (default: tiny without GPUs, else the Qwen2.5 that fits)",
    )
    parser.add_argument(
        "--port",
        action="append",
        default=[],
        type=_part_port,
        metavar="PART=PORT",
        help="fixed port of a part, e.g. server=8000 or exporter=9747; without, the usual one or the next that is free",
    )
    parser.add_argument("--any-ports", action="store_true", help="take any free ports instead of the usual ones")
    parser.add_argument(
        "--engine-argument",
        action="append",
        default=[],
        metavar="ARGUMENT",
        help="a further argument for `vllm serve`, e.g. --engine-argument=--max-num-seqs=2",
    )
    parser.add_argument("--progress", type=argument_types.path, metavar="FILE", help="also write the progress to a JSON file")


def _add_load_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", type=argument_types.server_url, help="another server than the deployment's router or first engine")
    parser.add_argument("--engine", help="an engine of the deployment by name, past the router")
    parser.add_argument("--model", help="served model name (default: the deployment's)")
    parser.add_argument("-c", "--concurrency", type=argument_types.clients, help=f"clients (default {DEFAULT_CLIENTS})")
    ends = parser.add_mutually_exclusive_group()
    ends.add_argument("--requests", type=argument_types.positive, metavar="N", help="end after N requests")
    ends.add_argument(
        "--for",
        dest="seconds",
        type=argument_types.duration,
        metavar="SECONDS",
        help=f"end after SECONDS (default {DEFAULT_LOAD_SECONDS:.0f})",
    )
    ends.add_argument("--forever", action="store_true", help="go on until Ctrl-C; outlives restarts of the server")
    parser.add_argument("--prompt-words", type=argument_types.positive, help=f"words in a prompt (default {DEFAULT_PROMPT_WORDS})")
    parser.add_argument("--max-tokens", type=argument_types.positive, help=f"tokens in an answer (default {DEFAULT_MAX_TOKENS})")
    parser.add_argument("--pause", type=argument_types.pause, metavar="SECONDS", help="between two requests of a client (default 0)")
    parser.add_argument("--seed", type=argument_types.seed, help=f"of the prompts (default {DEFAULT_SEED}, or the profile's)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON on stdout")


def _shape(text: str) -> str:
    """A name that ships, or a path; what is in the file is looked at later."""
    if not shapes.is_path(text) and text not in shapes.names():
        ships = ", ".join(shapes.names())
        raise argparse.ArgumentTypeError(
            f"there is no shape {text!r}: choose from {ships}, or give the path of a TOML file (./{text}.toml)"
        )
    return text


def _part_port(text: str) -> tuple[str, int]:
    part, equals, port = text.partition("=")
    if not equals or not part or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not PART=PORT, e.g. server=8000")
    return part, int(port)
