"""`poise alerts`: what it prints, writes and returns, and how it says what it cannot do."""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

import pytest
from poise.alerts import command, promtool, shipped
from poise.alerts.promtool import Opinion
from poise.alerts.rules import LARGEST_FILE, load

from tests.needs import needs


def run(*words: str | Path) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args([str(word) for word in words]))


@pytest.fixture
def no_promtool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)


@pytest.mark.usefixtures("no_promtool")
def test_the_shipped_rules_are_fine_and_a_missing_promtool_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check") == 0
    assert capsys.readouterr().out.endswith(" alerts: 0 problems; promtool is not installed and was not asked\n")


@pytest.mark.usefixtures("no_promtool")
def test_problems_are_one_line_each_and_give_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken, wrong = tmp_path / "broken.yml", tmp_path / "wrong.yml"
    broken.write_text("groups: [{name: g, rules: [{alert: A, expr: 'up =='}]}]")
    wrong.write_text("groups: [{name: g, rules: [{record: 'a:b:c', expr: 'poise_gpu_bussy'}]}]")
    assert run("check", broken, wrong) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith(f'{broken}:1, group "g", alert "A": expr: ')
    assert lines[1].startswith(f'{wrong}:1, group "g", record "a:b:c": no series is called "poise_gpu_bussy"')
    assert lines[2].startswith("2 files, 1 rule, 0 alerts: 2 problems")


@pytest.mark.usefixtures("no_promtool")
def test_own_rules_may_read_the_shipped_recordings_and_other_exporters_on_request(tmp_path: Path) -> None:
    own = tmp_path / "own.yml"
    own.write_text(
        "groups: [{name: g, rules: [{record: 'a:b:c', expr: 'poise_engine:tokens:rate5m'}, {record: 'a:d:c', expr: node_load1}]}]"
    )
    assert run("check", own) == 1
    assert run("check", "--allow-other-series", own) == 0


def test_a_file_that_is_not_there_or_no_text_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check", tmp_path / "none.yml") == 2
    assert capsys.readouterr().err == f"poise: cannot read {tmp_path}/none.yml: No such file or directory\n"
    binary = tmp_path / "binary.yml"
    binary.write_bytes(b"\xff\xfe\x00")
    assert run("check", binary) == 1
    assert "no UTF-8 text" in capsys.readouterr().out


def test_promtool_has_the_last_word(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(promtool, "check_rules", lambda files: Opinion(False, "bad\n"))
    assert run("check") == 1
    said = capsys.readouterr().out
    assert "promtool says:\nbad\n" in said
    assert said.count("promtool refuses") == 1


def test_promtool_is_told_texts_and_speaks_of_our_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs("promtool")
    broken, fine = tmp_path / "broken file.yml", tmp_path / "fine.yml"
    broken.write_text("groups: [{name: g, rules: [{alert: A, expr: 'up =='}]}]")
    fine.write_text("groups: [{name: g, rules: [{record: 'a:b:c', expr: up}]}]")
    assert run("check", broken, fine) == 1
    said = capsys.readouterr().out
    assert f"Checking {broken}\n" in said
    assert "poise-promtool" not in said
    assert run("check", "--allow-other-series", fine) == 0
    assert capsys.readouterr().out.endswith(": 0 problems; promtool accepts the syntax\n")


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "large", "binary"])
def test_promtool_never_opens_what_we_could_not_read(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A program in its place notes what it was given: the paths that it got may hold nothing but what we read."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "promtool"
    program.write_text(f'#!/bin/sh\nfor word; do [ -f "$word" ] && cat "$word"; done > {tmp_path}/asked\n')
    program.chmod(0o755)
    odd, fine = tmp_path / "odd.yml", tmp_path / "fine.yml"
    fine.write_text("groups: [{name: g, rules: [{record: 'a:b:c', expr: up}]}]")
    if kind == "pipe":
        os.mkfifo(odd)
    elif kind == "device":
        odd.symlink_to("/dev/zero")
    elif kind == "folder":
        odd.mkdir()
    elif kind == "large":
        with odd.open("wb") as file:
            file.truncate(LARGEST_FILE + 1)
    else:
        odd.write_bytes(b"\xff\xfe\x00")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        assert run("check", "--allow-other-series", odd, fine) in (1, 2)
        if (tmp_path / "asked").exists():
            assert (tmp_path / "asked").read_text() == fine.read_text()
            (tmp_path / "asked").unlink()
        assert run("check", odd) in (1, 2)
        assert not (tmp_path / "asked").exists()
    assert str(odd) in "".join(capsys.readouterr())


@pytest.mark.usefixtures("no_promtool")
def test_a_syntax_error_is_told_with_its_place_in_the_expression(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "own.yml"
    path.write_text("groups:\n- name: g\n  rules:\n  - alert: A\n    expr: |\n      up\n      > == 1\n")
    assert run("check", path) == 1
    assert capsys.readouterr().out.startswith(f'{path}:5, group "g", alert "A": expr: 2:3: unexpected "=="\n')


@pytest.mark.usefixtures("no_promtool")
def test_an_expression_too_deep_for_anybody_is_refused_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "own.yml"
    for text in ("(" * 5_000 + "x" + ")" * 5_000, "-" * 9_000 + "x", "x offset inf"):
        path.write_text(f"groups: [{{name: g, rules: [{{record: 'a:b:c', expr: '{text}'}}]}}]")
        assert run("check", path) == 1
        said = capsys.readouterr().out
        assert "nested deeper" in said or "operators" in said or "longer than 100 years" in said


def test_an_unknown_alert_among_many_is_no_flood(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("rules", "--without", "xyzzy") == 2
    assert capsys.readouterr().err == "poise: --without xyzzy: there is no such alert; `poise alerts rules` lists ours\n"


def test_the_list_names_every_alert_with_severity_and_wait(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("rules") == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:3] == ["NodeGPUUnowned", "warning", "10m"] for line in lines)
    assert "poise_engine:gpu_imbalance:ratio" in lines


def test_files_are_written_as_they_are_with_their_comments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("rules", "--output", tmp_path / "new" / "rules") == 0
    for path in shipped.rule_files():
        assert (tmp_path / "new" / "rules" / path.name).read_bytes() == path.read_bytes()
    assert f"rule_files: [{tmp_path}/new/rules/*.yml]" in capsys.readouterr().out


def test_a_changed_copy_says_that_it_is_one(tmp_path: Path) -> None:
    assert run("rules", "--output", tmp_path, "--scale", "0.1", "--runbook-base", "https://r.example", "--without", "Watchdog") == 0
    assert (tmp_path / "gpu.yml").read_text().startswith("# Written by `poise alerts rules`")
    alerts = [rule for path in sorted(tmp_path.glob("*.yml")) for rule in load(path).alerts]
    assert "Watchdog" not in {rule.name for rule in alerts}
    assert {rule.annotations["runbook_url"] for rule in alerts} >= {"https://r.example/GPULost"}


def test_thresholds_are_listed_and_changed_from_the_command_line_and_from_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("thresholds") == 0
    assert any(line.split()[:2] == ["EngineDown.loading_seconds", "1200"] for line in capsys.readouterr().out.splitlines())
    mine = tmp_path / "mine.toml"
    mine.write_text('[EngineDown]\nloading_seconds = 60\nfor = "1m"\n')
    assert run("rules", "--output", tmp_path / "rules", "--thresholds", mine, "--set", "EngineDown.for=5m") == 0
    rules = [rule for rule in load(tmp_path / "rules" / "engine.yml").alerts if rule.name == "EngineDown"]
    assert {rule.wait for rule in rules} == {300.0}
    assert all("< 60  # EngineDown.loading_seconds" in rule.expr for rule in rules)


def test_print_shows_the_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("rules", "--print") == 0
    assert "# recording.yml\n# Recording rules: the joined picture" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--scale", "3"), "poise: --scale: the factor must be above 0 and at most 1, not 3\n"),
        (
            ("--without", "EngineDwn"),
            "poise: --without EngineDwn: there is no such alert; did you mean 'EngineDown'? `poise alerts rules` lists",
        ),
        (("--set", "GPULost.fro=3"), "poise: GPULost.fro: there is no such threshold; did you mean 'GPULost.for'?"),
        (("--set", "GPULost=3"), "poise: GPULost: there is no such threshold"),
        (("--set", "GPULost.for"), "poise: --set GPULost.for: write NAME=VALUE"),
        (("--thresholds", "/none.toml"), "poise: cannot read /none.toml: No such file or directory\n"),
        (("--output", "/dev/null/x"), "poise: cannot write to /dev/null/x: Not a directory\n"),
    ],
)
def test_what_cannot_be_done_is_one_line(words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("rules", *words) == 2
    assert capsys.readouterr().err.startswith(message)


def test_a_list_shows_no_templates_and_says_that_it_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("rules", "--set", "EngineDown.for=5m") == 0
    told = capsys.readouterr()
    assert "--output DIR writes the changed files, --print shows them" in told.err
    assert "{{" not in told.out
    assert "<engine>" in told.out
    assert run("rules") == 0
    assert capsys.readouterr().err == ""


def test_a_rule_file_that_is_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe.yml")
    assert run("check", tmp_path / "pipe.yml") == 1
    assert "pipe.yml: not an ordinary file" in capsys.readouterr().out
    assert run("rules", "--thresholds", tmp_path / "pipe.yml") == 2
    assert "pipe.yml: not an ordinary file" in capsys.readouterr().err
