"""What each command says when Ctrl-C ends it: what is true of it, and how to go on. And what no longer ends any."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from poise.testbed import command, environment, faults, plan, status, teardown
from poise.testbed.bench import command as bench
from poise.testbed.comparison import command as comparison
from poise.testbed.deployment import Deployment
from poise.testbed.interconnect import command as interconnect
from poise.testbed.manifests import command as manifests
from poise.testbed.progress import Progress, TerminalSink

from tests.unit.testbed.deployments import layout_in
from tests.unit.testbed.test_plan import PLAN
from tests.waiting import wait_until

SECONDS = 60.0


def interrupted(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def run(*words: str) -> int:
    parser = argparse.ArgumentParser(prog="poise testbed")
    command.add_arguments(parser)
    return command.run(parser.parse_args(list(words)))


@pytest.mark.parametrize(
    ("words", "owner", "name", "said"),
    [
        (("install",), environment, "install", ", the next `poise testbed install` or `up` begins it again"),
        (("up", "single"), Deployment, "up", ", nothing that it started is left running"),
        (("demo", "single"), Deployment, "up", ", nothing that it started is left running"),
        (("load",), Deployment, "open", ", the load has ended"),
        (("load", "--profile", "chat"), bench, "load_profile", ", the load has ended"),
        (("compare", "single"), comparison, "compare", ", nothing that it started is left running"),
        (("interconnect",), interconnect, "run", ", nothing that it started is left running"),
        (
            ("fault", "one-card"),
            *(faults, "apply"),
            ", the fault one-card may be in force or half applied: `poise testbed fault --undo` takes it back",
        ),
        (
            ("fault", "--undo"),
            *(faults, "undo"),
            ", the deployment may be mended in part: `poise testbed fault --undo` goes on from there",
        ),
        (("down",), teardown, "take_down", ", what has not ended goes on running: `poise testbed down` ends it"),
        (("status",), status, "look", ""),
        (("runs",), bench, "list_runs", ""),
        (
            ("kubernetes", "--output", "folder"),
            manifests,
            "kubernetes",
            ", files may be missing: the same command with --force writes them all",
        ),
    ],
)
def test_an_interrupted_command_says_what_it_leaves(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    words: tuple[str, ...],
    owner: object,
    name: str,
    said: str,
) -> None:
    layout = layout_in(tmp_path)
    plan.write(layout.plan, PLAN)
    monkeypatch.setenv("POISE_STATE_DIR", str(layout.root.parent))
    layout.root.rename(layout.root.with_name("testbed"))
    monkeypatch.setattr(owner, name, interrupted)
    assert run(*words) == 130
    assert capsys.readouterr().err.splitlines()[-1] == f"poise: interrupted{said}"


def test_up_that_is_interrupted_when_all_is_up_says_that_it_stays(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    layout = layout_in(tmp_path)
    monkeypatch.setattr(Deployment, "up", lambda *_: Deployment(layout, {}))
    monkeypatch.setattr(status, "look", interrupted)
    assert run("up", "single", "--state-dir", str(layout.root)) == 130
    assert capsys.readouterr().err == "poise: interrupted, the deployment stays: `poise testbed status`\n"


def signals(pid: int, kind: str) -> int:
    """A mask of /proc/PID/status (proc(5)): SigIgn what is ignored, SigCgt what has a handler."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(kind)]
    return int(line.split()[1], 16)


def test_an_interrupt_that_was_ignored_at_the_start_does_not_end_load() -> None:
    """As for `poise testbed load … &` in a script: shells start it with SIGINT ignored."""
    words = ["load", "--url", "http://127.0.0.1:9", "--model", "tiny", "--forever", "-c", "1"]
    line = ["bash", "-c", 'trap "" INT; exec "$@"', "-", sys.executable, "-m", "poise.cli", "testbed", *words]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_until(lambda: any("eventpoll" in each for each in open_files(process.pid)), "the event loop")
            assert signals(process.pid, "SigIgn") & 1 << signal.SIGINT - 1
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
    assert process.returncode == 130
    assert err.splitlines()[-1] == "poise: interrupted, the load has ended"


def open_files(pid: int) -> list[str]:
    """What its descriptors are of; those that it closes meanwhile are left out."""
    found: list[str] = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(path))
    return found


class Full(io.StringIO):
    """A stream on a disk that is full until `room`."""

    room = False

    def write(self, text: str) -> int:
        if not self.room:
            raise OSError(28, "No space left on device")
        return super().write(text)


def test_a_display_that_fails_does_not_end_the_work_and_shows_again_when_it_can() -> None:
    stream = Full()
    progress = Progress("x", ["a"], [TerminalSink(stream, lambda: 80, lambda: 0.0)], lambda: 0.0)
    with progress.step("a") as note:
        note("unseen")
        stream.room = True
    assert progress.steps[0].state == "done"
    assert stream.getvalue() == "ok   a: unseen\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this kernel has no /dev/full")
def test_what_cannot_be_said_on_standard_error_ends_no_command(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    with Path("/dev/full").open("w") as full:
        for words, code in ((("down",), 0), (("up", "octopus"), 2)):
            line = [sys.executable, "-m", "poise.cli", "testbed", *words, "--state-dir", str(tmp_path / "state")]
            ended = subprocess.run(line, stdout=subprocess.PIPE, stderr=full, text=True, timeout=SECONDS, check=False)
            assert (ended.returncode, "Traceback" in ended.stdout) == (code, False)
