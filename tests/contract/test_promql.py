"""Our PromQL engine against the real Prometheus: the same series, drawn queries, the same answers."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from poise.history.promql.engine import Engine
from poise.history.promql.errors import BadQuery
from poise.history.promql.parse import parse

from tests.needs import needs
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


#: What is put into queries, taken out and put elsewhere. No strings in groupings and no durations as numbers: the promtool of Debian knows neither.
PIECES = [
    "==",
    "(",
    ")",
    "by",
    "sum",
    "on",
    "group_left",
    "bool",
    "x",
    "5",
    "[",
    "]",
    "[5m]",
    "{",
    "}",
    "{a='b'}",
    ",",
    "and",
    "or",
    "offset",
    "@",
    "=",
    "-",
    "+",
    "ignoring",
    "max",
    "rate",
    "a:b",
    "or",
    "without",
    ">",
    "\n",
]
GROWN = (
    "sum by (a, b) (rate(x{c='d'}[5m])) / on (a) group_left (b) max(y) > 0.5",
    "topk(3, x) or count_values('a', y) without (b)",
    "max_over_time(x[1h:5m] offset -5m) unless ignoring (c) -z ^ 2",
    "clamp_max(x @ 5, 1) and (y)",
)
_PIECE = re.compile(r"\s+|[A-Za-z_:][\w:]*|[0-9.]+[a-z]*|'[^']*'|[=!<>]=|[=!]~|.")


def spoilt(number: int) -> list[str]:
    """Texts that are no queries, always the same."""
    draw = random.Random(7)
    found: list[str] = []
    while len(found) < number:
        parts = _PIECE.findall(draw.choice(GROWN))
        for _ in range(draw.choice((1, 1, 2))):
            place = draw.randrange(len(parts))
            parts[place : place + draw.choice((0, 1))] = draw.choice(([], [f" {draw.choice(PIECES)} "], [parts[place]] * 2))
            parts = parts or ["x"]
        text = "".join(parts).strip()
        try:
            parse(text)
        except BadQuery:
            found.append(text)
    return found


def test_the_place_of_a_mistake_is_that_of_prometheus(tmp_path: Path) -> None:
    """Compared where both name an unexpected token: promtool reads from left to right as we do, and stops at what the types forbid, which we do not know.
    It points behind a right parenthesis, and behind a letter in brackets, and takes no duration for a number and no string for a name, as newer ones and our parser do."""
    texts = spoilt(600)
    rules = "".join(f"  - {{record: 'a:b:c', expr: {json.dumps(text)}}}\n" for text in texts)
    (tmp_path / "rules.yml").write_text(f"groups:\n- name: g\n  rules:\n{rules}")
    done = subprocess.run([needs("promtool"), "check", "rules", str(tmp_path / "rules.yml")], capture_output=True, text=True, check=False)
    theirs = {
        int(one[1]): (one[2], one[3])
        for one in re.finditer(r'rule (\d+), "a:b:c": could not parse expression: (\d+:\d+): parse error: (.*)', done.stderr)
    }
    compared = 0
    wrong: list[tuple[str, str, str, str]] = []
    for number, text in enumerate(texts, start=1):
        with pytest.raises(BadQuery) as refused:
            parse(text)
        ours = re.fullmatch(r"(\d+:\d+): (unexpected .*)", str(refused.value), re.DOTALL)
        place, words = theirs.get(number, ("", ""))
        if ours is None or not words.startswith("unexpected") or re.search("right parenthesis|duration|colon|string", words):
            continue
        compared += 1
        if ours[1] != place:
            wrong.append((text, str(refused.value), place, words))
    assert wrong == []
    assert compared > 300
