"""Labels that expressions make: what they become, and that they cannot be made to fill memory."""

from __future__ import annotations

import pytest
from poise.history.promql.engine import Engine, InstantVector
from poise.history.promql.errors import ExecutionError, QueryTimeout
from poise.history.promql.labels import labels
from poise.history.promql.limits import LONGEST_LABEL, MOST_LABELS, Budget
from poise.history.store.store import Store

AT = 1_700_000_000.0


def made(query: str) -> str:
    """The label `a` of the only element."""
    result = Engine(Store(None)).instant(query, AT)
    assert isinstance(result, InstantVector)
    (sample,) = result.samples
    return dict(sample.labels).get("a", "")


@pytest.mark.parametrize(
    ("replacement", "pattern", "value"),
    [
        ("<$1-$2>", "(.)(.)", "<x-y>"),
        ("${1}0", "(.).", "x0"),
        ("$name", "(?P<name>.+)", "xy"),
        ("$$1", "(.).", "$1"),
        ("$7${nobody}z", "(.).", "z"),
        ("${" + "9" * 5_000 + "}z", ".*", "z"),
        ("$1_", "(.).", ""),  # the group 1_
    ],
)
def test_a_replacement_is_filled_as_go_does_it(replacement: str, pattern: str, value: str) -> None:
    assert made(f'label_replace(label_replace(vector(1), "s", "xy", "", ""), "a", "{replacement}", "s", "{pattern}")') == value


def nested(function: str, levels: int) -> str:
    """Each level makes four times the label of the one within."""
    start, end = {
        "label_replace": ("label_replace(", ', "a", "$1$1$1$1", "a", "(.*)")'),
        "label_join": ("label_join(", ', "a", "", "a", "a", "a", "a")'),
    }[function]
    return start * levels + 'label_replace(vector(1), "a", "xxxx", "", "")' + end * levels


@pytest.mark.parametrize("function", ["label_replace", "label_join"])
def test_labels_that_multiply_within_each_other_are_refused_before_they_are_made(function: str) -> None:
    assert made(nested(function, 5)) == "x" * LONGEST_LABEL
    with pytest.raises(ExecutionError, match=f"more than {LONGEST_LABEL} characters"):
        made(nested(function, 6))
    with pytest.raises(ExecutionError, match=f"more than {LONGEST_LABEL} characters"):
        made(nested(function, 80))


@pytest.mark.parametrize(
    "query",
    [
        'label_replace(vector(1), "a", "' + "x" * 5_000 + '", "", "")',
        'label_join(label_replace(vector(1), "a", "x", "", ""), "a", "' + "-" * 5_000 + '", "a", "a")',
    ],
)
def test_a_long_literal_is_no_label_either(query: str) -> None:
    with pytest.raises(ExecutionError, match="more than 4096 characters"):
        made(query)


def test_the_labels_of_a_series_do_not_grow_without_end() -> None:
    store = Store(None)
    own = labels({"__name__": "x", **{f"l{n}": "1" for n in range(MOST_LABELS - 2)}})
    store.append("t", AT, {own: 1.0})
    assert Engine(store).instant('label_replace(x, "more", "1", "", "")', AT)
    with pytest.raises(ExecutionError, match=f"more than {MOST_LABELS} labels"):
        Engine(store).instant('label_replace(label_replace(x, "more", "1", "", ""), "most", "1", "", "")', AT)


def test_many_labels_together_are_bounded_and_time_is_looked_at_for_each() -> None:
    budget = Budget(lambda: 0.0, 1.0, characters=10)
    budget.take_label(10)
    with pytest.raises(ExecutionError, match="together"):
        budget.take_label(1)
    with pytest.raises(QueryTimeout):
        Budget(lambda: 2.0, 1.0).take_label(1)
