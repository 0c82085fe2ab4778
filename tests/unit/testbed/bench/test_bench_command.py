"""The words of measured load: what a person gets for right and wrong ones."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
from poise.testbed import command, plan
from poise.testbed.bench import run
from poise.testbed.bench.arguments import chosen_profile

from tests.unit.testbed.bench.runs import TP, chat_step, run_facts
from tests.unit.testbed.deployments import layout_in


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="poise testbed")
    command.add_arguments(parser)
    return parser.parse_args(list(words))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--rate", "3"), "--rate belongs to measured load: give --profile as well"),
        (("--slo", "ttft=5"), "--slo belongs to measured load"),
        (("--profile", "chat", "--forever"), "--forever belongs to the light client"),
        (
            ("--profile", "chat", "--prompt-words", "9"),
            "--prompt-words belongs to the light client: leave out --profile, or --prompt-words",
        ),
        (("--profile", "chat", "--url", "http://127.0.0.1:1"), "--url belongs to the light client"),
        (("--profile", "octopus"), "there is no profile 'octopus'"),
        (("--profile", "chat", "--for", "5"), "seconds needs rates"),
    ],
)
def test_options_that_do_not_belong_together_are_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    layout = layout_in(tmp_path)
    plan.write(layout.plan, TP)
    assert command.run(parsed("load", "--state-dir", str(layout.root), *words)) == 1
    assert said in capsys.readouterr().err


def test_a_profile_that_there_is_not_is_said_before_a_deployment_is_asked_for(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_text("title = ")
    for name, said in (("octopus", "there is no profile 'octopus'"), (str(tmp_path / "broken.toml"), "is no TOML")):
        assert command.run(parsed("load", "--state-dir", str(tmp_path / "none"), "--profile", name)) == 1
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--slo", "itl=5"), "'itl=5' is not NAME=MS with a name of ttft, tpot, e2el"),
        (("--slo", "ttft=0"), "'0' is no number above 0"),
        (("--rate", "-1"), "'-1' is no number above 0"),
        (("--rate", "fast"), "'fast' is no number above 0"),
        (("--warmup", "-1"), "'-1' is not 0 or more"),
        (("--scale", "tpu"), "invalid choice: 'tpu'"),
    ],
)
def test_values_that_make_no_sense_are_named(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str) -> None:
    with pytest.raises(SystemExit):
        parsed("load", "--profile", "chat", *words)
    assert said in capsys.readouterr().err


def test_options_reach_the_profile() -> None:
    words = (
        "--rate",
        "1",
        "--rate",
        "2",
        "--for",
        "4",
        "-c",
        "5",
        "--burstiness",
        "0.5",
        "--seed",
        "3",
        "--slo",
        "ttft=9",
        "--spread",
        "0",
    )
    found = chosen_profile(parsed("load", "--profile", "chat", *words), "cpu")
    assert found.arrival.words == "1 → 2 requests/s (burstiness 0.5, at most 5 at once)"
    assert (found.stop.seconds, found.seed, found.slo, found.prompts.spread) == (4.0, 3, (("ttft", 9.0),), 0.0)
    assert chosen_profile(parsed("load", "--profile", "chat", "--scale", "gpu"), "cpu").scale == "gpu"


def test_saved_runs_are_listed_for_people_and_machines(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    layout = layout_in(tmp_path)
    assert command.run(parsed("runs", "--state-dir", str(layout.root))) == 0
    assert "no run in" in capsys.readouterr().out
    path, content = run.save(layout.runs, run_facts(), [chat_step()], False)
    assert command.run(parsed("runs", "--state-dir", str(layout.root))) == 0
    assert content["id"] in capsys.readouterr().out
    assert command.run(parsed("runs", "--folder", str(layout.runs), "--json")) == 0
    assert json.loads(capsys.readouterr().out)[0]["path"] == str(path)
