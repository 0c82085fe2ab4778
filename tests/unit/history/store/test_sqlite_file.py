"""A file of our own: what it does when its pages are garbage, when it is removed, and when another one lies in its place."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from poise.history.store.sqlite_file import ReadFailed, SqliteFile, StoreError, WriteFailed
from sqlalchemy import Connection, text


def _create(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE thing (name TEXT)"))


def opened(path: Path) -> SqliteFile:
    return SqliteFile(path, (_create,), "choose another place")


@pytest.fixture
def file(tmp_path: Path) -> Iterator[SqliteFile]:
    made = opened(tmp_path / "state" / "x.db")
    put(made, "first")
    yield made
    made.close()


def put(file: SqliteFile, name: str) -> None:
    with file.writing() as connection:
        connection.execute(text("INSERT INTO thing VALUES (:name)"), {"name": name})


def names(file: SqliteFile) -> list[str]:
    with file.reading() as connection:
        return list(connection.execute(text("SELECT name FROM thing")).scalars())


def spoil(path: Path) -> None:
    """The header stays, every page after the first is garbage."""
    data = path.read_bytes()
    path.write_bytes(data[:4096] + b"\xa5" * (len(data) - 4096))


def test_garbage_behind_a_good_header_is_told_and_the_file_can_be_put_aside_and_begun_anew(file: SqliteFile) -> None:
    path = file.path
    file.close()
    spoil(path)
    again = opened(path)
    with pytest.raises(ReadFailed, match="malformed") as failure:
        names(again)
    assert failure.value.lost
    again.set_aside()
    put(again, "second")
    assert names(again) == ["second"]
    assert len(list(path.parent.glob("x.db.damaged-*"))) == 1
    again.close()


def test_a_second_file_put_aside_in_the_same_second_has_a_name_of_its_own(file: SqliteFile) -> None:
    for _ in range(3):
        file.set_aside()
    assert len([one for one in file.path.parent.glob("x.db.damaged-*") if not one.name.endswith("-wal")]) == 3
    assert names(file) == []


@pytest.mark.parametrize("whole_folder", [True, False])
def test_a_file_that_is_removed_while_it_is_in_use_is_noticed_and_begun_anew(file: SqliteFile, whole_folder: bool) -> None:
    shutil.rmtree(file.path.parent) if whole_folder else file.path.unlink()
    with pytest.raises(WriteFailed, match=r"x\.db was removed or replaced") as failure:
        put(file, "into nothing")
    assert failure.value.lost
    file.set_aside()
    put(file, "second")
    assert names(file) == ["second"]
    with pytest.raises(StoreError, match="in use by process"):  # and its lock is held again
        opened(file.path)


def test_another_file_in_its_place_is_kept_under_another_name(file: SqliteFile) -> None:
    file.path.rename(file.path.with_name("moved"))
    file.path.write_text("not ours")
    with pytest.raises(WriteFailed):
        put(file, "x")
    file.set_aside()
    (aside,) = (one for one in file.path.parent.glob("x.db.other-*") if one.suffix != ".journal")
    assert aside.read_text() == "not ours"
    put(file, "second")


def test_a_folder_that_another_process_has_taken_meanwhile_is_not_taken_from_it(file: SqliteFile) -> None:
    shutil.rmtree(file.path.parent)
    other = opened(file.path)
    with pytest.raises(WriteFailed):
        put(file, "x")
    with pytest.raises(StoreError, match="in use by process"):
        file.set_aside()
    put(other, "theirs")
    other.close()
    file.set_aside()
    put(file, "ours")


def test_a_table_that_is_missing_is_damage(file: SqliteFile) -> None:
    with file.writing() as connection:
        connection.execute(text("DROP TABLE thing"))
    with pytest.raises(ReadFailed) as failure:
        names(file)
    assert failure.value.lost
