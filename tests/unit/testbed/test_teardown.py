"""Taking down leaves nothing of ours and touches nothing of others."""

from __future__ import annotations

import errno
import json
import mmap
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from poise.testbed import claim, lock, processes, records, shared_memory, teardown
from poise.testbed.errors import TestbedError
from poise.testbed.paths import StateLayout

from tests.needs import needs_namespaces
from tests.unit.testbed.deployments import layout_in, ours, start, start_family
from tests.waiting import wait_until


@pytest.fixture
def layout(tmp_path: Path) -> StateLayout:
    return layout_in(tmp_path)


@pytest.fixture
def foreign_segment() -> Iterator[Path]:
    """A segment as vLLM makes them, of somebody else."""
    path = Path(f"/dev/shm/psm_poise_test_{os.getpid()}")
    path.write_bytes(b"x" * 4096)
    yield path
    path.unlink(missing_ok=True)


def test_everything_ends_and_only_logs_stay(layout: StateLayout) -> None:
    start_family(layout)
    start(layout, "exporter", "exporter")
    wait_until(lambda: len(ours(layout)) == 3, "three processes")
    removed = teardown.take_down(layout)
    assert set(removed.names) == {"server", "exporter"}
    assert len(removed.pids) == 3
    assert ours(layout) == []
    assert sorted(path.name for path in layout.root.iterdir()) == ["lock", "logs", "poise-testbed.json"]


# Makes files in shared memory without end, each held by nobody but a child: what is noted is old at once.
RESTLESS = """
import mmap, os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(2):
    os.fork()
number = 0
while True:
    file = open(f"/dev/shm/psm_{sys.argv[1]}_{os.getpid()}_{number}", "w+b")
    file.truncate(4096)
    view = mmap.mmap(file.fileno(), 4096)
    number += 1
    print("made", flush=True)
    time.sleep(0.005)
    os.unlink(file.name)
"""


def test_nothing_is_left_of_a_server_that_makes_shared_memory_until_its_last_moment(layout: StateLayout) -> None:
    mark = f"poise_restless_{os.getpid()}"
    start(layout, command=[sys.executable, "-c", RESTLESS, mark])
    wait_until(lambda: len(ours(layout)) == 4 and layout.log("server").read_text().count("made") > 40, "files that come and go")
    try:
        teardown.take_down(layout)
        assert list(Path("/dev/shm").glob(f"psm_{mark}_*")) == []
    finally:
        for path in Path("/dev/shm").glob(f"psm_{mark}_*"):
            path.unlink()


def test_watchers_end_before_what_they_watch(layout: StateLayout) -> None:
    for name, role in (("server", "engine"), ("mirror", "mirror"), ("exporter", "exporter"), ("page", "dashboard"), ("router", "router")):
        start(layout, name, role)  # type: ignore[arg-type]  # the five are roles
    said: list[str] = []
    teardown.take_down(layout, said.append)
    assert said == ["ending page", "ending exporter", "ending router", "ending server", "ending mirror"]


def test_twice_is_as_good_as_once_and_nothing_is_no_error(layout: StateLayout, tmp_path: Path) -> None:
    start(layout)
    teardown.take_down(layout)
    assert teardown.take_down(layout) == teardown.Removed((), (), ())
    assert teardown.take_down(StateLayout(tmp_path / "never")) == teardown.Removed((), (), ())


def test_a_child_without_record_is_found_when_its_server_was_killed(layout: StateLayout) -> None:
    record = start_family(layout)
    wait_until(lambda: len(ours(layout)) == 2, "server and child")
    processes.send(record.identity, signal.SIGKILL)
    records.remove(layout.records, record.name)
    assert len(teardown.take_down(layout).pids) >= 1
    assert ours(layout) == []


def test_a_record_of_a_reused_pid_ends_nobody(layout: StateLayout) -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        stat = processes.read_stat(other.pid)
        assert stat is not None
        records.write(layout.records, records.Record("server", "engine", other.pid, stat.start_ticks - 5, 0.0))
        assert teardown.take_down(layout).pids == ()
        assert other.poll() is None
        other.kill()


def test_our_shared_memory_goes_and_that_of_others_stays(layout: StateLayout, foreign_segment: Path) -> None:
    path = Path(f"/dev/shm/psm_ours_{os.getpid()}")
    hold = (
        "import mmap, sys, time\n"
        f"file = open({str(path)!r}, 'w+b'); file.truncate(4096); view = mmap.mmap(file.fileno(), 4096)\n"
        "print('holding', flush=True); time.sleep(600)"
    )
    try:
        start(layout, command=[sys.executable, "-c", hold])
        wait_until(lambda: "holding" in layout.log("server").read_text(), "the segment")
        assert teardown.take_down(layout).segments == (path.name,)
        assert not path.exists()
        assert foreign_segment.exists()
    finally:
        path.unlink(missing_ok=True)


def test_a_noted_segment_is_removed_after_its_holder_was_killed_unless_it_is_another_file_by_now(
    layout: StateLayout, foreign_segment: Path
) -> None:
    with foreign_segment.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        held = shared_memory.held_by([os.getpid()])
    assert {segment.name for segment in held} >= {foreign_segment.name}
    mine = {segment for segment in held if segment.name == foreign_segment.name}
    shared_memory.note(layout.shared_memory, {shared_memory.Segment(s.name, s.inode + 1) for s in mine})
    teardown.take_down(layout)
    assert foreign_segment.exists(), "same name, another file"
    claim.make(layout)
    shared_memory.note(layout.shared_memory, mine)
    teardown.take_down(layout)
    assert not foreign_segment.exists()


def test_one_part_is_ended_with_its_children_and_the_others_stay(layout: StateLayout) -> None:
    start_family(layout, "first")
    other = start(layout, "second")
    wait_until(lambda: len(ours(layout)) == 3, "three processes")
    with lock.held(layout.lock, "test"):
        assert len(teardown.end_processes(layout, ["first"])) == 2
    assert ours(layout) == [other.pid]
    assert [record.name for record in records.read_all(layout.records)] == ["second"]
    teardown.take_down(layout)


def test_a_launcher_at_work_is_stopped_first(layout: StateLayout) -> None:
    script = (
        "import pathlib, time\nfrom poise.testbed import lock\n"
        f"with lock.held(pathlib.Path({str(layout.lock)!r}), 'poise testbed up tp'):\n"
        "    print('locked', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == b"locked\n"
        said: list[str] = []
        teardown.take_down(layout, said.append)
        assert launcher.wait() == -signal.SIGTERM
    assert said == [f"stopping process {launcher.pid} (poise testbed up tp)"]


def test_a_semaphore_is_ours_though_its_holder_maps_it_under_another_name(layout: StateLayout) -> None:
    hold = (
        "import multiprocessing, time\n"
        "lock = multiprocessing.get_context('spawn').Lock()\n"
        "print(lock._semlock.name, flush=True); time.sleep(600)"
    )
    record = start(layout, command=[sys.executable, "-c", hold])
    wait_until(lambda: layout.log("server").read_text().startswith("/mp-"), "the semaphore")
    path = Path("/dev/shm/sem." + layout.log("server").read_text().strip().removeprefix("/"))
    assert path.name in {segment.name for segment in shared_memory.held_by([record.pid])}
    teardown.take_down(layout)
    assert not path.exists()


def test_a_process_that_is_started_while_everything_is_taken_down_is_ended_too(layout: StateLayout) -> None:
    """It was forked but had not made its session when it was first looked for."""
    late: list[records.Record] = []

    def say(text: str) -> None:
        if text == "ending exporter" and not late:
            late.append(start(layout, "late", "load"))

    start(layout, "exporter", "exporter")
    teardown.take_down(layout, say)
    assert len(late) == 1
    assert ours(layout) == []


def test_a_process_that_is_started_after_everything_was_taken_down_ends_by_itself(layout: StateLayout) -> None:
    start(layout)
    teardown.take_down(layout)
    layout.run.mkdir()
    with pytest.raises(TestbedError, match="could not be started"):
        start(layout)
    assert ours(layout) == []


def test_a_process_that_a_forged_note_names_as_launcher_is_not_signalled(layout: StateLayout) -> None:
    hold = f"import fcntl, time\nfile = open({str(layout.lock)!r}, 'w')\nfcntl.flock(file, fcntl.LOCK_EX)\nprint('locked', flush=True); time.sleep(600)"
    with subprocess.Popen(["sleep", "600"]) as other, subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        stat = processes.read_stat(other.pid)
        assert stat is not None
        note = {"pid": other.pid, "start_ticks": stat.start_ticks, "purpose": "poise testbed up tp"}
        layout.lock.with_name("lock.holder.json").write_text(json.dumps(note))
        releasing = threading.Timer(0.5, holder.kill)  # a program that is none of ours is waited for
        releasing.start()
        said: list[str] = []
        teardown.take_down(layout, said.append)
        releasing.join()
        assert said == []
        assert other.poll() is None
        other.kill()


def test_a_script_that_takes_down_from_within_the_folder_goes_on(layout: StateLayout) -> None:
    """It has no terminal, as one that cron started."""
    record = start(layout)
    script = f"cd {layout.run} && {sys.executable} -m poise.cli testbed down --state-dir {layout.root}; echo went on $?"
    done = subprocess.run(
        ["setsid", "--wait", "bash", "-c", script], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "went on 0")
    assert not record.lives


# Ends a deployment as the file system lets it: nothing can be written (setrlimit(2): a write raises EFBIG, as ENOSPC on a full disk).
FULL = """
import pathlib, resource, sys
from poise.testbed import teardown
from poise.testbed.paths import StateLayout
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
removed = teardown.take_down(StateLayout(pathlib.Path(sys.argv[1])))
print(len(removed.pids), *removed.segments)
"""


def test_all_ends_where_nothing_can_be_written_shared_memory_too(layout: StateLayout) -> None:
    path = Path(f"/dev/shm/psm_full_{os.getpid()}")
    hold = f"import time\nfile = open({str(path)!r}, 'w+b')\nprint('holding', flush=True); time.sleep(600)"
    try:
        start(layout, command=[sys.executable, "-c", hold])
        wait_until(lambda: "holding" in layout.log("server").read_text(), "the segment")
        done = subprocess.run([sys.executable, "-c", FULL, str(layout.root)], capture_output=True, text=True, timeout=120, check=False)
        assert (done.stdout, done.stderr) == (f"1 {path.name}\n", "")
        assert not path.exists()
        assert ours(layout) == []
        assert sorted(entry.name for entry in layout.root.iterdir()) == ["lock", "logs", "poise-testbed.json"]
    finally:
        path.unlink(missing_ok=True)


def test_a_part_that_is_killed_where_nothing_can_be_noted_leaves_no_shared_memory(
    layout: StateLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(f"/dev/shm/psm_part_{os.getpid()}")
    hold = f"import time\nfile = open({str(path)!r}, 'w+b')\nprint('holding', flush=True); time.sleep(600)"
    try:
        start(layout, command=[sys.executable, "-c", hold])
        wait_until(lambda: "holding" in layout.log("server").read_text(), "the segment")
        monkeypatch.setattr(shared_memory, "write_json", full)
        teardown.kill(layout, "server")
        assert not path.exists()
    finally:
        path.unlink(missing_ok=True)
        teardown.take_down(layout)


def full(path: Path, value: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device", str(path))


def test_on_a_read_only_disk_all_ends_and_what_stays_is_said(layout: StateLayout) -> None:
    needs_namespaces()
    record = start(layout)
    script = f"mount --bind {layout.root} {layout.root} && mount -o remount,ro,bind {layout.root} && {sys.executable} -m poise.cli testbed down --state-dir {layout.root}"
    done = subprocess.run(["unshare", "--mount", "bash", "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, record.lives) == (1, False), done.stderr
    assert "poise: everything has ended, but " in done.stderr
    assert "could not be removed: Read-only file system" in done.stderr
    assert teardown.take_down(layout).pids == ()
    assert not layout.records.exists()


def test_a_folder_in_the_place_of_a_file_keeps_nothing_running(layout: StateLayout) -> None:
    record = start(layout)
    layout.plan.mkdir()
    (layout.records / "x.json").mkdir()
    layout.blackhole("server").touch()
    with pytest.raises(TestbedError, match=r"everything has ended, but .*deployment.json could not be removed: Is a directory"):
        teardown.take_down(layout)
    assert not record.lives
    assert not layout.records.exists()
    assert not layout.blackhole("server").exists()
    layout.plan.rmdir()
    teardown.take_down(layout)


def test_a_noted_file_that_is_called_otherwise_than_vllms_stays(layout: StateLayout) -> None:
    path = Path(f"/dev/shm/important_{os.getpid()}")
    path.touch()
    try:
        shared_memory.note(layout.shared_memory, {shared_memory.Segment(path.name, path.stat().st_ino)})
        assert teardown.take_down(layout).segments == ()
        assert path.exists()
    finally:
        path.unlink()
