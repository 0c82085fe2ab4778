"""The benchmark compares like with like: the C loop makes the calls of a tick, function by function."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from tests import scripts

SCRIPT = Path(__file__).parents[3] / "scripts" / "bench_exporter.py"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = scripts.loaded(SCRIPT, monkeypatch)
    monkeypatch.setattr(module, "FLOOR_PASSES", 1)
    monkeypatch.setattr(module, "TICKS", 1)
    return module


def test_the_c_loop_makes_the_calls_of_a_tick(script: ModuleType, tmp_path: Path) -> None:
    floor, floor_calls = script.measure_floor(script.compile_floor(tmp_path))
    collection, tick_calls = script.measure_poise_collection()
    assert floor_calls == tick_calls
    assert sum(floor_calls.values()) > 100
    assert floor.median > 0
    assert collection.median > 0
