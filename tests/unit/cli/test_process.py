"""The command as a process: signals at any moment of the start, streams that are closed, full or gone, terminals that know no character."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.poise_up import free_port

PATIENCE = 60.0
#: A doctor that looks at nothing and prints a report.
DOCTOR = ("doctor", "--here", "--no-discover", "--window=0s", "--expected-gpus=0")


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "poise.cli", *words]


def run(shell: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A shell line with the command as $POISE."""
    variables = {**os.environ, "POISE": f"{sys.executable} -m poise.cli", **environment}
    return subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=folder, env=variables)


def until_it_serves(port: int) -> str:
    """Shell words that wait until the last job answers on the port, or has ended, and then tell it to leave."""
    connect = f"(exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null"
    return f"until {connect} || ! kill -0 $!; do sleep 0.05; done; kill -TERM $!; wait $!"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    "words", [("exporter", "--listen=127.0.0.1:0"), ("up", "--listen=127.0.0.1:0", "--exporter=http://127.0.0.1:PORT")]
)
def test_a_server_that_is_told_to_leave_while_it_starts_leaves_in_order(words: tuple[str, ...], number: int, tmp_path: Path) -> None:
    port = str(free_port())
    for _ in range(3):
        process = subprocess.Popen(
            command(*(word.replace("PORT", port) for word in words), "--no-discover"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=tmp_path,
        )
        # Past the interpreter's own start, in the middle of our imports: the first module of ours that is heavy is mapped.
        deadline = time.monotonic() + PATIENCE
        while "_socket" not in Path(f"/proc/{process.pid}/maps").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.001)
        process.send_signal(number)
        output, _ = process.communicate(timeout=PATIENCE)
        assert (process.returncode, "Traceback" in output) == (0, False), output


def test_a_command_that_is_interrupted_while_it_starts_says_nothing(tmp_path: Path) -> None:
    process = subprocess.Popen(command(*DOCTOR), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path)
    deadline = time.monotonic() + PATIENCE
    while "_socket" not in Path(f"/proc/{process.pid}/maps").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=PATIENCE)
    assert (process.returncode, output) == (-signal.SIGINT, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_command_ends_at_once_in_a_name_lookup_that_nothing_can_interrupt(number: int, tmp_path: Path) -> None:
    """The C library's resolver goes on after a signal, and a handler of Python would run only after it."""
    patch = """import ctypes, socket
def hanging(host, *rest, **more):
    print("looking up", flush=True)
    while True:
        ctypes.PyDLL(None).sleep(60)  # holds the interpreter, as nothing in Python could
socket.getaddrinfo = hanging
"""
    (tmp_path / "sitecustomize.py").write_text(patch)
    process = subprocess.Popen(
        command("doctor", "--exporter=http://hanging.example:9747"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "looking up\n"
    process.send_signal(number)
    output, _ = process.communicate(timeout=PATIENCE / 2)
    assert (process.returncode, output) == (-number, "")


def test_output_to_a_full_disk_is_one_line(tmp_path: Path) -> None:
    done = run(f"$POISE {' '.join(DOCTOR)} > /dev/full", tmp_path)
    assert (done.returncode, done.stderr) == (2, "poise: the output cannot be written: No space left on device\n")


def test_errors_to_a_full_disk_change_no_exit_code(tmp_path: Path) -> None:
    assert run(f"$POISE {' '.join(DOCTOR)} --log-level=debug 2> /dev/full", tmp_path).returncode == 2  # no cards: could not look
    port = free_port()
    done = run(f"$POISE exporter --listen=127.0.0.1:{port} --no-discover 2> /dev/full & {until_it_serves(port)}", tmp_path)
    assert done.returncode == 0


def test_closed_streams_are_as_good_as_none(tmp_path: Path) -> None:
    done = run(f"$POISE {' '.join(DOCTOR)} >&- <&-", tmp_path)
    assert "Traceback" not in done.stderr
    assert done.returncode == 2
    port, page_port = free_port(), free_port()
    for words, serves in (
        (f"exporter --listen=127.0.0.1:{port}", port),
        (f"up --listen=127.0.0.1:{page_port} --exporter=http://127.0.0.1:{port}", page_port),
    ):
        done = run(f"$POISE {words} --no-discover 2>&- >&- <&- & {until_it_serves(serves)}", tmp_path)
        assert done.returncode == 0, words


def test_a_reader_that_went_away_ends_the_output_and_no_more(tmp_path: Path) -> None:
    done = run(f"set -o pipefail; $POISE {' '.join(DOCTOR)} | true", tmp_path)
    assert (done.returncode, done.stderr) in ((2, ""), (141, "")), "how much was written before the reader went away is a race"


def test_a_terminal_that_knows_ascii_only_gets_the_report(tmp_path: Path) -> None:
    done = run(f"$POISE {' '.join(DOCTOR)}", tmp_path, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert "Traceback" not in done.stderr
    assert "Poise doctor" in done.stdout
