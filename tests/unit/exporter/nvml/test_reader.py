"""When collectors are due: a tick that comes late, early or often says nothing wrong about the card."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from poise.exporter import metrics as m
from poise.exporter.nvml import registry
from poise.exporter.nvml.reader import CardReader, CardSilent
from poise.testbed.nvml.codes import ReturnCode

from tests.simulated_cards import Bench, bench


@pytest.fixture
def h20() -> Iterator[Bench]:
    with bench("h20x2") as cards:
        yield cards


@pytest.mark.parametrize("after", [0.0, 0.2, 0.49, 1.0, 1.8])
def test_a_tick_reads_the_card_however_soon_it_follows_a_late_one(h20: Bench, after: float) -> None:
    h20.read()
    h20.node.gpus[0].set_power(321)
    gpu = h20.read(after=after)
    assert gpu.up
    assert gpu.value(m.GPU_POWER) == 321
    assert gpu.sampled_at == h20.now


def test_between_the_ticks_of_slow_collectors_the_card_stands_as_it_was_read(h20: Bench) -> None:
    whole = h20.readers[0]
    slow = tuple(collector for collector in registry.ALL if collector.interval is not None)
    h20.readers[0] = CardReader(whole.card, slow, {}, wall=lambda: h20.now, monotonic=lambda: h20.now)
    first = h20.read()
    assert h20.read(after=1.0) is first, "nothing was due, so nothing is newer"
    assert h20.read(after=5.0).sampled_at == h20.now


def test_a_card_that_answers_nothing_is_silent_and_not_as_it_was(h20: Bench) -> None:
    h20.read()
    h20.node.inject("*", error=ReturnCode.UNKNOWN, gpu=0)
    with pytest.raises(CardSilent):
        h20.read(after=1.0)
    h20.node.release()
    assert h20.read(after=1.0).up
