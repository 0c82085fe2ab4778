"""Our PromQL engine against the real Prometheus: the same series, drawn queries, the same answers."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from poise.history.promql.engine import Engine

from tests.promql_oracle import BASE, compare_instant, compare_range, engine, prometheus, series
from tests.promql_queries import query

#: `make soak` draws more.
EXAMPLES = int(os.environ.get("POISE_PROMQL_EXAMPLES", "500"))


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Engine]]:
    """The address of a Prometheus, and our engine, with the same series."""
    stored = series()
    with prometheus(tmp_path_factory.mktemp("promql"), stored) as url:
        yield url, engine(stored)


@settings(
    max_examples=EXAMPLES,
    derandomize=EXAMPLES == 500,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
)
@given(text=query(), moment=st.integers(0, 1900), as_range=st.booleans(), step=st.sampled_from((13, 37, 60, 301)))
def test_drawn_queries_have_the_answers_of_prometheus(both: tuple[str, Engine], text: str, moment: int, as_range: bool, step: int) -> None:
    url, ours = both
    at = BASE / 1000 + moment + 0.007
    if as_range:
        compare_range(url, ours, text, BASE / 1000 + 100.007, BASE / 1000 + 1900.007, step)
    else:
        compare_instant(url, ours, text, at)
