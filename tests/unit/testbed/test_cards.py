"""Waiting for the mirror."""

from __future__ import annotations

from pathlib import Path

import pytest
from poise.testbed import cards, teardown
from poise.testbed.errors import TestbedError

from tests.unit.testbed.deployments import layout_in, start


def test_a_mirror_that_ends_by_itself_is_not_waited_for_and_its_log_is_shown(tmp_path: Path) -> None:
    layout = layout_in(tmp_path)
    start(layout, "mirror", "mirror", ["/bin/sh", "-c", "echo no such card; exit 1"])
    with pytest.raises(TestbedError, match="the mirror ended by itself; the end of its log:\nno such card"):
        cards.wait_mirrored(layout)
    teardown.take_down(layout)


def test_a_mirror_that_has_written_is_there(tmp_path: Path) -> None:
    layout = layout_in(tmp_path)
    cards.show(layout, {7: 1}, ())
    cards.wait_mirrored(layout)
    assert cards.worker_cards(layout) == {7: 1}
