"""The benchmark of a polled engine: its arithmetic."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from tests import scripts

SCRIPT = Path(__file__).parents[3] / "scripts" / "bench_engine.py"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return scripts.loaded(SCRIPT, monkeypatch)


def test_a_drift_of_the_machine_meets_both_arms_alike(script: ModuleType) -> None:
    assert script.order(2) == [True, False, False, True]
    order = script.order(4)
    places = {polled: [place for place, found in enumerate(order) if found == polled] for polled in (True, False)}
    assert sum(places[True]) == sum(places[False])


def test_equal_arms_give_a_ratio_of_one_and_a_slower_one_its_factor(script: ModuleType) -> None:
    def blocks(factor: float) -> list[object]:
        times = [0.01 * (1 + place) for place in range(100)]
        return [script.Block(polled, tuple(time * (factor if polled else 1.0) for time in times), 100.0, 0) for polled in script.order(4)]

    equal, slower = script.compare(blocks(1.0), 99), script.compare(blocks(1.5), 99)
    assert (equal.polled, equal.ratio, equal.low, equal.high) == (1.0, 1.0, 1.0, 1.0)
    assert (slower.ratio, slower.low, slower.high) == (pytest.approx(1.5), pytest.approx(1.5), pytest.approx(1.5))


def test_one_bad_pair_widens_the_interval(script: ModuleType) -> None:
    blocks = [script.Block(polled, (0.01,) * 50, 100.0, 0) for polled in script.order(4)]
    blocks[0] = script.Block(True, (0.05,) * 50, 100.0, 0)
    found = script.compare(blocks, 99)
    assert found.low == 1.0
    assert found.high > 2.0
