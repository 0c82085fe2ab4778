"""The formulas in plain numbers against those over arrays: the same values for any samples, on both generations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from poise.history.promql import one_step
from poise.history.promql.engine import Engine, InstantVector, Matrix
from poise.history.promql.evaluate import Semantics, Settings
from poise.history.promql.labels import NAME, labels
from poise.history.promql.series import STALE, MemoryStorage, StoredSeries
from poise.history.promql.windows import EXTRAPOLATING, SIMPLE

VALUES = st.one_of(st.integers(0, 20).map(float), st.floats(-1e6, 1e6), st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, STALE]))
SAMPLES = st.lists(st.tuples(st.integers(1, 40_000), VALUES), max_size=25)


def test_every_function_over_ranges_is_here() -> None:
    assert set(one_step.FUNCTIONS) == set(SIMPLE) | set(EXTRAPOLATING)


@pytest.mark.parametrize("semantics", list(Semantics))
@pytest.mark.parametrize("name", sorted(one_step.FUNCTIONS))
@settings(max_examples=25, deadline=None)
@given(samples=SAMPLES, at=st.integers(0, 400))
def test_one_moment_and_two_moments_give_the_same(name: str, semantics: Semantics, samples: list[tuple[int, float]], at: int) -> None:
    times = np.cumsum(np.array([gap for gap, _ in samples], dtype=np.int64)) if samples else np.empty(0, dtype=np.int64)
    stored = StoredSeries(labels({NAME: "x", "a": "1"}), times, np.array([value for _, value in samples], dtype=np.float64))
    engine = Engine(MemoryStorage([stored]), Settings(semantics=semantics))
    for query in (f"{name}(x[1m])", f"{name}(x[3m] offset 10s)", f"{name}(x[2m:7s])", "x", "timestamp(x)"):
        instant = engine.instant(query, float(at))
        ranged = engine.range(query, float(at), float(at + 1), 1.0)
        assert isinstance(instant, InstantVector)
        assert isinstance(ranged, Matrix)
        general = {one.labels: one.values[0] for one in ranged.series if one.times[0] == at * 1000}
        found = {one.labels: one.value for one in instant.samples}
        assert found.keys() == general.keys(), query
        for own, value in found.items():
            assert value == pytest.approx(general[own], rel=1e-9, abs=1e-12, nan_ok=True), query
