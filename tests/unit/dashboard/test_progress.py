"""The progress file: another process's words, read with limits."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poise.dashboard.progress import FILE_LIMIT, MAX_STEPS, Progress, ProgressError, ProgressFile, Step, parse

DOCUMENT = {
    "title": "testbed",
    "steps": [
        {"name": "install", "state": "done", "detail": "41 packages", "fraction": 1.0, "seconds": 74.2},
        {"name": "engine", "state": "running", "detail": "loading", "fraction": None, "seconds": 3},
        {"name": "load", "state": "waiting", "detail": "", "fraction": None, "seconds": 0},
    ],
    "updated": 1_790_000_000.0,
}


def test_a_file_is_read_with_all_its_fields(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    path.write_text(json.dumps(DOCUMENT))
    progress = ProgressFile(path).read()
    assert progress is not None
    assert progress.title == "testbed"
    assert progress.steps[0] == Step("install", "done", "41 packages", 1.0, 74.2)
    assert progress.updated == 1_790_000_000.0
    assert progress.state == "running"


def test_states_of_the_whole_follow_from_the_steps() -> None:
    def state(*states: str) -> str:
        return Progress("", tuple(Step("x", one) for one in states), 0).state

    assert state("done", "failed", "waiting") == "failed"
    assert state("done", "done") == "done"
    assert state("done", "waiting") == "running"


def test_no_file_is_no_progress_and_a_new_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    file = ProgressFile(path)
    assert file.read() is None
    assert not file.changed()
    path.write_text(json.dumps(DOCUMENT))
    assert file.changed()
    assert not file.changed()
    other = tmp_path / "other"
    other.write_text(json.dumps(DOCUMENT))
    os.replace(other, path)
    assert file.changed()
    path.unlink()
    assert file.changed()


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"steps": 3}', "[" * 10_000, '{"steps": [], "updated": ' + "9" * 5_000 + "}"])
def test_a_broken_file_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "progress.json"
    path.write_text(content)
    with pytest.raises(ProgressError, match=r"progress\.json"):
        ProgressFile(path).read()


def test_a_huge_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    path.write_bytes(b" " * (FILE_LIMIT + 1))
    with pytest.raises(ProgressError, match="larger than"):
        ProgressFile(path).read()
    with pytest.raises(ProgressError, match="directory"):
        ProgressFile(tmp_path).read()


def test_strange_values_become_harmless_ones() -> None:
    strange = {"name": "x\n" * 500, "state": "exploded", "detail": None, "fraction": 17, "seconds": -3}
    document = {"title": 7, "steps": [strange, "no step", *[{}] * 100], "updated": float("nan")}
    progress = parse(document)
    assert progress.title == "7"
    assert len(progress.steps) == MAX_STEPS - 1
    assert len(progress.steps[0].name) == 80
    assert (progress.steps[0].state, progress.steps[0].fraction, progress.steps[0].seconds) == ("waiting", 1.0, 0.0)
    assert progress.updated == 0.0


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["name", "state", "detail", "fraction", "seconds"]), inner),
    max_leaves=20,
)


@given(json_values, json_values, json_values)
def test_any_values_in_the_form_are_read(title: object, steps: object, updated: object) -> None:
    progress = parse({"title": title, "steps": [steps], "updated": updated})
    assert all(step.fraction is None or 0 <= step.fraction <= 1 for step in progress.steps)
