"""The benchmark of a polled engine: its arithmetic, and the place of its section in the report."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "bench_engine.py"
OTHER = SCRIPT.with_name("bench_exporter.py")


def loaded(path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, path.stem, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return loaded(SCRIPT, monkeypatch)


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


def test_the_section_is_replaced_and_what_stands_around_it_stays(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    blocks = [script.Block(polled, (0.01, 0.02), 100.0, 0) for polled in script.order(1)]
    section = script.report(blocks, 20.0, "cpu")
    first = script.with_section("# Benchmarks\n\nFigures.\n", section)
    assert first.startswith("# Benchmarks\n\nFigures.\n\n" + script.BEGINS)
    assert script.with_section(first, section) == first
    assert script.with_section(first + "\n## More\n", section) == first + "\n## More\n"
    (tmp_path / "benchmarks.md").write_text(first)
    other = loaded(OTHER, monkeypatch)
    assert script.with_section("# New\n" + other.kept(tmp_path / "benchmarks.md"), section) == "# New\n\n" + section
    assert other.kept(tmp_path / "missing.md") == ""
