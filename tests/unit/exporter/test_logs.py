"""Log lines: one per record, readable or JSON, with what went wrong."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import logging
import os
import re
from collections.abc import Iterator

import pytest
from poise.exporter import logs


@pytest.fixture(autouse=True)
def root_logger_restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_text_lines_have_time_level_and_message() -> None:
    stream = io.StringIO()
    logs.set_up("info", "text", stream)
    logging.getLogger("poise").info("card %d is back", 3)
    logging.getLogger("poise").debug("not this")
    line = stream.getvalue()
    assert line.endswith("Z info    card 3 is back\n")
    assert line[:2] == "20"


def test_what_a_message_quotes_can_neither_forge_a_line_nor_drive_the_terminal() -> None:
    stream = io.StringIO()
    logs.set_up("info", "text", stream)
    logging.getLogger("poise").info("engine %s", "a\n2026 error all is lost\x1b[31m\u202e\x9b2J\r ünï")
    try:
        raise RuntimeError("first\nsecond\x1b[2J")
    except RuntimeError:
        logging.getLogger("poise").exception("failed")
    text = stream.getvalue()
    first, second, *_ = text.splitlines()
    assert first.endswith(r"info    engine a\n2026 error all is lost\x1b[31m\u202e\x9b2J\r ünï")
    assert second.endswith("error   failed")
    assert "\x1b" not in text
    assert r"second\x1b[2J" in text


def test_json_lines_carry_the_exception() -> None:
    stream = io.StringIO()
    logs.set_up("error", "json", stream)
    try:
        raise RuntimeError("broken ünïcode")
    except RuntimeError:
        logging.getLogger("poise").exception("it\nfailed")
    (line,) = stream.getvalue().splitlines()
    entry = json.loads(line)
    assert (entry["level"], entry["logger"], entry["message"]) == ("error", "poise", "it\nfailed")
    assert "broken ünïcode" in entry["exception"]


def fill(descriptor: int) -> None:
    os.set_blocking(descriptor, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(descriptor, b"x" * 4096)
    os.set_blocking(descriptor, True)


def test_nobody_waits_for_a_reader_that_hangs_and_what_was_lost_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "PATIENCE", 0.01)
    reader, writer = os.pipe()
    with open(reader, "rb", buffering=0) as read, open(writer, "w") as stream:
        logs.set_up("info", "text", stream)
        logger = logging.getLogger("poise")
        logger.info("first")
        first = read.read(100)
        assert first is not None
        assert first.endswith(b" first\n")
        fill(writer)
        for number in range(1000):
            logger.info("into the void %d", number)
        fcntl.fcntl(reader, fcntl.F_SETFL, os.O_NONBLOCK)
        while read.read(65536):
            continue
        logger.info("again")
        after = read.read(65536)
        assert after is not None
        lost, again = after.decode().splitlines()
        assert lost.endswith("warning 1000 log lines were lost: nobody read standard error")
        assert again.endswith("info    again")


def test_a_line_that_was_begun_is_ended_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "PATIENCE", 0.01)
    reader, writer = os.pipe()
    fcntl.fcntl(reader, fcntl.F_SETFL, os.O_NONBLOCK)
    with open(reader, "rb", buffering=0) as read, open(writer, "w") as stream:
        logs.set_up("info", "json", stream)
        logger = logging.getLogger("poise")
        logger.info("a" * 200_000)  # more than a pipe holds
        logger.info("lost")
        found = b""
        for _ in range(4):
            while part := read.read(65536):
                found += part
            logger.info("after")
        entries = [json.loads(line)["message"] for line in found.splitlines()]
        assert [entry if len(entry) < 100 else len(entry) for entry in entries[:2]] == [200_000, entries[1]]
        assert re.fullmatch(r"\d+ log lines were lost: nobody read standard error", entries[1])
        assert set(entries[2:]) == {"after"}


def test_without_a_reader_or_without_standard_error_nothing_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as stream:
        logs.set_up("info", "text", stream)
        logging.getLogger("poise").info("nobody reads this")
    monkeypatch.setattr("sys.stderr", None)
    logs.set_up("info", "text")
    logging.getLogger("poise").info("nor this")
