"""The drawn history: a gap in the data is a gap in the line."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from poise.dashboard.sparkline import HEIGHT, WIDTH, paths
from poise.history.recent import Point


def test_a_full_history_is_one_line_from_left_to_right() -> None:
    line, area, gaps = paths([Point(float(at), 0.5) for at in range(0, 301, 5)], end=300, seconds=300, interval=5)
    assert line.count("M") == area.count("M") == 1
    assert line.startswith("M0 12L2 12L")
    assert line.endswith("L120 12")
    assert area.endswith("Z")
    assert gaps == ()


def test_a_missed_scrape_is_bridged_and_a_longer_gap_is_not() -> None:
    at = [0, 5, 15, 20, 100, 105]
    line, _, gaps = paths([Point(float(second), 1.0) for second in at], end=300, seconds=300, interval=5)
    assert line.count("M") == 2
    assert gaps == ((8.0, 32.0), (42.0, 78.0))


def test_a_lone_sample_is_a_dash() -> None:
    line, _, _ = paths([Point(300.0, 0.0)], end=300, seconds=300, interval=5)
    assert line == "M118 23L120 23"


def test_nothing_is_nothing() -> None:
    assert paths([], end=300, seconds=300, interval=5) == ("", "", ())


@given(st.lists(st.tuples(st.integers(0, 300), st.floats(-10, 10)), max_size=60, unique_by=lambda pair: pair[0]))
def test_everything_stays_in_the_box(samples: list[tuple[int, float]]) -> None:
    points = [Point(float(at), value) for at, value in sorted(samples)]
    line, _, gaps = paths(points, end=300, seconds=300, interval=5)
    numbers = [float(number) for step in line.replace("M", "L").split("L") if step for number in step.split(" ")]
    assert all(-2.01 <= x <= WIDTH for x in numbers[::2])
    assert all(0 <= y <= HEIGHT for y in numbers[1::2])
    assert all(width > 0 for _, width in gaps)
