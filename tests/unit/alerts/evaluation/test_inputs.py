"""What a rule lacks: series by name, and history."""

from __future__ import annotations

import pytest
from poise.alerts.evaluation.inputs import LOOKBACK, Readiness, needs, reach
from poise.history.promql.compile import compile_query
from poise.history.promql.nodes import Node

MINUTE = 60_000
RECORDINGS: dict[str, Node] = {
    "level:a:rate5m": compile_query("rate(a_total[5m])"),
    "level:b:max10m": compile_query("max_over_time(level:a:rate5m[10m])"),
    "level:self:x": compile_query("level:self:x or c"),
}


@pytest.mark.parametrize(
    ("query", "there", "missing"),
    [
        ("a > 1", {"a"}, ()),
        ("a > 1", set(), ("a",)),
        ("a and on (x) b", {"a"}, ("b",)),
        ("a unless on (x) b", {"a"}, ()),
        ("a unless on (x) b", {"b"}, ("a",)),
        ("a or b", {"b"}, ()),
        ("a or b", set(), ("a", "b")),
        ("absent(a)", set(), ()),
        ("absent_over_time(a[5m]) and b", set(), ("b",)),
        ('a{role="decode"} > 1', {"a"}, ()),
        ("sum by (x) (rate(a[5m])) / max(b)", {"a"}, ("b",)),
        ("vector(1) and a", {"a"}, ()),
        ("-a + 1", set(), ("a",)),
        ("level:b:max10m > 0", {"a_total"}, ()),
        ("level:b:max10m > 0", set(), ("a_total",)),
        ("level:self:x", set(), ("level:self:x", "c")),
        ("level:self:x", {"c"}, ()),
        ('{__name__=~"a|b"}', set(), ()),
        ("max_over_time(sum(a)[10m:1m])", set(), ("a",)),
    ],
)
def test_names_without_which_nothing_can_be_said(query: str, there: set[str], missing: tuple[str, ...]) -> None:
    found = needs(compile_query(query), RECORDINGS, lambda name, _: name in there, 10 * 86_400_000)
    assert found.missing == missing
    assert (found.readiness is Readiness.INPUT_MISSING) == bool(missing)
    assert all(name in found.sentence for name in missing)


@pytest.mark.parametrize(
    ("query", "minutes"),
    [
        ("a", 0),
        ("rate(a[5m])", 5),
        ("a offset 1h", 60),
        ("rate(a[5m] offset 1h)", 65),
        ("level:b:max10m", 15),
        ("rate(a[5m]) and rate(b[6h])", 360),
        ("max_over_time(rate(a[5m])[30m:1m])", 35),
    ],
)
def test_how_far_back_a_rule_looks_counts_what_it_records_from(query: str, minutes: int) -> None:
    assert reach(compile_query(query), RECORDINGS) == minutes * MINUTE


def test_too_little_history_is_said_with_what_there_is() -> None:
    found = needs(compile_query("rate(a[6h]) > 1"), {}, lambda *_: True, 90 * MINUTE)
    assert found.readiness is Readiness.INSUFFICIENT_HISTORY
    assert found.sentence == "insufficient history: 1.5 h of 6 h"
    assert needs(compile_query("rate(a[6h]) > 1"), {}, lambda *_: True, 360 * MINUTE).readiness is Readiness.READY


@pytest.mark.parametrize(
    ("query", "apart", "said"),
    [
        ("rate(a[3s]) > 0", 5_000, "window too short: 3 s over a, whose samples come every 5 s"),
        ("rate(a[9s]) > 0 and b", 5_000, "window too short: 9 s over a, whose samples come every 5 s"),
        ("rate(a[10s]) > 0", 5_000, ""),
        ("sum by (x) (max_over_time(a[0s500ms]))", 1_000, "window too short: 0.5 s over a, whose samples come every 1 s"),
        ("max_over_time(a[6s])", 5_000, ""),
        ("absent_over_time(a[3s])", 5_000, ""),
        ("rate(a[3s])", None, ""),
        ("rate(a[5m])", 600_000, ""),
        ("max_over_time(rate(a[1m])[10s:1s])", 60_000, "window too short: 1 min over a, whose samples come every 1 min"),
    ],
)
def test_a_window_that_holds_too_few_samples_is_said(query: str, apart: int | None, said: str) -> None:
    assert needs(compile_query(query), {}, lambda *_: True, 10 * 86_400_000, lambda _: apart).sentence == said


def test_a_range_looks_for_its_series_as_far_as_it_reaches() -> None:
    asked = []

    def present(name: str, back: int) -> bool:
        asked.append((name, back))
        return True

    needs(compile_query("rate(a[30m]) and b and c offset 10m"), {}, present, 0)
    assert asked == [("a", 30 * MINUTE + LOOKBACK), ("b", LOOKBACK), ("c", 10 * MINUTE + LOOKBACK)]
