"""Identity, liveness and ending of processes, on real ones."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from poise.testbed import processes
from poise.testbed.processes import ProcessIdentity, ProcessStat

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def identity_of(process: subprocess.Popen[bytes]) -> ProcessIdentity:
    stat = processes.read_stat(process.pid)
    assert stat is not None
    return ProcessIdentity(stat.pid, stat.start_ticks)


def test_a_stat_line_whose_command_holds_spaces_and_parentheses_is_read() -> None:
    line = "4242 (VLLM::Work) x)) S 17 4240 4239 34816 4240 4194560 1 0 0 0 5 6 0 0 20 0 48 0 98765 1 2 3"
    assert processes.parse_stat(line) == ProcessStat(4242, "S", 17, 4240, 4239, 34816, 98765)


def test_a_process_is_alive_until_it_ends_and_a_zombie_is_not(sleeper: subprocess.Popen[bytes]) -> None:
    identity = identity_of(sleeper)
    assert processes.is_alive(identity)
    sleeper.kill()
    assert processes.wait_gone([identity], 30) == []
    assert not processes.is_alive(identity), "not yet waited for by its parent, but ended"


def test_another_process_with_the_same_pid_is_not_signalled(sleeper: subprocess.Popen[bytes]) -> None:
    other = ProcessIdentity(sleeper.pid, identity_of(sleeper).start_ticks + 1)
    assert not processes.is_alive(other)
    assert not processes.send(other, signal.SIGKILL)
    assert processes.end([other], grace=0) == []
    assert sleeper.poll() is None


def test_wait_gone_returns_who_still_lives_at_the_deadline(sleeper: subprocess.Popen[bytes]) -> None:
    identity = identity_of(sleeper)
    assert processes.wait_gone([identity], 0.05) == [identity]


def test_end_kills_what_ignores_sigterm() -> None:
    with subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        assert processes.end([identity_of(process)], grace=0.2) == []
        assert process.wait() == -signal.SIGKILL


def test_descendants_come_parents_first_and_without_the_root() -> None:
    stats = [ProcessStat(pid, "S", parent, 1, 1, 0, 5) for pid, parent in ((1, 0), (5, 1), (9, 5), (7, 1), (8, 7))]
    found = [stat.pid for stat in processes.descendants(1, stats)]
    assert sorted(found) == [5, 7, 8, 9]
    assert found.index(5) < found.index(9)
    assert found.index(7) < found.index(8)


def test_the_environment_and_command_line_of_a_gone_process_are_empty() -> None:
    assert processes.command_line(2**22 + 1) == []
    assert processes.environment(2**22 + 1) == {}
    assert processes.working_directory(2**22 + 1) is None


@pytest.mark.parametrize(
    ("raw", "wiped", "value"),
    [
        (b"A=1\0MARK=x=y\0", False, "x=y"),
        (b"", True, None),
        (b"\0" * 64, True, None),
        (b"\0" * 64 + b"PATH=/bin\0MARK=x\0", True, "x"),
        (b"le of 24 letters\0\0MARKED=x\0", True, None),
    ],
    ids=["whole", "gone or changing", "overwritten", "overwritten to the first changed variable", "by a long title"],
)
def test_an_environment_that_a_title_overwrote_is_told_from_a_whole_one(tmp_path: Path, raw: bytes, wiped: bool, value: str | None) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "environ").write_bytes(raw)
    assert processes.is_wiped(7, tmp_path) == wiped
    assert processes.environment_entry(7, "MARK", tmp_path) == value


def test_ancestors_go_up_to_init_and_stop_at_a_parent_that_cannot_be_seen() -> None:
    stats = [ProcessStat(pid, "S", parent, pid, pid, 0, 1) for pid, parent in ((1, 0), (5, 1), (9, 5), (12, 0))]
    assert processes.ancestors(9, stats) == [5, 1]
    assert processes.ancestors(12, stats) == []
    assert processes.all_below([5, 12], stats) == {9}
