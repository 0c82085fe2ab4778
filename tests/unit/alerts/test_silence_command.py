"""`poise alerts silence` and its like, without a server: whose token goes where, and what is made of odd answers. With a real `poise up` and real
Alertmanagers in tests/contract/test_silences.py."""

from __future__ import annotations

import argparse
import ast
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TypeGuard

import pytest
from poise.alerts import command, page_client, silence_command
from poise.dashboard import alert_requests, changes, silences_api
from poise.history import page_token
from poise.history.page_token import TokenError


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args(words))


@contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def _any(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_DELETE = _any

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def silences(**changed: object) -> bytes:
    one = {"id": "s1", "state": "active", "ends_at": 3700.0, "by": "ann", "comment": "why", "matchers": [], **changed}
    return json.dumps({"silences": [one], "alertmanagers": [{"url": "u", "error": ""}]}).encode()


# ------------------------------------------------------------------------------------------------------------------- token
@pytest.mark.parametrize("url", ["http://127.0.0.1:9748", "http://localhost:1/poise", "http://[::1]:9748"])
def test_the_token_of_the_state_folder_goes_to_this_machine(tmp_path: Path, url: str) -> None:
    environment = {"POISE_STATE_DIR": str(tmp_path)}
    made = page_token.make(page_token.token_path(environment))
    assert page_client.token(url, None, environment) == made


@pytest.mark.parametrize(
    "url", ["http://10.0.0.1:9748", "https://poise.example", "http://127.0.0.1.evil.example", "http://localhost.evil.example"]
)
def test_and_to_no_other(tmp_path: Path, url: str) -> None:
    environment = {"POISE_STATE_DIR": str(tmp_path)}
    page_token.make(page_token.token_path(environment))
    with pytest.raises(TokenError, match=r"another machine: give its token with --token-file FILE or \$POISE_TOKEN"):
        page_client.token(url, None, environment)


def test_a_file_wins_over_the_environment_and_that_over_the_state_folder(tmp_path: Path) -> None:
    environment = {"POISE_STATE_DIR": str(tmp_path), "POISE_TOKEN": "e" * 40}
    page_token.make(page_token.token_path(environment))
    (tmp_path / "given").write_text("f" * 40)
    assert page_client.token("http://10.0.0.1", tmp_path / "given", environment) == "f" * 40
    assert page_client.token("http://10.0.0.1", None, environment) == "e" * 40
    with pytest.raises(TokenError, match=r"\$POISE_TOKEN holds no token"):
        page_client.token("http://10.0.0.1", None, {"POISE_TOKEN": "short"})
    with pytest.raises(
        TokenError, match=r"start `poise up`.* one with --no-history keeps no file and writes its token to its log: give that with --token"
    ):
        page_client.token("http://127.0.0.1", None, {"POISE_STATE_DIR": str(tmp_path / "none")})


# ----------------------------------------------------------------------------------------------------------------- answers
@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (200, b"<html>", "no `poise up` (HTTP status 200)"),
        (200, b"[]", "no `poise up`"),
        (404, b'{"detail": "Not Found"}', "HTTP status 404 for GET /api/poise/v1/silences"),
        (200, b'{"alertmanagers": [{}]}', "no answer of a `poise up` of this version"),
        (200, b'{"status": "success", "data": {"groups": []}}', "no answer of a `poise up` of this version"),
        (200, b'{"silences": {}, "alertmanagers": {}}', "no answer of a `poise up` of this version"),
        (200, b'{"silences": [], "alertmanagers": [{"error": 3}]}', "no answer of a `poise up` of this version"),
        (200, b'{"silences": [7], "alertmanagers": [{"error": ""}]}', "no answer of a `poise up` of this version"),
        (200, silences(ends_at=float("nan")), "no answer of a `poise up` of this version"),
        (200, silences(ends_at="soon"), "no answer of a `poise up` of this version"),
        (200, silences(matchers=5), "no answer of a `poise up` of this version"),
        (503, b'{"error": "evil \\u001b[2J", "way_out": "wait"}', "evil \\x1b[2J; wait"),
    ],
)
def test_odd_answers_are_one_line_without_anything_that_moves_a_terminal(
    status: int, body: bytes, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(status, body) as url:
        assert run("silences", "--url", url) == 2
        assert run("silences", "--json", "--url", url) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    said, again = printed.err.splitlines(keepends=True)
    assert said == again
    assert words in said
    assert said.count("\n") == 1
    assert "\x1b" not in said


def test_nothing_that_listens_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("silences", "--url", "http://127.0.0.1:9") == 2
    assert capsys.readouterr().err == (
        "poise: http://127.0.0.1:9: connection refused: nothing listens there; start `poise up`, or name the one that runs with --url\n"
    )


def test_silences_are_listed_with_all_kinds_of_matchers() -> None:
    kinds = [("a", "1", False, True), ("b", "2|3", True, True), ("c", 'x"', False, False), ("d", "\x1b", True, False)]
    matchers = [{"name": name, "value": value, "is_regex": regex, "is_equal": equal} for name, value, regex, equal in kinds]
    one = {"id": "s1", "state": "active", "ends_at": 3700.0, "by": "ann", "comment": "two\nlines", "matchers": matchers}
    lines = list(silence_command.silence_lines({"silences": [one], "alertmanagers": [{"url": "u", "error": ""}]}, 100.0))
    assert lines == [
        "1 silence of 1 Alertmanager",
        '  s1  active, 1h left: {a="1", b=~"2|3", c!="x\\"", d!~"\\u001b"} (ann: two\\nlines)',
    ]
    assert "knows no Alertmanager" in next(silence_command.silence_lines({"silences": [], "alertmanagers": []}, 0.0))


@pytest.mark.parametrize("mode", ["external", "off"])
def test_acknowledging_where_nothing_is_evaluated_says_so(mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    with answering(200, json.dumps({"mode": mode, "alerts": []}).encode()) as url:
        assert run("acknowledge", "Watchdog", "--comment", "seen", "--url", url) == 2
    assert f"this process evaluates nothing (mode {mode}); its page marks no alerts" in capsys.readouterr().err


def test_the_end_of_a_silence_is_said_to_the_second_with_its_zone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = {"made": [{"id": "s1", "alertmanager": "am"}], "matchers": [], "ends_at": 1_796_052_659.0, "problems": []}
    monkeypatch.setenv("POISE_TOKEN", "e" * 40)
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    time.tzset()
    try:
        with answering(200, json.dumps({**made, "status": "success", "data": {"groups": []}}).encode()) as url:
            assert run("silence", "Watchdog", "--comment", "why", "--url", url) == 0
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()
    assert capsys.readouterr().out == "silence s1 at am: {}, until 2026-11-30 23:30:59 CST\n"


def test_no_way_out_at_a_terminal_is_a_request_of_http() -> None:
    """Every text of the page's answers that names a route is one that the command has words for."""
    told = []
    for module in (silences_api, changes, alert_requests):
        tree = ast.parse(Path(str(module.__file__)).read_text())
        described = {
            id(node.body[0].value) for node in ast.walk(tree) if isinstance(node, ast.Module | ast.FunctionDef) and is_text(node.body[0])
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in described:
                told.append(node.value)
    told = [text for text in told if "/api/poise" in text or "Authorization: Bearer" in text]
    assert len(told) > 4
    for text in told:
        said = page_client.in_commands(text)
        assert text.startswith("/api/") or ("/api/" not in said and "Bearer" not in said), said


def is_text(node: ast.stmt) -> TypeGuard[ast.Expr]:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
