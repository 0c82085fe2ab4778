"""docs/history.md tells which part of PromQL is understood, as the code has it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from poise.history.promql.compile import AGGREGATIONS, OTHER_FUNCTIONS, RANGE_FUNCTIONS, compile_query
from poise.history.promql.errors import BadQuery

PAGE = (Path(__file__).parents[4] / "docs" / "history.md").read_text(encoding="utf-8").partition("## PromQL")[2]
KINDS = {"over a range": RANGE_FUNCTIONS, "of series": OTHER_FUNCTIONS, "aggregations, with `by` or `without`": AGGREGATIONS}


@pytest.mark.parametrize("kind", KINDS)
def test_every_function_is_named_and_no_other(kind: str) -> None:
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| {kind} |")]
    assert set(re.findall(r"`(\w+)`", line.split("|")[2])) == KINDS[kind]


@pytest.mark.parametrize(
    "query", ["predict_linear(x[5m], 60)", "deriv(x[5m])", "quantile_over_time(0.5, x[5m])", 'count_values("v", x)', "x @ 5"]
)
def test_what_is_said_not_to_be_there_is_refused_by_name(query: str) -> None:
    name = re.split(r"[( ]", query.removeprefix("x "))[0]
    assert f"`{name}`" in PAGE
    with pytest.raises(BadQuery, match=re.escape(name)):
        compile_query(query)
