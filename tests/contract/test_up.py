"""`poise up` as a user starts it, on simulated cards: exporter as a child, page in front, cards that get lost and hang."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from poise.testbed.nvml.node import SimulatedNode

from tests.poise_up import PATIENCE, alive, children, free_port, get, overview, up, wait_for

pytestmark = pytest.mark.contract


def card_states(url: str) -> list[str]:
    """The states of the cards that no engine owns, in the page's order."""
    unowned = overview(url).get("unowned")
    assert isinstance(unowned, list)
    return [card["state"] for card in unowned]


def test_eight_cards_of_which_one_is_lost_and_one_hangs_and_an_end_in_time(
    make_node: Callable[[str], SimulatedNode], tmp_path: Path
) -> None:
    node = make_node("h100x8")
    words = ("--exporter", f"http://127.0.0.1:{free_port()}", "--no-discover", "--scrape-interval", "1")
    with up(*words, log=tmp_path / "log", environment=node.environment()) as (process, url):
        wait_for(lambda: card_states(url) == ["up"] * 8, "eight cards are on the page")
        assert 'class="simulated"' in get(f"{url}/")[1]

        node.lose(3)
        wait_for(lambda: card_states(url)[3] == "lost", "the lost card is said")
        held = node.inject("*", hang=True, gpu=5)
        held.wait_until_held(timeout=PATIENCE)
        wait_for(lambda: card_states(url)[5] == "hangs", "the hanging card is said")
        assert [state for state in card_states(url) if state == "up"] == ["up"] * 6
        assert overview(url)["stale"] == ""

        (child,) = children(process.pid)
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as stream:
            stream.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"200 OK" in stream.recv(4096)
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
        print(f"poise up with a hanging card and an open stream ended {time.monotonic() - began:.2f} s after SIGTERM")
        assert not alive(child)
        node.release()
    assert "Traceback" not in (tmp_path / "log").read_text()
