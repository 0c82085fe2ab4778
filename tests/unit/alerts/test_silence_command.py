"""`poise alerts silence` and its like, without a server: whose token goes where, and what is made of odd answers. With a real `poise up` and real
Alertmanagers in tests/contract/test_silences.py."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from poise.alerts import command, silence_command
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


# ------------------------------------------------------------------------------------------------------------------- token
@pytest.mark.parametrize("url", ["http://127.0.0.1:9748", "http://localhost:1/poise", "http://[::1]:9748"])
def test_the_token_of_the_state_folder_goes_to_this_machine(tmp_path: Path, url: str) -> None:
    environment = {"POISE_STATE_DIR": str(tmp_path)}
    made = page_token.make(page_token.token_path(environment))
    assert silence_command.token(url, None, environment) == made


@pytest.mark.parametrize(
    "url", ["http://10.0.0.1:9748", "https://poise.example", "http://127.0.0.1.evil.example", "http://localhost.evil.example"]
)
def test_and_to_no_other(tmp_path: Path, url: str) -> None:
    environment = {"POISE_STATE_DIR": str(tmp_path)}
    page_token.make(page_token.token_path(environment))
    with pytest.raises(TokenError, match=r"another machine: give its token with --token-file FILE or \$POISE_TOKEN"):
        silence_command.token(url, None, environment)


def test_a_file_wins_over_the_environment_and_that_over_the_state_folder(tmp_path: Path) -> None:
    environment = {"POISE_STATE_DIR": str(tmp_path), "POISE_TOKEN": "e" * 40}
    page_token.make(page_token.token_path(environment))
    (tmp_path / "given").write_text("f" * 40)
    assert silence_command.token("http://10.0.0.1", tmp_path / "given", environment) == "f" * 40
    assert silence_command.token("http://10.0.0.1", None, environment) == "e" * 40
    with pytest.raises(TokenError, match=r"\$POISE_TOKEN holds no token"):
        silence_command.token("http://10.0.0.1", None, {"POISE_TOKEN": "short"})
    with pytest.raises(TokenError, match="start `poise up`"):
        silence_command.token("http://127.0.0.1", None, {"POISE_STATE_DIR": str(tmp_path / "none")})


# ----------------------------------------------------------------------------------------------------------------- answers
@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (200, b"<html>", "no `poise up` (HTTP status 200)"),
        (200, b"[]", "no `poise up`"),
        (404, b'{"detail": "Not Found"}', "HTTP status 404 for GET /api/poise/v1/silences"),
        (200, b'{"alertmanagers": [{}]}', "no answer of a `poise up` of this version"),
        (503, b'{"error": "evil \\u001b[2J", "way_out": "wait"}', "evil \\x1b[2J; wait"),
    ],
)
def test_odd_answers_are_one_line_without_anything_that_moves_a_terminal(
    status: int, body: bytes, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(status, body) as url:
        assert run("silences", "--url", url) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert "\x1b" not in said


def test_nothing_that_listens_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("silences", "--url", "http://127.0.0.1:9") == 2
    assert capsys.readouterr().err == "poise: http://127.0.0.1:9: connection refused: nothing listens there\n"


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
