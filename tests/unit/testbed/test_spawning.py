"""Processes are recorded by themselves before they become what they are to be."""

from __future__ import annotations

import http.server
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from poise.testbed import processes, records, spawning, teardown
from poise.testbed.errors import TestbedError
from poise.testbed.paths import StateLayout

from tests.unit.testbed.deployments import layout_in, ours, start
from tests.waiting import wait_until


@pytest.fixture
def layout(tmp_path: Path) -> Iterator[StateLayout]:
    made = layout_in(tmp_path)
    yield made
    teardown.take_down(made)


def test_a_spawned_process_is_recorded_and_leads_a_session_of_its_own(layout: StateLayout) -> None:
    record = start(layout)
    assert records.read_all(layout.records) == [record]
    assert record.lives
    stat = processes.read_stat(record.pid)
    assert stat is not None
    assert (stat.session, stat.group, stat.terminal) == (record.pid, record.pid, 0)
    assert processes.command_line(record.pid) == ["sleep", "600"]
    assert processes.working_directory(record.pid) == os.path.realpath(layout.run)


def test_its_output_is_in_its_log_and_a_new_start_begins_a_new_one(layout: StateLayout) -> None:
    for word in ("first", "second"):
        record = start(layout, "part", "load", [sys.executable, "-c", f"import sys; print('{word}'); sys.exit(3)"])
        assert processes.wait_gone([record.identity], 30) == []
    assert spawning.tail(layout, "part") == "second"


def test_a_command_that_cannot_be_run_is_named_and_leaves_nothing_running(layout: StateLayout) -> None:
    with pytest.raises(TestbedError, match=r"server could not be started \(/nowhere/vllm\): .*No such file"):
        start(layout, command=["/nowhere/vllm"])
    assert ours(layout) == []


def test_a_process_that_ends_before_it_is_ready_is_reported_with_the_end_of_its_log(layout: StateLayout) -> None:
    record = start(layout, command=[sys.executable, "-c", "print('4 heads are not divisible by 3')"])
    with pytest.raises(TestbedError, match=r"(?s)server ended before it was ready.*4 heads are not divisible by 3"):
        spawning.wait_http(layout, record, 1, "/health", 60)


def test_a_process_that_never_answers_is_given_up_at_the_deadline(layout: StateLayout) -> None:
    record = start(layout)
    with pytest.raises(TestbedError, match="server was not ready after 0 s"):
        spawning.wait_http(layout, record, 1, "/health", 0.0)


def test_waiting_ends_when_the_server_answers_with_status_200(layout: StateLayout) -> None:
    class Answer(http.server.BaseHTTPRequestHandler):
        asked = 0

        def do_GET(self) -> None:
            Answer.asked += 1
            self.send_response(200 if Answer.asked > 1 else 503)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            return

    news: list[int] = []
    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        spawning.wait_http(layout, start(layout), server.server_port, "/health", 60, lambda: news.append(Answer.asked))
        server.shutdown()
        thread.join()
    assert news == [1]


def test_a_process_goes_on_when_the_one_that_started_it_ends(layout: StateLayout, tmp_path: Path) -> None:
    script = (
        "from tests.unit.testbed.deployments import start\n"
        "from poise.testbed.paths import StateLayout\n"
        "import os, signal, pathlib\n"
        f"start(StateLayout(pathlib.Path({str(layout.root)!r})))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    pid = os.spawnve(os.P_NOWAIT, sys.executable, [sys.executable, "-c", script], {**os.environ, "PYTHONPATH": str(Path.cwd())})
    os.waitpid(pid, 0)
    wait_until(lambda: records.read_all(layout.records), "the record")
    assert records.read_all(layout.records)[0].lives
