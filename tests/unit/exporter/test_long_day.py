"""A few minutes of the long day that `make soak` runs: the same faults and promises, on the same injected clock."""

from __future__ import annotations

from tests.long_day import live
from tests.soak_page import with_section

#: Covers a lost card that comes back and one that hangs and is released.
TICKS = 170


def test_some_minutes_of_a_node_that_never_rests_keep_every_promise() -> None:
    figures = live(TICKS)
    assert figures.xids > 10
    assert figures.down > 30
    assert figures.pages == 12
    assert max(figures.threads) == min(figures.threads)


def test_a_soak_writes_its_own_section_and_leaves_the_others() -> None:
    page = "# Soak\n\n## One\n\nold\n\n## Two\n\n* kept\n"
    assert with_section(page, "One", ["new", "", "lines"]) == "# Soak\n\n## One\n\nnew\n\nlines\n\n## Two\n\n* kept\n"
    assert with_section("", "One", ["first"]) == "# Soak\n\n## One\n\nfirst\n"
    assert with_section(page, "Three", ["x"]).endswith("\n\n## Three\n\nx\n")
