"""Measuring shapes one after the other: how long it takes, and what is refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poise.testbed import records, teardown
from poise.testbed.comparison import campaign
from poise.testbed.comparison.campaign import Outlook
from poise.testbed.errors import TestbedError

from tests.unit.testbed.deployments import layout_in, start


def test_the_rest_is_reckoned_from_what_is_behind() -> None:
    outlook = Outlook(shapes=3, repetitions=2)
    assert outlook.words() == "how long it takes is known after the first"
    outlook.starts.append(30.0)
    outlook.loads.append(20.0)
    assert outlook.left() == 2 * 30 + 5 * 20
    assert outlook.words() == "about 3 min left"
    outlook.starts += [30.0, 30.0]
    outlook.loads += [20.0] * 4
    assert outlook.words() == "about 20 s left"


@given(st.integers(1, 5), st.integers(1, 5), st.floats(1, 100), st.floats(1, 100))
def test_nothing_is_left_at_the_end(shapes: int, repetitions: int, start_seconds: float, load_seconds: float) -> None:
    outlook = Outlook(shapes, repetitions, [start_seconds] * shapes, [load_seconds] * shapes * repetitions)
    assert outlook.left() == 0


def test_a_deployment_that_is_up_is_not_touched(tmp_path: Path) -> None:
    layout = layout_in(tmp_path)
    campaign.check_nothing_up(layout)
    start(layout)
    try:
        with pytest.raises(TestbedError, match=r"a deployment is up in .*: `poise testbed down` first, or use another --state-dir"):
            campaign.check_nothing_up(layout)
        assert all(record.lives for record in records.read_all(layout.records))
    finally:
        teardown.take_down(layout)
    campaign.check_nothing_up(layout)
