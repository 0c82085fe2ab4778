"""Progress as lines and as a file."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from poise.testbed.progress import FileSink, Progress, Step, TerminalSink, describe


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def read(path: Path) -> dict[str, object]:
    value = json.loads(path.read_text())
    assert isinstance(value, dict)
    return value


def test_the_file_shows_all_steps_from_the_beginning_and_each_change(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "progress.json"
    progress = Progress("Testbed", ["install", "start"], [FileSink(path, clock)], clock)
    waiting = {"state": "waiting", "detail": "", "fraction": None, "seconds": 0.0}
    assert read(path) == {
        "title": "Testbed",
        "steps": [{"name": "install", **waiting}, {"name": "start", **waiting}],
        "updated": 100.0,
    }
    with progress.step("install", "cpu build") as note:
        clock.now += 3
        note("fetching torch", fraction=0.25)
        assert read(path)["steps"] == [
            {"name": "install", "state": "running", "detail": "fetching torch", "fraction": 0.25, "seconds": 3.0},
            {"name": "start", **waiting},
        ]
        clock.now += 4
        note()
        assert read(path)["updated"] == 107.0
    done = {"name": "install", "state": "done", "detail": "fetching torch", "fraction": 1.0, "seconds": 7.0}
    assert read(path)["steps"] == [done, {"name": "start", **waiting}]


def test_news_within_half_a_second_does_not_write_the_file_again(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "progress.json"
    with Progress("x", ["a"], [FileSink(path, clock)], clock).step("a") as note:
        clock.now += 0.1
        note("too soon")
        assert "too soon" not in path.read_text()


def test_a_step_that_raises_is_failed_with_the_first_line_of_the_reason(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "progress.json"
    progress = Progress("x", ["a"], [FileSink(path, clock)], clock)
    with pytest.raises(ValueError, match="the disk is full"), progress.step("a"):
        raise ValueError("the disk is full\nand more")
    assert progress.steps == (Step("a", "failed", "the disk is full", None, 0.0),)
    assert '"failed"' in path.read_text()


def test_an_interrupted_step_says_so() -> None:
    progress = Progress("x", ["a"], [], Clock())
    with pytest.raises(KeyboardInterrupt), progress.step("a"):
        raise KeyboardInterrupt
    assert progress.steps[0].detail == "interrupted"


def test_a_step_that_was_not_announced_is_added_at_the_end() -> None:
    progress = Progress("x", ["a"], [], Clock())
    with progress.step("b"):
        pass
    assert [(step.name, step.state) for step in progress.steps] == [("a", "waiting"), ("b", "done")]


def test_without_a_terminal_lines_come_at_changes_and_every_five_seconds() -> None:
    clock, stream = Clock(), io.StringIO()
    progress = Progress("x", ["a"], [TerminalSink(stream, lambda: 80, clock)], clock)
    with progress.step("a") as note:
        for _ in range(12):
            clock.now += 1
            note(f"at {clock.now:.0f}")
    assert stream.getvalue().splitlines() == [
        "...  a",
        "...  a (5 s): at 105",
        "...  a (10 s): at 110",
        "ok   a (12 s): at 112",
    ]


def test_on_a_terminal_the_line_is_rewritten_within_its_width() -> None:
    clock, stream = Clock(), Terminal()
    with Progress("x", ["a"], [TerminalSink(stream, lambda: 24, clock)], clock).step("a") as note:
        note("a long story that does not fit")
    assert stream.getvalue().split("\r\x1b[2K")[1:] == ["...  a", "...  a: a long story th", "ok   a: a long story th\n"]


def test_a_line_says_what_how_far_and_how_long() -> None:
    assert describe(Step("vLLM", "running", "loading weights", 0.5, 12.4)) == "...  vLLM 50% (12 s): loading weights"
    assert describe(Step("vLLM", "failed", "no disk", None, 0.2)) == "FAIL vLLM: no disk"


def test_a_line_quotes_nothing_that_a_terminal_acts_on() -> None:
    assert describe(Step("load", "failed", "ValueError: \x1b[31mred\n\u202e")) == r"FAIL load: ValueError: \x1b[31mred\n\u202e"
