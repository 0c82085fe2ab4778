"""The words of measured load: options of `poise testbed load --profile` and of `poise testbed runs`. Knows nothing of what they do."""

from __future__ import annotations

import argparse
from typing import Any

from poise.testbed.argument_types import above_zero, count, path, share
from poise.testbed.bench import profile
from poise.testbed.bench.profile import LoadProfile, Overrides
from poise.testbed.environment import Build

# What only our own light client knows, and only without a profile (name in the namespace → option).
LIGHT_ONLY = {
    "url": "--url",
    "model": "--model",
    "forever": "--forever",
    "prompt_words": "--prompt-words",
    "max_tokens": "--max-tokens",
    "pause": "--pause",
}


def add_profile_arguments(parser: Any) -> None:
    """Which profile, and what is changed in it; `parser` is a parser or a group of one."""
    described = "; ".join(f"{name}: {profile.load(name, 'cpu').title}" for name in profile.names())
    parser.add_argument("--profile", metavar="NAME", help=f"{described}; or the path of a TOML file of your own (docs/load.md)")
    parser.add_argument("--scale", choices=profile.SCALES, help="sizes for the tiny model or for real ones (default: as the build is)")
    parser.add_argument("--rate", type=above_zero, action="append", metavar="R", help="requests a second; several times: steps of a ramp")
    parser.add_argument("--burstiness", type=above_zero, metavar="B", help="of the arrivals: 1 is Poisson, less comes in bursts")
    parser.add_argument("--input-tokens", type=count, metavar="N", help="of a prompt, behind the shared prefix")
    parser.add_argument("--output-tokens", type=count, metavar="N", help="of an answer")
    parser.add_argument("--prefix-tokens", type=count, metavar="N", help="that all prompts begin with")
    parser.add_argument("--spread", type=share, metavar="S", help="of the lengths around their middle, 0 to below 1")
    parser.add_argument("--warmup", type=count, metavar="N", help="requests before, counted nowhere")
    parser.add_argument(
        "--slo",
        type=_limit,
        action="append",
        metavar="NAME=MS",
        help=f"a limit in milliseconds for {', '.join(profile.SLO_NAMES)}: goodput counts the requests within all of them",
    )


def add_load_arguments(parser: argparse.ArgumentParser) -> None:
    """What `poise testbed load` takes besides its light client's options."""
    group = parser.add_argument_group("measured load", "`vllm bench serve` drives the deployment by a profile, and the run is saved")
    add_profile_arguments(group)
    group.add_argument("--save", type=path, metavar="DIR", help="folder for the run (default: runs/ in the state directory)")


def add_runs_arguments(parser: argparse.ArgumentParser) -> None:
    """What `poise testbed runs` takes."""
    parser.add_argument("--folder", type=path, metavar="DIR", help="another folder than runs/ in the state directory")
    parser.add_argument("--json", action="store_true", help="the runs whole, for machines")


def chosen_profile(arguments: argparse.Namespace, build: Build) -> LoadProfile:
    """The profile that was asked for, options applied. Raises TestbedError."""
    found = profile.load(arguments.profile, arguments.scale or build)
    options = Overrides(
        input_tokens=arguments.input_tokens,
        output_tokens=arguments.output_tokens,
        spread=arguments.spread,
        prefix_tokens=arguments.prefix_tokens,
        concurrency=arguments.concurrency,
        rates=None if arguments.rate is None else tuple(arguments.rate),
        burstiness=arguments.burstiness,
        requests=arguments.requests,
        seconds=arguments.seconds,
        warmup_requests=arguments.warmup,
        seed=arguments.seed,
        slo=tuple(arguments.slo or ()),
    )
    return profile.changed(found, options)


def profile_options(arguments: argparse.Namespace) -> list[str]:
    """The options of a profile that were given without one."""
    names = ("scale", "rate", "burstiness", "input_tokens", "output_tokens", "prefix_tokens", "spread", "warmup", "slo", "save")
    return [f"--{name.replace('_', '-')}" for name in names if getattr(arguments, name, None) is not None]


def light_options(arguments: argparse.Namespace) -> list[str]:
    """The options of the light client that were given with a profile."""
    return [option for name, option in LIGHT_ONLY.items() if getattr(arguments, name) not in (None, False)]


def _limit(text: str) -> tuple[str, float]:
    name, equals, value = text.partition("=")
    if not equals or name not in profile.SLO_NAMES:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=MS with a name of {', '.join(profile.SLO_NAMES)}, e.g. ttft=500")
    return name, above_zero(value)
