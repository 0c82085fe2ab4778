"""Where lines go: into what is there without changing what it is, and into regular files only once they are whole."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from poise.history.output import write

LINES = ("a\n", "b\n")


def test_a_new_file_has_the_mode_that_any_command_gives(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        assert write(LINES, tmp_path / "x") == 2
    finally:
        os.umask(before)
    assert (tmp_path / "x").read_text() == "a\nb\n"
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o640


def test_a_file_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("before")
    (tmp_path / "x").chmod(0o600)
    write(LINES, tmp_path / "x")
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o600
    assert (tmp_path / "x").read_text() == "a\nb\n"


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_one_and_the_file_that_it_names_is_written(tmp_path: Path, there: bool) -> None:
    (tmp_path / "folder").mkdir()
    if there:
        (tmp_path / "folder" / "x").write_text("before")
    (tmp_path / "link").symlink_to("folder/x")
    write(LINES, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "folder" / "x").read_text() == "a\nb\n"


def test_a_pipe_is_written_into_and_stays_one(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write(LINES, pipe)
    reader.join(20)
    assert read == ["a\nb\n"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_device_stays_one(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev/null")
    write(LINES, tmp_path / "link")
    assert Path("/dev/null").is_char_device()
    assert (tmp_path / "link").is_symlink()


def test_what_fails_halfway_leaves_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("before")

    def broken() -> Iterator[str]:
        yield "a\n"
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        write(broken(), tmp_path / "x")
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("x", "before")]


def test_two_that_write_to_one_name_do_not_mix(tmp_path: Path) -> None:
    def other_meanwhile() -> Iterator[str]:
        yield "a\n"
        write(("other\n",), tmp_path / "x")
        yield "b\n"

    write(other_meanwhile(), tmp_path / "x")
    assert (tmp_path / "x").read_text() == "a\nb\n"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    code = f"""
import signal, sys
from pathlib import Path
from poise.history.output import write
for each in (signal.SIGINT, signal.SIGTERM):
    signal.signal(each, signal.SIG_DFL)  # as the command sets them
def lines():
    yield "a\\n"
    print("writing", flush=True)
    signal.pause()
write(lines(), Path({str(tmp_path / "x")!r}))
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        assert len(list(tmp_path.iterdir())) == 1
        process.send_signal(number)
        assert process.wait(20) == -number
    assert list(tmp_path.iterdir()) == []
