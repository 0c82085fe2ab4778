"""What is slow is read again and again in a thread of its own, and a reader that breaks ends nothing."""

from __future__ import annotations

import threading

import pytest
from poise.exporter.watched import Watched

from tests.waiting import wait_until


def test_watch_reads_again_and_survives_a_reader_that_breaks(caplog: pytest.LogCaptureFixture) -> None:
    answers: list[str | Exception] = [RuntimeError("boom"), RuntimeError("boom")]
    done = threading.Event()

    def read() -> str:
        answer = answers.pop(0) if answers else "there"
        if isinstance(answer, Exception):
            raise answer
        done.set()
        return answer

    watch = Watched(read, "", interval=0.01, name="x", what="the thing")
    assert watch.latest() == ""
    watch.start()
    try:
        assert done.wait(30)
        wait_until(lambda: watch.latest() == "there", "the thing")
    finally:
        watch.stop()
    assert caplog.text.count("the thing cannot be read") == 1
