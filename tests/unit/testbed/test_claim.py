"""Whose a state directory is: the testbed works in, and removes from, what it made itself."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from poise.testbed import claim, teardown
from poise.testbed.errors import TestbedError
from poise.testbed.paths import StateLayout

NOTE = '{"pid": 4242, "start_ticks": 98765, "purpose": "poise testbed up tp"}'


@pytest.fixture
def layout(tmp_path: Path) -> StateLayout:
    return StateLayout(tmp_path / "state")


def somebodys(root: Path) -> None:
    """A project that is laid out much as a deployment is."""
    for name in ("tmp", "run", "processes", "logs"):
        (root / name).mkdir(parents=True)
        (root / name / "thesis.txt").write_text("months of work")
    (root / "deployment.json").write_text('{"mine": 1}')
    (root / "server.blackhole").touch()


def content(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


@pytest.mark.parametrize("work", [claim.claim, claim.make, teardown.take_down])
def test_in_a_folder_of_somebody_else_nothing_is_touched(layout: StateLayout, work: Callable[[StateLayout], object]) -> None:
    somebodys(layout.root)
    before = content(layout.root)
    with pytest.raises(TestbedError, match="was not made by `poise testbed`"):
        work(layout)
    assert content(layout.root) == before


def test_a_lock_of_another_program_makes_a_folder_no_deployment(layout: StateLayout) -> None:
    somebodys(layout.root)
    layout.lock.touch()
    layout.lock.with_name("lock.holder.json").write_text('{"pid": "4242"}')
    with pytest.raises(TestbedError, match="was not made by"):
        teardown.take_down(layout)
    with pytest.raises(TestbedError, match=r"is not empty \(deployment.json, lock, lock.holder.json, …\)"):
        claim.claim(layout)


@pytest.mark.parametrize("there", [False, True])
def test_a_new_or_empty_folder_becomes_a_deployments_and_keeps_its_identity(layout: StateLayout, there: bool) -> None:
    if there:
        layout.root.mkdir()
    claim.claim(layout)
    first = claim.identity(layout)
    assert first is not None
    claim.make(layout)
    teardown.take_down(layout)
    assert claim.identity(layout) == first
    assert content(layout.root) == ["lock", "logs", "poise-testbed.json"]


def test_taking_down_writes_nothing_where_nothing_was(layout: StateLayout) -> None:
    layout.root.mkdir()
    teardown.take_down(layout)
    assert content(layout.root) == []


def test_saved_runs_alone_do_not_keep_a_folder_from_becoming_a_deployments(layout: StateLayout) -> None:
    layout.runs.mkdir(parents=True)
    claim.claim(layout)
    assert claim.is_ours(layout)


def test_what_an_earlier_version_left_up_is_taken_down_and_the_folder_is_used_again(layout: StateLayout) -> None:
    somebodys(layout.root)
    shutil.rmtree(layout.root / "tmp")  # this folder lies deep: its temporary folder is elsewhere
    layout.lock.touch()
    layout.lock.with_name("lock.holder.json").write_text(NOTE)
    teardown.take_down(layout)
    assert content(layout.root) == ["lock", "logs", "logs/thesis.txt", "poise-testbed.json"]
    claim.make(layout)


def test_what_an_earlier_version_left_after_down_is_used_again(layout: StateLayout) -> None:
    layout.logs.mkdir(parents=True)
    layout.lock.touch()
    layout.lock.with_name("lock.holder.json").write_text(NOTE)
    claim.make(layout)
    assert claim.identity(layout) is not None


def test_a_damaged_marker_is_still_one_and_gets_a_new_identity(layout: StateLayout) -> None:
    claim.claim(layout)
    layout.marker.write_text('{"deploy')
    assert claim.identity(layout) is None
    assert claim.is_ours(layout)
    claim.make(layout)
    assert claim.identity(layout) is not None


def test_a_copy_of_the_folder_has_no_identity_until_it_is_claimed(layout: StateLayout, tmp_path: Path) -> None:
    claim.claim(layout)
    copy = StateLayout(tmp_path / "copy")
    shutil.copytree(layout.root, copy.root)
    assert claim.identity(copy) is None
    claim.claim(copy)
    assert claim.identity(copy) not in (None, claim.identity(layout))


def test_a_folder_in_it_that_leads_elsewhere_is_refused_and_not_followed(layout: StateLayout, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "thesis.txt").touch()
    claim.claim(layout)
    layout.run.symlink_to(elsewhere)
    with pytest.raises(TestbedError, match="run leads elsewhere"):
        claim.make(layout)
    with pytest.raises(TestbedError, match=r"everything has ended, but .*run could not be removed"):
        teardown.take_down(layout)
    assert content(elsewhere) == ["thesis.txt"]


@pytest.mark.parametrize("work", [claim.claim, teardown.take_down])
def test_what_can_be_no_folder_is_named(tmp_path: Path, work: Callable[[StateLayout], object]) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("file", "file/below", "loop", "x" * 300):
        with pytest.raises(TestbedError, match=f"{name} cannot be used for a deployment"):
            work(StateLayout(tmp_path / name))


def test_the_marker_says_which_folder_it_is_of(layout: StateLayout) -> None:
    claim.claim(layout)
    assert json.loads(layout.marker.read_text())["inode"] == os.stat(layout.root).st_ino
