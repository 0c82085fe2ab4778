"""Profiles of load: which prompts, how they arrive, when it ends. Data lies in profiles/*.toml, a person may bring an own file.

Owns reading and checking that data, and what options change in it. Three independent things stand side by side here (prompts,
arrival, stop); the client that sends them and the report that is written of them are elsewhere. Knows nothing of processes.
"""

from __future__ import annotations

import importlib.resources
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from poise.testbed.bench.schema import shown
from poise.testbed.environment import Build
from poise.testbed.errors import TestbedError

# The tables of a profile: sizes for the tiny model on a CPU, and for real models on GPUs.
SCALES: tuple[Build, ...] = ("cpu", "gpu")


@dataclass(frozen=True, slots=True)
class Prompts:
    """Sizes in tokens. Of each request the input is `prefix_tokens`, the same for all, and about `input_tokens` of its own; lengths are
    drawn evenly from `spread` (0 to 1) around the middle, e.g. 0.5: half to one and a half."""

    input_tokens: int
    output_tokens: int
    spread: float = 0.0
    prefix_tokens: int = 0

    @property
    def longest(self) -> int:
        """The most tokens that one request can need in the model's context."""
        return self.prefix_tokens + math.ceil((self.input_tokens + self.output_tokens) * (1 + self.spread))


@dataclass(frozen=True, slots=True)
class Arrival:
    """When requests are sent.

    Without `rates` the loop is closed: `concurrency` clients, each sends its next request when its last is answered. With one the
    loop is open: so many requests a second, apart by draws from a gamma distribution of the shape `burstiness` (1: Poisson, less:
    bursts), and `concurrency` is at most so many at once. Several rates are steps, one after the other, until one saturates.
    """

    concurrency: int | None = None
    rates: tuple[float, ...] = ()
    burstiness: float = 1.0

    @property
    def closed(self) -> bool:
        return not self.rates

    @property
    def words(self) -> str:
        """For a person."""
        if self.closed:
            return f"{self.concurrency} clients"
        steps = " → ".join(f"{rate:g}" for rate in self.rates)
        kind = "Poisson" if self.burstiness == 1 else f"burstiness {self.burstiness:g}"
        most = f", at most {self.concurrency} at once" if self.concurrency else ""
        return f"{steps} requests/s ({kind}{most})"


@dataclass(frozen=True, slots=True)
class Stop:
    """When a step ends: after `requests`, or after the requests that arrive in `seconds`. One of the two is set."""

    requests: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class LoadProfile:
    """One profile at one scale. `warmup_requests` are sent before and counted nowhere; `slo` holds limits in milliseconds by
    "ttft", "tpot", "e2el", and goodput counts the requests within all of them."""

    name: str
    title: str
    scale: Build
    prompts: Prompts
    arrival: Arrival
    stop: Stop
    warmup_requests: int
    seed: int
    slo: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Overrides:
    """What options change in a profile; None leaves it as it is."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    spread: float | None = None
    prefix_tokens: int | None = None
    concurrency: int | None = None
    rates: tuple[float, ...] | None = None
    burstiness: float | None = None
    requests: int | None = None
    seconds: float | None = None
    warmup_requests: int | None = None
    seed: int | None = None
    slo: tuple[tuple[str, float], ...] = ()


# No token count, rate or length of a run comes near; what is reckoned of such numbers stays exact.
LARGEST = 10**9
# Goodput of `vllm bench serve` (0.32, --goodput) knows these.
SLO_NAMES = ("ttft", "tpot", "e2el")
_INTEGERS = ("input_tokens", "output_tokens", "prefix_tokens", "concurrency", "requests", "warmup_requests", "seed")
_NUMBERS = ("spread", "burstiness", "seconds")
_NEEDED = ("input_tokens", "output_tokens")
#: Where a profile says nothing. The first requests of a server fill its caches.
DEFAULT_WARMUP, DEFAULT_SEED = 8, 1
_KNOWN = {*_INTEGERS, *_NUMBERS, "rates"}


def names() -> list[str]:
    folder = importlib.resources.files("poise.testbed.bench") / "profiles"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load(name: str, scale: Build) -> LoadProfile:
    """A profile by name, or one's own by the path of its file (….toml). Raises TestbedError for what is not there or wrong in it."""
    stem, data = content(name)
    return parse(stem, data, scale)


def content(name: str) -> tuple[str, Mapping[str, object]]:
    """Its short name and what stands in its file, for every size of model. Raises TestbedError when it is not there or no TOML."""
    if name.endswith(".toml"):
        path = Path(name)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TestbedError(f"profile {name} cannot be read: {error}") from None
        return path.stem, _toml(name, text)
    if name not in names():
        raise TestbedError(f"there is no profile {name!r}: choose from {', '.join(names())}, or give the path of a .toml file")
    text = (importlib.resources.files("poise.testbed.bench") / "profiles" / f"{name}.toml").read_text(encoding="utf-8")
    return name, _toml(name, text)


def _toml(name: str, text: str) -> Mapping[str, object]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise TestbedError(f"profile {name} is no TOML: {error}") from None


def parse(name: str, data: Mapping[str, object], scale: Build) -> LoadProfile:
    """Raises TestbedError naming the key that is missing, unknown or of the wrong kind."""
    _only(name, data, {"title", *SCALES})
    title, table = data.get("title"), data.get(scale)
    if not isinstance(title, str):
        raise TestbedError(f"profile {name}: title (text) is needed")
    if not isinstance(table, dict):
        raise TestbedError(f"profile {name}: a table [{scale}] is needed for this machine (or choose with --scale)")
    _only(name, table, _KNOWN)
    for key in _INTEGERS:
        if key in table and (not isinstance(table[key], int) or isinstance(table[key], bool)):
            raise TestbedError(f"profile {name}: {key} has to be a whole number, not {table[key]!r}")
    for key in _NUMBERS:
        if key in table and (not isinstance(table[key], int | float) or isinstance(table[key], bool)):
            raise TestbedError(f"profile {name}: {key} has to be a number, not {table[key]!r}")
    rates = table.get("rates", [])
    if not isinstance(rates, list) or not all(isinstance(rate, int | float) and not isinstance(rate, bool) for rate in rates):
        raise TestbedError(f"profile {name}: rates has to be a list of numbers, requests a second")
    for key, values in [*((key, [table[key]]) for key in (*_INTEGERS, *_NUMBERS) if key in table), ("rates", rates)]:
        if not all(abs(value) <= LARGEST for value in values):
            raise TestbedError(f"profile {name}: {key} is larger than {LARGEST}, or no number")
    if lacking := [key for key in _NEEDED if key not in table]:
        raise TestbedError(f"profile {name}: [{scale}] needs {' and '.join(lacking)}")
    seconds = table.get("seconds")
    return checked(
        LoadProfile(
            name=name,
            title=title,
            scale=scale,
            prompts=Prompts(table["input_tokens"], table["output_tokens"], float(table.get("spread", 0.0)), table.get("prefix_tokens", 0)),
            arrival=Arrival(table.get("concurrency"), tuple(float(rate) for rate in rates), float(table.get("burstiness", 1.0))),
            stop=Stop(table.get("requests"), None if seconds is None else float(seconds)),
            warmup_requests=table.get("warmup_requests", DEFAULT_WARMUP),
            seed=table.get("seed", DEFAULT_SEED),
        )
    )


def changed(profile: LoadProfile, options: Overrides) -> LoadProfile:
    """The profile with options applied. Clients (-c) alone close the loop of an open one, a rate opens a closed one; a new stop
    replaces the old. Raises TestbedError when the result makes no sense."""
    prompts = replace(
        profile.prompts,
        **_given(
            input_tokens=options.input_tokens,
            output_tokens=options.output_tokens,
            spread=options.spread,
            prefix_tokens=options.prefix_tokens,
        ),
    )
    arrival = profile.arrival
    if options.rates is not None:
        arrival = Arrival(options.concurrency, options.rates, arrival.burstiness)
    elif options.concurrency is not None:
        arrival = Arrival(options.concurrency)
    if options.burstiness is not None:
        arrival = replace(arrival, burstiness=options.burstiness)
    stop = profile.stop
    if options.requests is not None or options.seconds is not None:
        stop = Stop(options.requests, options.seconds)
    result = replace(
        profile,
        prompts=prompts,
        arrival=arrival,
        stop=stop,
        slo=options.slo or profile.slo,
        **_given(warmup_requests=options.warmup_requests, seed=options.seed),
    )
    return checked(result)


def checked(profile: LoadProfile) -> LoadProfile:
    """The same profile. Raises TestbedError naming the value that makes no sense."""
    prompts, arrival, stop = profile.prompts, profile.arrival, profile.stop
    numbers = [prompts.input_tokens, prompts.output_tokens, prompts.prefix_tokens, arrival.concurrency, *arrival.rates, arrival.burstiness]
    numbers += [stop.requests, stop.seconds, profile.warmup_requests, profile.seed]
    too_large = next((number for number in numbers if number is not None and number > LARGEST), None)
    wrong = None
    if too_large is not None:
        wrong = f"{shown(too_large)} is larger than {LARGEST}"
    elif prompts.input_tokens < 1 or prompts.output_tokens < 1 or prompts.prefix_tokens < 0:
        wrong = "input_tokens and output_tokens have to be 1 or more, prefix_tokens 0 or more"
    elif not 0 <= prompts.spread < 1:
        wrong = f"spread = {prompts.spread:g} is not from 0 to below 1"
    elif arrival.concurrency is not None and arrival.concurrency < 1:
        wrong = f"concurrency = {arrival.concurrency} is not 1 or more"
    elif arrival.closed and arrival.concurrency is None:
        wrong = "concurrency (a closed loop) or rates (an open one) is needed"
    elif arrival.closed and arrival.burstiness != 1:
        wrong = "burstiness belongs to rates: a closed loop has no arrivals of its own"
    elif not all(0 < rate < math.inf for rate in arrival.rates) or list(arrival.rates) != sorted(set(arrival.rates)):
        wrong = "rates have to be above 0 and each higher than the one before"
    elif not 0 < arrival.burstiness < math.inf:
        wrong = f"burstiness = {arrival.burstiness:g} is not above 0"
    elif (stop.requests is None) == (stop.seconds is None):
        wrong = "one of requests and seconds is needed"
    elif stop.requests is not None and stop.requests < 1:
        wrong = f"requests = {stop.requests} is not 1 or more"
    elif stop.seconds is not None and not 0 < stop.seconds < math.inf:
        wrong = f"seconds = {stop.seconds:g} is not above 0"
    elif stop.seconds is not None and arrival.closed:
        wrong = "seconds needs rates: how many requests a closed loop sends in a time is what it measures, so give requests"
    elif profile.warmup_requests < 0 or profile.seed < 0:
        wrong = "warmup_requests and seed have to be 0 or more"
    else:
        unknown = [name for name, limit in profile.slo if name not in SLO_NAMES or not 0 < limit < math.inf]
        if unknown:
            wrong = f"the limit for {unknown[0]!r}: known are {', '.join(SLO_NAMES)}, in milliseconds above 0"
    if wrong is not None:
        raise TestbedError(f"profile {profile.name}: {wrong}")
    return profile


def requests_of(profile: LoadProfile, rate: float | None) -> int:
    """How many requests a step sends; `rate` in requests a second, None in a closed loop."""
    if profile.stop.requests is not None:
        return profile.stop.requests
    if profile.stop.seconds is None or rate is None:
        raise TestbedError(f"profile {profile.name}: a stop in seconds needs a rate")
    return max(1, round(profile.stop.seconds * rate))


def _given(**values: object) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _only(name: str, table: Mapping[str, object], known: set[str]) -> None:
    unknown = sorted(set(table) - known)
    if unknown:
        raise TestbedError(f"profile {name}: unknown key {unknown[0]!r}: known are {', '.join(sorted(known))}")
