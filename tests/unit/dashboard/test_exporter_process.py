"""The exporter as a child: kept running, spoken of, and never left behind. The children here are small real processes."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from poise.dashboard import die_with_parent
from poise.dashboard.exporter_process import ExporterProcess
from poise.dashboard.observation import ExporterMode, ExporterStatus

from tests.poise_up import alive

FOREVER = "import time\nprint('up', flush=True)\nwhile True: time.sleep(60)\n"
DEAF = "import signal, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf', file=sys.stderr, flush=True)\nwhile True: time.sleep(60)\n"


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.02)


def test_a_child_that_ends_is_started_again_and_its_last_words_are_told() -> None:
    told: list[ExporterStatus] = []
    stderr = io.BytesIO()

    async def tell(status: ExporterStatus) -> None:
        told.append(status)

    async def run() -> None:
        script = "import sys\nprint('poise: port 1 is taken <b>', file=sys.stderr)\nsys.exit(3)\n"
        process = ExporterProcess([sys.executable, "-c", script], tell=tell, clock=time.monotonic, stderr=stderr, first_delay=0.01)
        task = asyncio.create_task(process.run())
        await until(lambda: any(status.restarts == 2 for status in told))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert process.pid is None

    asyncio.run(run())
    assert told[0] == ExporterStatus(ExporterMode.CHILD, "", 0)
    assert "exit code 3: poise: port 1 is taken <b>" in told[1].notice
    assert b"port 1 is taken" in stderr.getvalue()


def test_cancelling_ends_the_child_even_one_that_ignores_sigterm() -> None:
    async def tell(status: ExporterStatus) -> None:
        pass

    async def run() -> None:
        stderr = io.BytesIO()
        process = ExporterProcess([sys.executable, "-c", DEAF], tell=tell, clock=time.monotonic, stderr=stderr)
        task = asyncio.create_task(process.run())
        await until(lambda: b"deaf" in stderr.getvalue())
        pid = process.pid
        assert pid is not None
        assert alive(pid)
        task.cancel()
        async with asyncio.timeout(20):
            await asyncio.gather(task, return_exceptions=True)
        assert not alive(pid)

    asyncio.run(run())


def test_a_child_that_is_killed_is_named_by_its_signal() -> None:
    told: list[ExporterStatus] = []

    async def tell(status: ExporterStatus) -> None:
        told.append(status)

    async def run() -> None:
        process = ExporterProcess([sys.executable, "-c", FOREVER], tell=tell, clock=time.monotonic, first_delay=0.01)
        task = asyncio.create_task(process.run())
        await until(lambda: process.pid is not None)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        await until(lambda: any(status.restarts == 1 for status in told))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
    assert any("signal SIGKILL" in status.notice for status in told)


def test_an_end_by_a_signal_without_a_name_is_told_too() -> None:
    told: list[ExporterStatus] = []

    async def tell(status: ExporterStatus) -> None:
        told.append(status)

    async def run() -> None:
        script = f"import os\nos.kill(os.getpid(), {signal.SIGRTMIN + 5})\nimport time\ntime.sleep(60)\n"
        process = ExporterProcess([sys.executable, "-c", script], tell=tell, clock=time.monotonic, first_delay=0.01)
        task = asyncio.create_task(process.run())
        await until(lambda: any(status.restarts == 1 for status in told))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
    assert any(f"signal {signal.SIGRTMIN + 5}" in status.notice for status in told)


def test_a_child_that_cannot_be_started_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[ExporterStatus] = []
    start = asyncio.create_subprocess_exec
    tries = 0

    async def tell(status: ExporterStatus) -> None:
        told.append(status)

    async def refused_once(*command: str, **options: Any) -> asyncio.subprocess.Process:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return await start(*command, **options)

    async def run() -> None:
        process = ExporterProcess([sys.executable, "-c", FOREVER], tell=tell, clock=time.monotonic, first_delay=0.01)
        task = asyncio.create_task(process.run())
        await until(lambda: process.pid is not None)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refused_once)
    asyncio.run(run())
    assert "it cannot be started: Resource temporarily unavailable" in told[0].notice


def test_a_child_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    child = [sys.executable, "-c", f"import os\nopen({str(pid_file)!r}, 'w').write(str(os.getpid()))\n{FOREVER}"]
    script = (
        f"import os, subprocess, sys\nsubprocess.run([sys.executable, '-IS', {die_with_parent.__file__!r}, str(os.getpid()), *{child!r}])\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 20
        while not (pid_file.exists() and pid_file.read_text()):
            assert time.monotonic() < deadline, "the child did not start within 20 s"
            time.sleep(0.02)
        pid = int(pid_file.read_text())
        assert alive(pid)
    finally:
        parent.kill()
        parent.wait()
    while alive(pid):
        assert time.monotonic() < deadline, "the child outlived its parent"
        time.sleep(0.02)


def test_a_child_whose_parent_is_gone_already_does_not_run() -> None:
    done = subprocess.run(
        [sys.executable, "-IS", die_with_parent.__file__, "1", sys.executable, "-c", "print('ran')"], capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, b"")


def test_a_wish_to_read_again_reaches_the_child_and_never_ends_one_that_does_not_listen_yet() -> None:
    async def tell(status: ExporterStatus) -> None:
        pass

    async def run() -> None:
        # As `poise exporter` takes it: blocked, and waited for.
        script = (
            "import signal, sys\n"
            "print('deaf', file=sys.stderr, flush=True)\n"
            "import time; time.sleep(0.3)\n"
            "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})\n"
            "print('listens', file=sys.stderr, flush=True)\n"
            "signal.sigwait({signal.SIGHUP})\n"
            "print('read', file=sys.stderr, flush=True)\n"
            "signal.sigwait({signal.SIGTERM})\n"
        )
        stderr = io.BytesIO()
        process = ExporterProcess([sys.executable, "-c", script], tell=tell, clock=time.monotonic, stderr=stderr)
        assert not process.read_again()
        task = asyncio.create_task(process.run())
        await until(lambda: b"deaf" in stderr.getvalue())
        pid = process.pid
        assert process.read_again()
        await until(lambda: b"listens" in stderr.getvalue())
        assert process.read_again()
        await until(lambda: b"read" in stderr.getvalue())
        assert process.pid == pid
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())


def test_a_child_for_which_there_is_no_thread_is_tried_again_and_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[ExporterStatus] = []

    async def tell(status: ExporterStatus) -> None:
        told.append(status)

    async def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    async def run() -> None:
        monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
        process = ExporterProcess([sys.executable], tell=tell, clock=time.monotonic, first_delay=0.01)
        task = asyncio.create_task(process.run())
        await until(lambda: any(status.restarts == 2 for status in told))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
    assert "it cannot be started: this process can start no thread" in told[0].notice
