"""Folders and files that cannot be what they are asked to be: one line that names the file and a way out, never a traceback."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import pytest
from poise.testbed import command, plan

from tests.unit.testbed.deployments import layout_in
from tests.unit.testbed.test_plan import PLAN

ALL = (("status",), ("down",), ("fault", "one-card"), ("fault", "--undo"), ("fault", "--list"), ("logs",), ("load",), ("runs",))
DEEP = "[" * 100_000
# The plan is made and refused, whatever the folder allows.
UP = ("up", "single", "--port", "nope=1")


def run(*words: str) -> int:
    parser = argparse.ArgumentParser(prog="poise testbed")
    command.add_arguments(parser)
    return command.run(parser.parse_args(list(words)))


def a_file(folder: Path) -> Path:
    (folder / "file").write_text("")
    return folder / "file"


def below_a_file(folder: Path) -> Path:
    return a_file(folder) / "state"


def a_loop(folder: Path) -> Path:
    (folder / "loop").symlink_to(folder / "loop")
    return folder / "loop"


def a_long_name(folder: Path) -> Path:
    return folder / ("n" * 300)


def in_proc(folder: Path) -> Path:
    return Path("/proc/poise")


@pytest.mark.parametrize("words", [*ALL, UP])
@pytest.mark.parametrize("folder", [a_file, below_a_file, a_loop, a_long_name, in_proc])
def test_a_state_directory_that_cannot_be_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, folder: Callable[[Path], Path], words: tuple[str, ...]
) -> None:
    path = folder(tmp_path)
    code = run(*words, "--state-dir", str(path))
    captured = capsys.readouterr()
    assert code in (0, 1)
    assert captured.err.count("\n") <= 1
    if code:
        assert captured.err.startswith("poise: ")
        assert str(path) in captured.err
    if words == UP:
        assert code == 1
        assert "--state-dir" in captured.err


@pytest.mark.parametrize("text", ["", "{", DEEP, "[]", "\x00", '{"engines": ' + DEEP])
@pytest.mark.parametrize("words", [*ALL, UP])
def test_files_of_the_state_directory_that_hold_something_else(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, words: tuple[str, ...]
) -> None:
    layout = layout_in(tmp_path)
    for path in (layout.plan, layout.records / "server.json", layout.faults, layout.mirror, layout.shared_memory):
        path.write_text(text)
    assert run(*words, "--state-dir", str(layout.root)) in (0, 1)
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("words", [*ALL, UP])
def test_folders_where_files_should_be(capsys: pytest.CaptureFixture[str], tmp_path: Path, words: tuple[str, ...]) -> None:
    layout = layout_in(tmp_path)
    for path in (layout.plan, layout.records / "server.json", layout.faults, layout.mirror, layout.shared_memory, layout.runs / "x.json"):
        (path / "inner").mkdir(parents=True)
    assert run(*words, "--state-dir", str(layout.root)) in (0, 1)
    assert capsys.readouterr().err.count("\n") <= 3


def test_a_lock_that_is_a_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    layout = layout_in(tmp_path)
    plan.write(layout.plan, PLAN)
    layout.lock.unlink(missing_ok=True)
    layout.lock.mkdir()
    for words in (("down",), ("fault", "client-aborts"), ("status",)):
        assert run(*words, "--state-dir", str(layout.root)) in (0, 1)
    assert "Traceback" not in capsys.readouterr().err


def test_a_progress_file_that_cannot_be_written_is_said_before_anything_starts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    state = tmp_path / "state"
    for path in (tmp_path / "gone" / "progress.json", tmp_path):
        assert run("up", "single", "--any-ports", "--progress", str(path), "--state-dir", str(state)) == 1
        said = capsys.readouterr().err
        assert said.startswith(f"poise: {path}: ")
        assert said.endswith("; give another --progress\n")
    assert not state.exists()


@pytest.mark.parametrize("flag", ["--state-dir", "--progress"])
def test_an_empty_word_is_no_folder(capsys: pytest.CaptureFixture[str], flag: str) -> None:
    with pytest.raises(SystemExit):
        run("up", "single", flag, "")
    assert f"argument {flag}: '' is empty" in capsys.readouterr().err
