"""docs/load.md tells of every profile, every option and every figure that decides, as the code has them."""

from __future__ import annotations

import argparse
import re
import textwrap
import tomllib
from pathlib import Path

import pytest
from poise.testbed import command
from poise.testbed.bench import profile, run, watch
from poise.testbed.bench.profile import LoadProfile
from poise.testbed.comparison.arguments import DEFAULT_REPETITIONS

PAGE = (Path(__file__).parents[4] / "docs" / "load.md").read_text(encoding="utf-8")


def described(found: LoadProfile) -> str:
    """A profile as the table of the page has it."""
    prompts, arrival, stop = found.prompts, found.arrival, found.stop
    prefix = f"{prompts.prefix_tokens} + " if prompts.prefix_tokens else ""
    sizes = f"{prefix}{prompts.input_tokens} → {prompts.output_tokens} tokens ± {prompts.spread:.0%}".replace("%", " %")
    if arrival.closed:
        return f"{sizes}, {arrival.concurrency} clients, {stop.requests} requests"
    if len(arrival.rates) > 1:
        return f"{sizes}, {arrival.rates[0]:g} to {arrival.rates[-1]:g} requests/s, {stop.seconds:g} s each"
    return f"{sizes}, {arrival.rates[0]:g} requests/s, burstiness {arrival.burstiness:g}, {stop.seconds:g} s"


@pytest.mark.parametrize("name", profile.names())
def test_each_profile_has_its_row_with_its_sizes(name: str) -> None:
    cpu, gpu = profile.load(name, "cpu"), profile.load(name, "gpu")
    assert f"| {name} | {cpu.title} | {described(cpu)} | {described(gpu)} |\n" in PAGE


@pytest.mark.parametrize("name", ["load", "compare", "runs"])
def test_each_option_is_told(name: str) -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    commands = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    elsewhere = {"--help", "--state-dir", "--index", "--folder", "--any-ports", "--seed"}  # docs/testbed.md, or the same everywhere
    options = {max(action.option_strings, key=len) for action in commands.choices[name]._actions if action.option_strings}
    assert [option for option in sorted(options - elsewhere) if option not in PAGE] == []


def test_each_key_of_a_profile_is_told() -> None:
    keys = ("input_tokens", "output_tokens", "spread", "prefix_tokens", "concurrency", "rates", "burstiness", "requests", "seconds")
    assert [key for key in (*keys, "warmup_requests", "seed") if f"`{key}`" not in PAGE] == []


def test_the_example_of_an_own_profile_is_one_and_what_it_leaves_out_is_what_the_table_says() -> None:
    (example,) = re.findall(r"\n\n((?:    [^\n]+\n|\n)+)\n", PAGE.partition("An own profile")[2].partition("A ramp ends")[0])
    found = profile.parse("mine", tomllib.loads(textwrap.dedent(example)), "cpu")
    assert (found.arrival.concurrency, found.prompts.prefix_tokens, found.arrival.burstiness) == (4, 0, 1)
    told = dict(re.findall(r"^\| `--[^|]+ \| `(\w+)` \|[^|]+\| (.+) \|$", PAGE, re.MULTILINE))
    assert (told["warmup_requests"], told["seed"]) == (str(found.warmup_requests), str(found.seed))
    assert {key for key, words in told.items() if words == "needed"} == {"input_tokens", "output_tokens"}


def test_numbers_that_decide_are_the_codes() -> None:
    assert run.SATURATED_BELOW == 0.9
    assert "below nine tenths" in PAGE
    assert f"within {watch.SETTLE_SECONDS:.0f} seconds" in PAGE
    assert f"`--repeat` times (default {DEFAULT_REPETITIONS})" in PAGE


def test_every_link_leads_somewhere() -> None:
    folder = Path(__file__).parents[4] / "docs"
    assert [target for target in re.findall(r"\]\(([^)#:]+)\)", PAGE) if not (folder / target).exists()] == []
