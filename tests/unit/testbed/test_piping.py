"""Helper programs that end with us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from poise.testbed import processes
from poise.testbed.errors import TestbedError
from poise.testbed.piping import run_tied

from tests.waiting import wait_until


def test_lines_of_both_streams_come_in_order_and_the_status_at_the_end() -> None:
    seen: list[str] = []
    status, kept = run_tied(["sh", "-c", "echo one; echo two >&2; printf three; exit 3"], os.environ, seen.append, lambda: None, 60)
    assert (status, kept) == (3, ["one", "two", "three"])
    assert seen == kept


def test_each_state_of_a_progress_bar_is_a_line() -> None:
    seen: list[str] = []
    run_tied(["printf", "\\r 0/2\\r 1/2\\r 2/2\\r\\nend\\n"], os.environ, seen.append, lambda: None, 60)
    assert [text for text in seen if text] == [" 0/2", " 1/2", " 2/2", "end"]


def test_a_program_that_says_nothing_is_ended() -> None:
    with pytest.raises(TestbedError, match="sleep said nothing for 0 s"):
        run_tied(["sleep", "600"], os.environ, lambda line: None, lambda: None, silence=0.0)


def test_an_interrupt_ends_the_program_and_its_children() -> None:
    pids: list[int] = []

    def line(text: str) -> None:
        pids.append(int(text))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_tied(["sh", "-c", "sleep 600 & echo $!; wait"], os.environ, line, lambda: None, 60)
    wait_until(lambda: not lives(pids[0]), "the end of the child")


def lives(pid: int) -> bool:
    stat = processes.read_stat(pid)
    return stat is not None and stat.lives


def test_the_program_ends_when_we_are_killed(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    script = (
        "import os\nfrom poise.testbed.piping import run_tied\n"
        f"run_tied(['sh', '-c', 'echo $$ > {note}.part; mv {note}.part {note}; exec sleep 600'], os.environ, print, lambda: None, 600)"
    )
    with subprocess.Popen([sys.executable, "-c", script]) as runner:
        wait_until(note.exists, "the program")
        runner.send_signal(signal.SIGKILL)
        runner.wait()
    wait_until(lambda: not lives(int(note.read_text())), "the program's end")
