"""The words of `compare`, and what is left when it is interrupted."""

from __future__ import annotations

import argparse
import json
import shlex
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from poise.testbed import command, interrupts
from poise.testbed.bench import drive, run
from poise.testbed.bench.drive import Outcome
from poise.testbed.bench.profile import LoadProfile
from poise.testbed.deployment import Deployment
from poise.testbed.errors import TestbedError

from tests.unit.testbed.bench.runs import document


def compared(*words: str) -> int:
    parser = argparse.ArgumentParser(prog="poise testbed")
    command.add_arguments(parser)
    return command.run(parser.parse_args(["compare", *words]))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give the shapes to measure, e.g. `compare single tp`, or saved runs with --runs"),
        (("single", "--runs", "a.json"), "and not both"),
        (("single", "single"), "a shape is given twice: --repeat N"),
        (("single",), "there is nothing to compare single with: name another shape"),
        (("single", "pair"), "shape pair has 2 servers and no router, so that only the first would be loaded"),
        (("single", "--profile", "octopus"), "there is no profile 'octopus'"),
        (("--runs", "a", "--profile", "chat"), "--profile makes no sense with --runs"),
        (("--runs", "a", "--rate", "3"), "--rate makes no sense with --runs"),
        (("--runs", "nowhere"), "nowhere.json is no saved run: `poise testbed runs` lists them"),
    ],
)
def test_wrong_words_are_named(capsys: pytest.CaptureFixture[str], tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    assert compared(*words, "--state-dir", str(tmp_path)) == 1
    assert said in capsys.readouterr().err


def saved(folder: Path) -> list[str]:
    (folder / "runs").mkdir(parents=True)
    names = []
    for content in (document("single", 100.0, gpus=1), document("tp", 60.0)):
        (folder / "runs" / f"{content['id']}.json").write_text(json.dumps(content))
        names.append(content["id"])
    return names


def test_saved_runs_are_compared_by_name_or_file_and_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    first, second = saved(tmp_path)
    out = tmp_path / "out"
    words = ("--runs", first, str(tmp_path / "runs" / f"{second}.json"), "--state-dir", str(tmp_path), "--no-plot")
    assert compared(*words, "--write", str(out)) == 0
    told = capsys.readouterr()
    assert "no faster than one card: 0.60×, 0.30× per GPU, measured once: no spread known" in told.out
    assert f"poise: wrote {out / 'comparison.md'}" in told.err
    assert sorted(path.name for path in out.iterdir()) == ["comparison.json", "comparison.md"]
    assert compared(*words, "--json") == 0
    assert [row["shape"] for row in json.loads(capsys.readouterr().out)["rows"]] == ["single", "tp"]
    assert len(list((tmp_path / "comparisons").iterdir())) == 1


class Campaign:
    """Deployments and loads that stand for real ones; runs are saved. `fails` is called with what begins, e.g. "up tp", "load tp 2", "down tp"."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails: Callable[[str], None]) -> None:
        self.begun: list[str] = []
        self.up: list[str] = []

        def begins(what: str) -> None:
            self.begun.append(what)
            fails(what)

        class Standing:
            def __init__(standing, shape: str) -> None:
                begins(f"up {shape}")
                standing.shape = shape
                self.up.append(shape)

            def down(standing) -> None:
                self.up.remove(standing.shape)
                begins(f"down {standing.shape}")

        def run_profile(deployment: Any, chosen: LoadProfile, runs: Path, *rest: object, **named: object) -> Outcome:
            begins(f"load {deployment.shape} {chosen.seed}")
            content = document(deployment.shape, 100.0, chosen.seed)
            runs.mkdir(exist_ok=True)
            (runs / f"{content['id']}.json").write_text(json.dumps(content))
            return Outcome(runs / f"{content['id']}.json", content)

        monkeypatch.setattr(drive, "run_profile", run_profile)
        monkeypatch.setattr(Deployment, "up", lambda request, *rest: Standing(request.shape.name))


FAILS = TestbedError("it does not come up")


@pytest.mark.parametrize(
    ("moment", "error", "kept"),
    [
        ("load tp 2", KeyboardInterrupt(), 3),
        ("load tp 2", TestbedError("the client failed"), 3),
        ("up tp", FAILS, 2),
        ("up tp", KeyboardInterrupt(), 2),
        ("down single", KeyboardInterrupt(), 2),
        ("down single", OSError(28, "No space left on device", "/state"), 2),
    ],
    ids=str,
)
def test_what_ends_a_campaign_leaves_finished_repetitions_and_says_how_to_go_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, moment: str, error: BaseException, kept: int
) -> None:
    def fails(what: str) -> None:
        if what == moment:
            raise error

    campaign = Campaign(monkeypatch, fails)
    words = ("single", "tp", "pp", "--repeat", "2", "--no-plot", "--write", str(tmp_path / "out"), "--state-dir", str(tmp_path))
    assert compared(*words) == (130 if isinstance(error, KeyboardInterrupt) else 1)
    assert campaign.up == []
    assert "up pp" not in campaign.begun
    assert len(run.saved(tmp_path / "runs")) == kept
    assert list((tmp_path / "out").iterdir()) == [], "half a comparison replaces no whole one"
    told = capsys.readouterr().err
    assert f"{kept} finished repetitions are kept, `poise testbed runs` lists them" in told
    assert "poise: not measured whole: tp, pp; compare them in the same words later" in told
    (line,) = (line for line in told.splitlines() if line.startswith("poise: measured whole: single; their table: "))
    again = shlex.split(line.partition("poise testbed compare ")[2])
    assert compared(*again, "--no-plot") == 0
    assert "single  one card" in capsys.readouterr().out


def test_conditions_that_change_on_the_way_end_it_at_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    campaign = Campaign(monkeypatch, lambda what: None)
    carry_out = drive.run_profile

    def run_profile(deployment: Any, chosen: LoadProfile, *rest: Any, **named: Any) -> Outcome:
        outcome = carry_out(deployment, chosen, *rest, **named)
        if deployment.shape == "tp":
            outcome.content["versions"]["vllm"] = "0.33.0"
        return outcome

    monkeypatch.setattr(drive, "run_profile", run_profile)
    assert compared("single", "tp", "pp", "--repeat", "2", "--no-plot", "--state-dir", str(tmp_path)) == 1
    assert campaign.begun[-2:] == ["load tp 1", "down tp"]
    assert "version of vllm is '0.32.0+cpu' in one and '0.33.0' in the other" in capsys.readouterr().err


def test_ctrl_c_while_a_shape_is_taken_down_waits_for_it_and_begins_no_other(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A real signal, where taking down holds signals off."""
    downs: list[str] = []

    def fails(what: str) -> None:
        if what.startswith("down"):
            with interrupts.held_off():
                signal.raise_signal(signal.SIGINT)
                downs.append(what)

    campaign = Campaign(monkeypatch, fails)
    assert compared("single", "tp", "--repeat", "1", "--no-plot", "--state-dir", str(tmp_path)) == 130
    assert (downs, campaign.begun) == (["down single"], ["up single", "load single 1", "down single"])
    told = capsys.readouterr().err
    assert "1 finished repetitions are kept" in told
    assert "interrupted, nothing that it started is left running" in told


def test_a_folder_that_takes_no_file_is_found_before_anything_is_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    campaign = Campaign(monkeypatch, lambda what: None)
    (tmp_path / "file").write_text("")
    assert compared("single", "tp", "--no-plot", "--write", str(tmp_path / "file"), "--state-dir", str(tmp_path)) == 1
    assert f"the comparison cannot be written to {tmp_path / 'file'}: File exists" in capsys.readouterr().err
    assert campaign.begun == []


def test_a_whole_campaign_is_compared_and_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    campaign = Campaign(monkeypatch, lambda what: None)
    out = tmp_path / "out"
    assert compared("single", "tp", "--repeat", "2", "--no-plot", "--write", str(out), "--state-dir", str(tmp_path)) == 0
    assert campaign.begun == [
        f"{what}" for shape in ("single", "tp") for what in (f"up {shape}", f"load {shape} 1", f"load {shape} 2", f"down {shape}")
    ]
    assert sorted(path.name for path in out.iterdir()) == ["comparison.json", "comparison.md"]
    told = capsys.readouterr()
    assert "kept" not in told.err
    assert "tp      no faster than one card: 1.00×, within the spread" in told.out
