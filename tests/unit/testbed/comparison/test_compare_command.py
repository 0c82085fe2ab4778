"""The words of `compare`, and what is left when it is interrupted."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Self

import pytest
from poise.testbed import command
from poise.testbed.bench import drive, run
from poise.testbed.bench.drive import Outcome
from poise.testbed.bench.profile import LoadProfile
from poise.testbed.comparison import campaign
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


class Standing:
    """A deployment that stands for one, and tells when it goes."""

    up: list[str] = []  # noqa: RUF012 - filled and emptied by each test

    def __init__(self, shape: str) -> None:
        self.shape = shape

    def __enter__(self) -> Self:
        self.up.append(self.shape)
        return self

    def __exit__(self, *raised: object) -> None:
        self.up.remove(self.shape)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), TestbedError("the client failed")])
def test_finished_repetitions_are_kept_and_nothing_stays_up(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: BaseException
) -> None:
    """The third repetition is interrupted: the first shape's two are kept, the second shape's deployment goes."""
    loaded: list[tuple[str, int]] = []

    def run_profile(deployment: Standing, profile: LoadProfile, runs: Path, *rest: object, **named: object) -> Outcome:
        if len(loaded) == 2:
            raise error
        loaded.append((deployment.shape, profile.seed))
        content: dict[str, Any] = document(deployment.shape, 100.0, profile.seed)
        runs.mkdir(exist_ok=True)
        (runs / f"{content['id']}.json").write_text(json.dumps(content))
        return Outcome(runs / f"{content['id']}.json", content)

    monkeypatch.setattr(drive, "run_profile", run_profile)
    monkeypatch.setattr(campaign.Deployment, "up", lambda request, *rest: Standing(request.shape.name))
    code = compared("single", "tp", "--repeat", "2", "--no-plot", "--state-dir", str(tmp_path))
    assert code == (130 if isinstance(error, KeyboardInterrupt) else 1)
    assert loaded == [("single", 1), ("single", 2)]
    assert Standing.up == []
    assert len(run.saved(tmp_path / "runs")) == 2
    told = capsys.readouterr().err
    assert "poise: shape 2 of 2: tp, about " in told
    assert "2 finished repetitions are kept, `poise testbed runs` lists them" in told
