"""`poise up` as a process: its flags, its errors, and how fast it ends with everything that it started."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from poise.dashboard import command
from poise.dashboard.flags import add_arguments, exporter_command
from poise.exporter import logs

from tests.node_scenes import tensor_parallel
from tests.poise_up import PATIENCE, alive, children, free_port, get, overview, up, wait_for


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="poise up")
    add_arguments(parser)
    return parser.parse_args(words)


# ------------------------------------------------------------------------------------------------------------------- flags
def test_flags_for_the_exporter_are_passed_on() -> None:
    command = exporter_command(
        parse(
            *("--exporter", "http://localhost:19747/metrics", "--engine", "a=http://x:1", "--engine", "b=http://y:2,role=decode"),
            *("--router", "front=http://z:3,kind=toy-proxy"),
            *("--expected-gpus", "8", "--interval", "500ms", "--no-discover", "--config", "my.toml"),
            *("--log-level", "debug", "--log-format", "json"),
        )
    )
    assert command[command.index("exporter") :] == [
        *("exporter", "--listen", "localhost:19747", "--engine", "a=http://x:1", "--engine", "b=http://y:2,role=decode"),
        *("--router", "front=http://z:3,kind=toy-proxy"),
        *(
            "--expected-gpus",
            "8",
            "--interval",
            "500ms",
            "--no-discover",
            "--config",
            "my.toml",
            "--web.config.file=",
            "--log-level",
            "debug",
            "--log-format",
            "json",
        ),
    ]


def test_what_was_not_said_is_left_to_the_exporters_own_file_and_environment() -> None:
    command = exporter_command(parse())
    assert command[command.index("exporter") :] == ["exporter", "--listen", "127.0.0.1:9747", "--web.config.file="]


def test_an_exporter_that_others_can_reach_keeps_its_web_configuration() -> None:
    assert "--web.config.file=" not in exporter_command(parse("--exporter", "http://10.0.0.7:9747"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--listen", "9748"), "'9748' is not HOST:PORT"),
        (("--listen", "x:70000"), "is not HOST:PORT"),
        (("--listen", "x:" + "1" * 5000), "is not HOST:PORT"),
        (("--listen", "a..b:1"), "no valid host name"),
        (("--listen", "\udcff:1"), "no valid host name"),
        (("--exporter", "http://a..b:1"), "no valid host"),
        (("--exporter", "http://x/a b"), "has to escape"),
        (("--exporter", "ftp://x"), "is not an http"),
        (("--exporter", "http://u:p@x"), "credentials"),
        (("--root-path", '/a"b'), "is not a path"),
        (("--scrape-interval", "0"), "from 0.5 to 300"),
        (("--scrape-interval", "nan"), "from 0.5 to 300"),
    ],
)
def test_wrong_values_are_named(words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(*words)
    assert message in capsys.readouterr().err


def test_addresses_prefixes_and_seconds_are_understood() -> None:
    assert parse("--listen", ":9").listen == ("0.0.0.0", 9)
    assert parse("--listen", "[::1]:9").listen == ("::1", 9)
    assert parse("--root-path", "poise/").root_path == "/poise"
    assert parse("--root-path", "/").root_path == ""
    assert parse("--scrape-interval", "2s").scrape_interval == 2.0


def test_the_configuration_file_is_not_told_to_be_the_exporters_alone() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    ours, passed_on, exporters = parser.format_help().rpartition("passed on to the exporter")
    assert passed_on
    assert "--config FILE" in ours
    assert "--config" not in exporters


# ----------------------------------------------------------------------------------------------------------------- process
def test_mistakes_for_the_exporter_are_refused_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logs, "set_up", lambda *_: None)
    monkeypatch.setattr(command, "_bind", lambda host, port: pytest.fail("the port was bound"))
    file = tmp_path / "poise.toml"
    file.write_text('[exporter]\nintervall = "1s"\n')
    exporter = f"http://127.0.0.1:{free_port()}"
    assert command.run(parse("--exporter", exporter)) == 2
    assert f"poise up: {file.name}: unknown key 'intervall' in [exporter]; did you mean 'interval'?" in capsys.readouterr().err
    file.unlink()
    assert command.run(parse("--exporter", exporter, "--expected-gpus", "many")) == 2
    assert "--expected-gpus=many" in capsys.readouterr().err
    with answering(b"") as port, contextlib.suppress(pytest.fail.Exception):  # one that runs already has settings of its own
        command.run(parse("--exporter", f"http://127.0.0.1:{port}", "--expected-gpus", "many"))
    assert capsys.readouterr().err == ""
    with contextlib.suppress(pytest.fail.Exception):
        command.run(parse("--exporter", exporter, "--no-exporter", "--expected-gpus", "many"))
    assert capsys.readouterr().err == ""


def test_a_taken_port_is_one_clear_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "poise.cli", "up", "--listen", f"127.0.0.1:{port}", "--no-exporter"],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            cwd=tmp_path,
        )
    assert done.returncode == 2
    assert done.stderr.strip() == (
        f"poise up: cannot listen on 127.0.0.1:{port}: the port is taken, perhaps by another `poise up`. Choose another with --listen HOST:PORT."
    )


def test_without_an_exporter_the_page_is_up_and_says_so(tmp_path: Path) -> None:
    progress = tmp_path / "progress.json"
    progress.write_text(json.dumps({"title": "Testbed", "steps": [{"name": "engine", "state": "running"}], "updated": time.time()}))
    exporter = f"http://127.0.0.1:{free_port()}"
    with up("--no-exporter", "--exporter", exporter, "--progress", str(progress), log=tmp_path / "log") as (process, url):
        status, page = get(f"{url}/")
        assert status == 200
        assert "waiting" in page
        wait_for(lambda: "Testbed" in get(f"{url}/")[1], "the progress is shown")
        assert children(process.pid) == []


def test_it_starts_an_exporter_and_both_end_in_time_with_open_streams(tmp_path: Path) -> None:
    exporter_port = free_port()
    with up("--exporter", f"http://127.0.0.1:{exporter_port}", "--no-discover", log=tmp_path / "log") as (process, url):
        wait_for(lambda: get(f"{url}/readyz")[0] == 200, "the exporter that was started answers")
        assert get(f"http://127.0.0.1:{exporter_port}/healthz")[0] == 200
        (child,) = children(process.pid)
        streams = [socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) for _ in range(3)]
        for stream in streams:
            stream.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"200 OK" in stream.recv(4096)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
        ended = time.monotonic() - began
        assert not alive(child)
        for stream in streams:
            stream.close()
    assert "Traceback" not in (tmp_path / "log").read_text()
    print(f"poise up with an exporter and 3 open streams ended {ended:.2f} s after SIGINT")


def test_a_dead_exporter_is_started_again_and_said_on_the_page(tmp_path: Path) -> None:
    with up("--exporter", f"http://127.0.0.1:{free_port()}", "--no-discover", log=tmp_path / "log") as (process, url):
        wait_for(lambda: get(f"{url}/readyz")[0] == 200, "the exporter answers")
        (first,) = children(process.pid)
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: "SIGKILL" in str(overview(url).get("notice")), "the page says that the exporter ended")
        wait_for(lambda: children(process.pid) not in ([], [first]), "another exporter is started")


def test_killed_outright_it_leaves_no_exporter_behind(tmp_path: Path) -> None:
    with up("--exporter", f"http://127.0.0.1:{free_port()}", "--no-discover", log=tmp_path / "log") as (process, url):
        wait_for(lambda: get(f"{url}/readyz")[0] == 200, "the exporter answers")
        (child,) = children(process.pid)
        process.kill()
        process.wait()
        wait_for(lambda: not alive(child), "the exporter ends with its parent")


@contextlib.contextmanager
def answering(answer: bytes | None) -> Iterator[int]:
    """A server on an ephemeral port that gives every request this answer; None: takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken: list[socket.socket] = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    taken.append(connection)
                    if answer is not None:
                        connection.recv(65_536)
                        connection.sendall(answer)
                        connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield int(listener.getsockname()[1])
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(PATIENCE)
            for connection in taken:
                connection.close()


def test_it_attaches_to_an_exporter_that_answers(tmp_path: Path) -> None:
    body = tensor_parallel().metrics(10)
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
    with answering(head + body) as port, up("--exporter", f"http://127.0.0.1:{port}", log=tmp_path / "log") as (process, url):
        wait_for(lambda: get(f"{url}/readyz")[0] == 200, "the page has scraped the exporter")
        wait_for(lambda: "attached" in (tmp_path / "log").read_text(), "it says that it attached")
        assert children(process.pid) == []
        assert overview(url)["node"] == "gpu-node-1"


def test_what_is_no_exporter_is_not_taken_for_one(tmp_path: Path) -> None:
    body = b"HTTP/1.1 200 OK\r\nContent-Length: 14\r\nConnection: close\r\n\r\nnode_load1 0.5\n"[:-1]
    with answering(body) as port, up("--exporter", f"http://127.0.0.1:{port}", log=tmp_path / "log") as (_, url):
        wait_for(lambda: "no Poise exporter" in str(overview(url).get("notice")), "the page says what answers there")


def test_when_what_had_the_port_leaves_it_the_exporter_is_started(tmp_path: Path) -> None:
    body = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(answering(body))
        with up("--exporter", f"http://127.0.0.1:{port}", "--no-discover", log=tmp_path / "log") as (process, url):
            wait_for(lambda: "404" in str(overview(url).get("notice")), "the page says what is there")
            stack.close()
            wait_for(lambda: get(f"{url}/readyz")[0] == 200, "the exporter that was started answers")
            assert len(children(process.pid)) == 1
            wait_for(lambda: not overview(url).get("notice"), "the page speaks of it no more")


def test_a_name_that_is_looked_up_for_ever_does_not_hold_up_the_end(tmp_path: Path) -> None:
    patch = """import socket, threading
real = socket.getaddrinfo
def hanging(host, *rest, **more):
    if host == "hanging.example":
        print("looking up", flush=True)
        threading.Event().wait()
    return real(host, *rest, **more)
socket.getaddrinfo = hanging
"""
    (tmp_path / "sitecustomize.py").write_text(patch)
    with up("--exporter", "http://hanging.example:9747", log=tmp_path / "log", environment={"PYTHONPATH": str(tmp_path)}) as (process, _):
        wait_for(lambda: "looking up" in (tmp_path / "log").read_text(), "it looks the name up")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_a_hanging_exporter_does_not_hold_up_the_end(tmp_path: Path) -> None:
    with answering(None) as port, up("--exporter", f"http://127.0.0.1:{port}", log=tmp_path / "log") as (process, url):
        wait_for(lambda: "no complete answer" in str(overview(url)), "the page says that the exporter hangs")
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        print(f"poise up with a hanging exporter ended {time.monotonic() - began:.2f} s after SIGTERM")
