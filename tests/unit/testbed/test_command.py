"""The command line: what a person gets for right and wrong words."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from poise.testbed import command, plan, records
from poise.testbed.errors import TestbedError

from tests.unit.testbed.deployments import layout_in, ours, start_family
from tests.unit.testbed.test_plan import PLAN
from tests.waiting import wait_until


def run(*words: str) -> int:
    parser = argparse.ArgumentParser(prog="poise testbed")
    command.add_arguments(parser)
    return command.run(parser.parse_args(list(words)))


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as caught:
        run(*words)
    assert caught.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "the following arguments are required: COMMAND"),
        (("up",), "the following arguments are required: SHAPE"),
        (("up", "octopus"), "there is no shape 'octopus': choose from hybrid, pair, pd, pp, single, tp, or give the path of a TOML file"),
        (("up", "pd", "--prefill", "0"), "'0' is no number from 1 to 64"),
        (("up", "pd", "--decode-tp", "\N{SUPERSCRIPT TWO}"), "is no number from 1 to 64"),
        (("up", "tp", "--port", "8000"), "'8000' is not PART=PORT, e.g. server=8000"),
        (("up", "tp", "--port", "server=99999"), "is not PART=PORT"),
        (("up", "tp", "--port", "server=\N{SUPERSCRIPT TWO}"), "is not PART=PORT"),
        (("load", "-c", "0"), "'0' is no number from 1 to 10000"),
        (("load", "--for", "nan"), "'nan' is no number of seconds above 0"),
        (("load", "--for", "-1"), "'-1' is no number of seconds above 0"),
        (("load", "--pause", "nan"), "'nan' is no number of seconds from 0"),
        (("load", "--seed", "-1"), "'-1' is no number from 0 to 4294967295"),
        (("load", "--url", "ftp://x"), "url 'ftp://x' is not of the form http://HOST:PORT"),
        (("load", "--spread", "5"), "'5' is no number from 0 to below 1"),
        (("compare", "single", "--for", "inf"), "'inf' is no number of seconds above 0"),
        (("demo", "--for", "nan"), "'nan' is no number of seconds above 0"),
        (("demo", "--page-port", "99999999"), "'99999999' is no number from 0 to 65535"),
        (("demo", "--page-port", "-1"), "'-1' is no number from 0 to 65535"),
        (("interconnect", "--iterations", "99999999"), "'99999999' is no number from 1 to 10000"),
        (("load", "--requests", "5", "--forever"), "not allowed with"),
        (("fault",), "one of the arguments"),
        (("fault", "gremlin"), "invalid choice: 'gremlin'"),
        (("fault", "one-card", "--undo"), "not allowed with"),
    ],
)
def test_wrong_words_are_named(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str) -> None:
    assert said in refused(capsys, *words)


@pytest.mark.parametrize("name", ["install", "up", "load", "fault", "status", "logs", "down", "demo"])
def test_each_subcommand_explains_itself(capsys: pytest.CaptureFixture[str], name: str) -> None:
    with pytest.raises(SystemExit) as caught:
        run(name, "--help")
    assert caught.value.code == 0
    assert len(capsys.readouterr().out.splitlines()) > 4


@pytest.mark.parametrize("words", [("status",), ("load",), ("fault", "one-card"), ("fault", "--undo")])
def test_without_a_deployment_it_is_said_how_to_start_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: tuple[str, ...]
) -> None:
    assert run(*words, "--state-dir", str(tmp_path)) == 1
    captured = capsys.readouterr()
    assert captured.err == f"poise: no deployment in {tmp_path}: start one with `poise testbed up tp`\n"


def test_logs_without_any_say_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run("logs", "server", "--state-dir", str(tmp_path)) == 1
    assert "no log of server in" in capsys.readouterr().err


def test_logs_show_the_last_lines_of_the_chosen_part(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    layout = layout_in(tmp_path)
    layout.log("server").write_text("one\ntwo\nthree\n")
    layout.log("mirror").write_text("other\n")
    assert run("logs", "server", "-n", "2", "--state-dir", str(layout.root)) == 0
    assert capfd.readouterr().out == "two\nthree\n"


def test_down_says_what_it_ended_and_a_second_time_that_there_was_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    layout = layout_in(tmp_path)
    start_family(layout)
    wait_until(lambda: len(ours(layout)) == 2, "server and child")
    assert run("down", "--state-dir", str(layout.root)) == 0
    assert capsys.readouterr().out == "ended 2 processes\n"
    assert run("down", "--state-dir", str(layout.root)) == 0
    assert capsys.readouterr().out == f"nothing was running in {layout.root}\n"


def test_the_list_of_faults_names_each_with_what_it_should_raise_and_why_it_cannot_be_had_here(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run("fault", "--list", "--state-dir", str(tmp_path / "state")) == 0
    text = capsys.readouterr().out
    assert "  kill-rank          the worker of the last rank is killed (SIGKILL)\n" in text
    assert "alerts: EngineDown\n" in text
    assert "not here" not in text
    assert max(map(len, text.splitlines())) <= 100
    layout = layout_in(tmp_path)
    plan.write(layout.plan, PLAN)
    assert run("fault", "--list", "--state-dir", str(layout.root)) == 0
    assert "not here: kill-router needs a deployment of prefill and decode" in capsys.readouterr().out


def test_the_list_of_faults_for_machines(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    layout = layout_in(tmp_path)
    plan.write(layout.plan, replace(PLAN, fault="kill-rank"))
    assert run("fault", "--list", "--json", "--state-dir", str(layout.root)) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["shape"], told["in_force"]) == ("tp", "kill-rank")
    refusals = {fault["name"]: fault["refusal"] for fault in told["faults"]}
    assert refusals["kill-rank"] is None
    assert "shape tp is none" in refusals["kill-decode"]
    assert run("fault", "--undo", "--json", "--state-dir", str(layout.root)) == 1
    assert "--json goes with --list" in capsys.readouterr().err


def test_a_secret_argument_is_refused_before_anything_is_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run("up", "tp", "--engine-argument=--api-key=sk-planted", "--state-dir", str(tmp_path / "state")) == 1
    captured = capsys.readouterr()
    assert "set VLLM_API_KEY" in captured.err
    assert "sk-planted" not in captured.err + captured.out
    assert not (tmp_path / "state").exists()


def test_a_start_that_is_refused_leaves_nothing_behind(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert run("up", "tp", "--port", f"server={port}", "--state-dir", str(tmp_path / "state")) == 1
    assert f"port {port} for server is taken" in capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == ["lock", "poise-testbed.json"]


def test_a_shape_of_ones_own_that_is_wrong_is_one_line_that_names_the_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[[engine]]\nname = 'a'\nport = 'x'\n")
    assert run("up", str(tmp_path / "mine.toml"), "--state-dir", str(tmp_path / "state")) == 1
    said = capsys.readouterr().err
    assert said == f'poise: {tmp_path}/mine.toml: engine a: port = "x" has to be a whole number from 1 to 65535\n'
    assert run("up", "tp", "--prefill", "2", "--state-dir", str(tmp_path / "state")) == 1
    assert "--prefill is for shapes of prefill and decode and shape tp is none" in capsys.readouterr().err
    assert not (tmp_path / "state").exists()


def test_status_of_a_dead_engine_is_json_for_machines_and_exit_code_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    layout = layout_in(tmp_path)
    plan.write(layout.plan, PLAN)
    records.write(layout.records, records.Record("server", "engine", 2**22 + 1, 5, 0.0, {"url": "http://127.0.0.1:1"}))
    assert run("status", "--json", "--state-dir", str(layout.root)) == 1
    value = json.loads(capsys.readouterr().out)
    assert (value["shape"], value["fault"]) == ("tp", "one-card")
    assert [(part["name"], part["state"]) for part in value["parts"]] == [
        ("server", "dead"),
        *((name, "absent") for name in ("other", "exporter", "mirror")),
    ]
    assert value["ready"] is False
    assert run("status", "--state-dir", str(layout.root)) == 1
    assert "fault in force: one-card (`poise testbed fault --undo`)" in capsys.readouterr().out


class Completions(BaseHTTPRequestHandler):
    """Streams two tokens for each request."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        for value in ({"choices": [{"text": "a"}]}, {"choices": [{"text": "b"}]}):
            self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")
        usage = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
        self.wfile.write(b"data: " + json.dumps(usage).encode() + b"\n\ndata: [DONE]\n\n")

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture
def completions() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Completions) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_load_on_a_url_needs_no_deployment_and_prints_json(capsys: pytest.CaptureFixture[str], completions: str) -> None:
    assert run("load", "--url", completions, "--model", "tiny", "--requests", "6", "-c", "2", "--json") == 0
    value = json.loads(capsys.readouterr().out)
    assert (value["requests_finished"], value["output_tokens"], value["prompt_tokens"]) == (6, 12, 18)


def test_endless_load_ends_at_ctrl_c_with_its_figures(completions: str) -> None:
    words = ["load", "--url", completions, "--model", "tiny", "--forever", "-c", "1"]
    command_line = [sys.executable, "-m", "poise.cli", "testbed", *words]
    with subprocess.Popen(command_line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert "output tokens/s" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "throughput" in out
    assert "Traceback" not in err


def test_the_environment_of_the_user_is_not_changed() -> None:
    before = dict(os.environ)
    run("fault", "--list")
    assert dict(os.environ) == before


def test_an_error_that_quotes_a_log_keeps_its_lines_and_nothing_that_a_terminal_acts_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fails(*given: object) -> None:
        raise TestbedError("server ended; the end of its log:\nValueError: \x1b[31mred\x1b[0m")

    monkeypatch.setattr(command.Deployment, "open", fails)
    assert run("status", "--state-dir", str(tmp_path)) == 1
    assert capsys.readouterr().err == "poise: server ended; the end of its log:\nValueError: \\x1b[31mred\\x1b[0m\n"
