"""Numbers and moments as Prometheus writes them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poise.dashboard.api_prometheus.sources import ActiveAlert
from poise.dashboard.api_prometheus.writing import alert, number, seconds


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"), (-0.0, "-0"), (1.0, "1"), (1.5, "1.5"), (1e16, "10000000000000000"), (1e20, "100000000000000000000"), (1e21, "1e+21"),
        (1e-5, "0.00001"), (1e-6, "0.000001"), (9.9e-7, "9.9e-07"), (1e-300, "1e-300"), (math.inf, "+Inf"), (-math.inf, "-Inf"), (math.nan, "NaN"),
    ],
)  # fmt: skip
def test_values(value: float, text: str) -> None:
    assert number(value) == text


@given(st.floats(allow_nan=False))
def test_any_value_comes_back_as_it_was(value: float) -> None:
    assert float(number(value)) == value


@pytest.mark.parametrize(
    ("at", "text"), [(0, "0"), (1_500, "1.500"), (1_435_781_430_781, "1435781430.781"), (5, "0.005"), (-1_500, "-1.500")]
)
def test_times(at: int, text: str) -> None:
    assert seconds(at) == text


@pytest.mark.parametrize(
    ("value", "text"), [(1.0, "1e+00"), (0.0, "0e+00"), (123.45, "1.2345e+02"), (-0.001, "-1e-03"), (math.inf, "+Inf")]
)
def test_the_value_of_an_alert_has_an_exponent(value: float, text: str) -> None:
    assert alert(ActiveAlert({}, {}, "firing", 0.0, value))["value"] == text
