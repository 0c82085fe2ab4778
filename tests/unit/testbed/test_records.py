"""Records on disk: hints that anybody can edit."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from poise.testbed import processes, records
from poise.testbed.records import Record

RECORD = Record("server", "engine", 4242, 98765, 1.5, {"url": "http://127.0.0.1:8000"})


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    records.write(tmp_path, RECORD)
    assert records.read_all(tmp_path) == [RECORD]
    records.remove(tmp_path, "server")
    records.remove(tmp_path, "server")
    assert records.read_all(tmp_path) == []


def test_a_folder_that_is_not_there_holds_no_records(tmp_path: Path) -> None:
    assert records.read_all(tmp_path / "nothing") == []


def test_damaged_and_foreign_files_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "cut.json").write_text('{"name": "server", "ro')
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "role.json").write_text('{"name": "x", "role": "king", "pid": 1, "start_ticks": 1}')
    records.write(tmp_path, RECORD)
    assert records.read_all(tmp_path) == [RECORD]


@pytest.mark.parametrize("name", ["../evil", "..", "a/b", "", "x y", "name\n"])
def test_a_record_whose_name_could_be_a_path_is_none(tmp_path: Path, name: str) -> None:
    (tmp_path / "server.json").write_text(json.dumps(asdict(replace(RECORD, name=name))))
    assert records.read_all(tmp_path) == []


def test_a_record_in_the_file_of_another_is_none(tmp_path: Path) -> None:
    (tmp_path / "mirror.json").write_text(json.dumps(asdict(RECORD)))
    assert records.read_all(tmp_path) == []


@pytest.mark.parametrize("pid", [-1, 0, 10**29])
def test_a_record_of_a_pid_that_cannot_be_is_none(tmp_path: Path, pid: int) -> None:
    (tmp_path / "server.json").write_text(json.dumps(asdict(replace(RECORD, pid=pid))))
    assert records.read_all(tmp_path) == []


def test_a_folder_and_a_text_nested_too_deep_are_no_records(tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "deep.json").write_text("[" * 200_000)
    assert records.read_all(tmp_path) == []


def test_a_process_of_another_boot_lives_no_more_though_pid_and_start_time_are_those_of_a_living_one() -> None:
    mine = processes.own_identity()
    record = Record("server", "engine", os.getpid(), mine.start_ticks, 0.0)
    assert record.lives, "of an earlier version, which did not note the boot"
    assert replace(record, boot=processes.boot_id() or "").lives
    assert not replace(record, boot="another").lives
