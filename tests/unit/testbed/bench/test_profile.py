"""Profiles of load: the ones that ship, own ones, and what options change."""

from __future__ import annotations

from pathlib import Path

import pytest
from poise.testbed import launch
from poise.testbed.bench import profile
from poise.testbed.bench.profile import Arrival, LoadProfile, Overrides, Stop
from poise.testbed.errors import TestbedError

TABLE = {"input_tokens": 10, "output_tokens": 5, "concurrency": 2, "requests": 4, "warmup_requests": 0, "seed": 1}


def made(**changes: object) -> LoadProfile:
    table = {key: value for key, value in {**TABLE, **changes}.items() if value is not None}
    return profile.parse("own", {"title": "of one's own", "cpu": table}, "cpu")


@pytest.mark.parametrize("scale", profile.SCALES)
@pytest.mark.parametrize("name", profile.names())
def test_each_profile_that_ships_is_whole_at_both_scales(name: str, scale: str) -> None:
    found = profile.load(name, "cpu" if scale == "cpu" else "gpu")
    assert (found.name, found.scale) == (name, scale)
    assert found.title
    assert all(profile.requests_of(found, rate) >= 1 for rate in found.arrival.rates or (None,))


def test_the_profiles_of_the_article_are_there_each_with_what_it_is_about() -> None:
    assert profile.names() == ["burst", "chat", "rag", "ramp"]
    chat, rag, burst, ramp = (profile.load(name, "cpu") for name in ("chat", "rag", "burst", "ramp"))
    assert chat.arrival.closed
    assert rag.prompts.prefix_tokens > rag.prompts.output_tokens < rag.prompts.input_tokens
    assert burst.arrival.burstiness < 1
    assert len(ramp.arrival.rates) > 4


@pytest.mark.parametrize("name", profile.names())
def test_requests_fit_into_the_context_of_the_tiny_model(name: str) -> None:
    assert profile.load(name, "cpu").prompts.longest <= launch.CPU_MAX_MODEL_LEN


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"inputs": 3}, "unknown key 'inputs'"),
        ({"input_tokens": None}, ".cpu. needs input_tokens$"),
        ({"input_tokens": None, "output_tokens": None}, ".cpu. needs input_tokens and output_tokens$"),
        ({"input_tokens": "ten"}, "input_tokens has to be a whole number, not 'ten'"),
        ({"input_tokens": True}, "input_tokens has to be a whole number"),
        ({"input_tokens": 0}, "1 or more"),
        ({"spread": "wide"}, "spread has to be a number"),
        ({"spread": 1}, "spread = 1 is not from 0 to below 1"),
        ({"rates": 3}, "rates has to be a list of numbers"),
        ({"rates": [2, 1]}, "each higher than the one before"),
        ({"rates": [0]}, "above 0"),
        ({"concurrency": None}, "concurrency .a closed loop. or rates"),
        ({"concurrency": 0}, "concurrency = 0 is not 1 or more"),
        ({"burstiness": 0.5}, "burstiness belongs to rates"),
        ({"rates": [1], "burstiness": 0}, "burstiness = 0 is not above 0"),
        ({"seconds": 5}, "one of requests and seconds"),
        ({"requests": None}, "one of requests and seconds"),
        ({"requests": 0}, "requests = 0"),
        ({"requests": None, "seconds": 5}, "seconds needs rates"),
        ({"requests": None, "rates": [1], "seconds": -1}, "seconds = -1 is not above 0"),
        ({"seed": -1}, "warmup_requests and seed"),
        ({"seed": 10**400}, "seed is larger than 1000000000, or no number"),
        ({"spread": 10**400}, "spread is larger than 1000000000, or no number"),
        ({"rates": [1, float("nan")]}, "rates is larger than 1000000000, or no number"),
        ({"requests": None, "rates": [1], "seconds": float("inf")}, "seconds is larger than 1000000000, or no number"),
    ],
)
def test_a_profile_that_makes_no_sense_is_refused_by_its_key(changes: dict[str, object], said: str) -> None:
    with pytest.raises(TestbedError, match=f"profile own: .*{said}"):
        made(**changes)


def test_a_scale_that_a_profile_lacks_is_named() -> None:
    with pytest.raises(TestbedError, match=r"a table \[gpu\] is needed"):
        profile.parse("own", {"title": "t", "cpu": TABLE}, "gpu")
    with pytest.raises(TestbedError, match="title"):
        profile.parse("own", {"cpu": TABLE}, "cpu")


def test_an_own_file_is_a_profile(tmp_path: Path) -> None:
    own = tmp_path / "mine.toml"
    own.write_text('title = "mine"\n[cpu]\ninput_tokens = 8\noutput_tokens = 4\nrates = [2]\nseconds = 3\nwarmup_requests = 0\nseed = 7\n')
    found = profile.load(str(own), "cpu")
    assert (found.name, found.arrival, found.stop) == ("mine", Arrival(None, (2.0,)), Stop(None, 3.0))
    assert profile.requests_of(found, 2.0) == 6


def test_own_files_that_are_missing_or_no_toml_are_named(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match=r"nowhere\.toml cannot be read"):
        profile.load(str(tmp_path / "nowhere.toml"), "cpu")
    for text in ("title", "a = " + "[" * 30_000):
        (tmp_path / "bad.toml").write_text(text)
        with pytest.raises(TestbedError, match="is no TOML"):
            profile.load(str(tmp_path / "bad.toml"), "cpu")
    with pytest.raises(TestbedError, match="there is no profile 'octopus': choose from burst, chat, rag, ramp"):
        profile.load("octopus", "cpu")


def test_options_change_what_they_name_and_nothing_else() -> None:
    chat = profile.load("chat", "cpu")
    changed = profile.changed(chat, Overrides(output_tokens=9, requests=3, seed=5, warmup_requests=0))
    assert (changed.prompts.output_tokens, changed.stop, changed.seed, changed.warmup_requests) == (9, Stop(3), 5, 0)
    assert (changed.prompts.input_tokens, changed.arrival) == (chat.prompts.input_tokens, chat.arrival)
    assert profile.changed(chat, Overrides()) == chat


def test_a_rate_opens_a_closed_loop_and_clients_close_an_open_one() -> None:
    assert profile.changed(profile.load("chat", "cpu"), Overrides(rates=(2.0,))).arrival == Arrival(None, (2.0,))
    assert profile.changed(profile.load("burst", "cpu"), Overrides(concurrency=3, requests=6)).arrival == Arrival(3)
    burst = profile.changed(profile.load("burst", "cpu"), Overrides(burstiness=2.0))
    assert (burst.arrival.burstiness, burst.arrival.rates) == (2.0, (3.0,))


def test_options_that_make_no_sense_together_are_refused() -> None:
    with pytest.raises(TestbedError, match="seconds needs rates"):
        profile.changed(profile.load("chat", "cpu"), Overrides(seconds=5.0))
    with pytest.raises(TestbedError, match=r"profile chat: 1e\+300 is larger than 1000000000"):
        profile.changed(profile.load("chat", "cpu"), Overrides(rates=(1e300,), seconds=1e300))
    with pytest.raises(TestbedError, match="the limit for 'itl': known are ttft, tpot, e2el"):
        profile.changed(profile.load("chat", "cpu"), Overrides(slo=(("itl", 5.0),)))


@pytest.mark.parametrize(
    ("arrival", "words"),
    [
        (Arrival(8), "8 clients"),
        (Arrival(None, (3.0,)), "3 requests/s (Poisson)"),
        (Arrival(4, (1.0, 2.5), 0.25), "1 → 2.5 requests/s (burstiness 0.25, at most 4 at once)"),
    ],
)
def test_arrivals_are_said_in_words(arrival: Arrival, words: str) -> None:
    assert arrival.words == words
