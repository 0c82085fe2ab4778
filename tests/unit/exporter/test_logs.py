"""Log lines: one per record, readable or JSON, with what went wrong."""

from __future__ import annotations

import io
import json
import logging
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
