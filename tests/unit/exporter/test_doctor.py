"""`poise doctor`: where the checklist comes from, its exit codes, and what it says when it cannot look."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from poise.cli.main import main
from poise.exporter import doctor
from poise.exporter.checks.document import document
from poise.exporter.checks.runner import Runner

from tests.scenes import START, card, engine, node
from tests.startup_logs import V1


@pytest.fixture(autouse=True)
def root_logger_restored() -> Iterator[None]:
    """The command sets logging up for its process."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@contextmanager
def serving(status: int, body: bytes) -> Iterator[str]:
    """A server that gives this answer to every request."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(5)


def checklist() -> bytes:
    scene = node([card(0, busy=0), card(1, busy=0)], [engine(cards=[0], visible=[0, 1], environment="0,1")], expected=2)
    return json.dumps(document(scene, Runner().observe(dataclasses.replace(scene, taken_at=START)))).encode()


def altered(**change: object) -> bytes:
    """The checklist with something else in a place."""
    return json.dumps({**json.loads(checklist()), **change}).encode()


ALTERED: tuple[dict[str, object], ...] = (
    {"time": "yesterday"},
    {"time": 1e300},
    {"node": None, "time": float("nan")},
    {"verdict": 5},
    {"verdict": {"state": None, "lines": [], "summary": ""}},
    {"verdict": {"state": "ok", "lines": [{}], "summary": ""}},
    {"checks": {"a": 1}},
    {"checks": [5]},
    {"checks": [{"status": []}]},
    {"simulated": []} | {"checks": [{"check": "cards", "status": "fail"}]},
)


def test_an_exporter_that_drips_is_given_up_within_the_deadline(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "FETCH_TIMEOUT", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = threading.Event()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
                while not done.wait(0.05):
                    connection.sendall(b" ")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        assert main(["doctor", "--exporter", f"http://127.0.0.1:{listener.getsockname()[1]}"]) == 2
        done.set()
        thread.join(5)
    assert "no answer within 0.5 s" in capsys.readouterr().err


def test_running_exporter_is_asked_and_its_failure_is_exit_code_one(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(200, checklist()) as url:
        assert main(["doctor", "--exporter", url]) == 1
    out = capsys.readouterr().out
    assert f"exporter {url}" in out
    assert "the engine has processes on 1 of its 2 visible GPUs; GPU 1 is unused" in out


def test_json_is_the_document_itself(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(200, checklist()) as url:
        assert main(["doctor", "--json", "--exporter", url]) == 1
    assert json.loads(capsys.readouterr().out) == json.loads(checklist())


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (503, b"", "has no snapshot yet"),
        (200, b"<html>", "is no checklist of this version of Poise"),
        (200, b'{"format": 99}', "is no checklist of this version of Poise"),
        (404, b"", "HTTP 404"),
        (200, b"[" + b" " * (5 << 20) + b"]", "is no checklist of this version of Poise"),
        (200, b"[" * 100_000, "is no checklist of this version of Poise"),
        (302, b"", "HTTP 302"),
        *((200, altered(**change), "is no checklist of this version of Poise") for change in ALTERED),
    ],
)
def test_what_is_no_checklist_is_said_with_exit_code_two(status: int, body: bytes, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(status, body) as url:
        assert main(["doctor", "--exporter", url]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.out == ""


@pytest.mark.parametrize("url", ["nonsense", "ftp://x", "http://[::1", "http://127.0.0.1:99999"])
def test_address_that_cannot_be_asked_is_named(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--exporter", url]) == 2
    assert f"--exporter={url}" in capsys.readouterr().err


def test_exporter_that_is_not_there_is_said_with_the_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(200, b"") as url:
        pass
    assert main(["doctor", "--exporter", url]) == 2
    assert "start one with `poise exporter`, or use --here" in capsys.readouterr().err


@pytest.mark.skipif(Path("/proc/driver/nvidia/version").exists(), reason="this machine has an NVIDIA driver")
def test_own_look_on_a_machine_without_driver_could_not_look(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--here", "--window", "0s", "--no-discover", "--expected-gpus", "0"]) == 2
    assert "no NVIDIA driver" in capsys.readouterr().out


def test_flags_of_who_serves_are_not_among_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["doctor", "--help"])
    told = capsys.readouterr().out
    assert "--expected-gpus" in told
    assert not [flag for flag in ("--listen", "--web.config.file") if flag in told]


def test_bad_window_names_flag_and_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--here", "--window", "soon"]) == 2
    assert "--window=soon" in capsys.readouterr().err


def test_start_up_log_that_is_given_is_judged_with_the_engine_that_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "vllm=1.log"
    log.write_text("\n".join(V1))
    with serving(200, checklist()) as url:
        assert main(["doctor", "--json", "--exporter", url, "--engine-log", str(log)]) == 1
        page = json.loads(capsys.readouterr().out)
        assert main(["doctor", "--exporter", url, "--engine-log", f"n1:8000={log}"]) == 1
    (ours,) = [result for result in page["checks"] if result["check"] == "startup_log"]
    assert ours["sentence"] == "the log is of a start with TP=2, and the engine runs with TP=1"
    assert (ours["engine"], ours["subject"]) == ("n1:8000", "qwen-32b on n1:8000 TP=1")
    assert page["verdict"] == json.loads(checklist())["verdict"], "a problem is said before what is watched"
    assert "the log is of a start with TP=2" in capsys.readouterr().out


def test_log_of_a_failed_start_changes_a_calm_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "vllm.log"
    log.write_text("ValueError: Total number of attention heads (4) must be divisible by tensor parallel size (3).")
    calm = node([card(0, busy=0)], expected=1)
    body = json.dumps(document(calm, Runner().observe(dataclasses.replace(calm, taken_at=START)))).encode()
    with serving(200, body) as url:
        assert main(["doctor", "--json", "--exporter", url, "--engine-log", str(log)]) == 1
    verdict = json.loads(capsys.readouterr().out)["verdict"]
    assert (verdict["state"], verdict["lines"][0]["subject"]) == ("problem", "vllm.log")


@pytest.mark.parametrize("given", ["/nonexistent/x.log", "n1:8000=/nonexistent/x.log", "/dev/null", "/tmp"])
def test_log_that_cannot_be_read_is_said_with_exit_code_two(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--here", "--engine-log", given]) == 2
    assert f"--engine-log={given}: " in capsys.readouterr().err
