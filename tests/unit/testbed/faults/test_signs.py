"""When a series counts as moved, on small pages."""

from __future__ import annotations

import pytest
from poise.testbed.faults import Sign, signs
from poise.testbed.faults.fault import Movement

from tests.unit.testbed.test_plan import SPLIT

WAITING, TOKENS, LATENCY = "poise_engine_requests_waiting", "poise_engine_generation_tokens_total", "poise_engine_e2e_latency_seconds"


def pair(*values: float | None, name: str = TOKENS, engine: str = "vm:8200") -> tuple[signs.Page, signs.Page]:
    """Two pages, five seconds apart, with one sample of one engine, or without it."""
    pages = []
    for place, value in enumerate(values):
        sample = "" if value is None else f'{name}{{engine="{engine}",role="decode"}} {value}\n'
        pages.append(signs.read(sample, 5.0 * place))
    first, second = pages
    return first, second


@pytest.mark.parametrize(
    ("movement", "to", "old", "new", "moved"),
    [
        ("rises", None, 1, 2, True),
        ("rises", None, 1, 1, False),
        ("rises", None, None, 1, True),
        ("falls", None, 1, 0, True),
        ("falls", 0, 2, 1, False),
        ("falls", 0, 2, 0, True),
        ("falls", 0, 0, 0, False),
        ("goes", None, 1, None, True),
        ("goes", None, 1, 1, False),
        ("goes", None, None, None, False),
        ("appears", None, None, 1, True),
        ("appears", None, 1, 1, False),
        ("rises", None, 1, None, False),
    ],
)
def test_a_gauge_moves_with_its_value(movement: Movement, to: float | None, old: float | None, new: float | None, moved: bool) -> None:
    sign = Sign(WAITING, movement, to=to)
    assert signs.look(sign, SPLIT, pair(old, old, name=WAITING), pair(new, new, name=WAITING)).moved is moved


@pytest.mark.parametrize(
    ("movement", "to", "before", "during", "moved"),
    [
        ("counts", None, (7, 7), (7, 12), True),
        ("counts", None, (0, 100), (100, 230), False),
        ("counts", None, (0, 100), (100, 300), True),
        ("counts", None, (7, 7), (7, 7), False),
        ("counts", None, (None, None), (None, 3), True),
        ("slows", None, (0, 100), (100, 150), True),
        ("slows", None, (0, 100), (100, 190), False),
        ("slows", 0, (0, 100), (100, 101), False),
        ("slows", 0, (0, 100), (100, 100), True),
        ("slows", None, (0, 100), (None, None), True),
        ("slows", None, (5, 5), (5, 5), False),
        ("counts", None, (100, 100), (100, 9), True),  # a server that was restarted began anew
    ],
)
def test_a_counter_moves_with_its_rate(
    movement: Movement, to: float | None, before: tuple[float | None, ...], during: tuple[float | None, ...], moved: bool
) -> None:
    assert signs.look(Sign(TOKENS, movement, to=to), SPLIT, pair(*before), pair(*during)).moved is moved


def test_a_histogram_moves_with_the_mean_of_what_it_took_in() -> None:
    def page(count: int, total: float, time: float) -> signs.Page:
        return signs.read(f'{LATENCY}_count{{engine="vm:8200"}} {count}\n{LATENCY}_sum{{engine="vm:8200"}} {total}\n', time)

    before, slow, idle = (page(0, 0, 0), page(10, 10, 5)), (page(10, 10, 9), page(12, 20, 14)), (page(10, 10, 9), page(10, 10, 14))
    seen = signs.look(Sign(LATENCY, "rises"), SPLIT, before, slow)
    assert (seen.before, seen.during, seen.moved) == ("1", "5", True)
    assert not signs.look(Sign(LATENCY, "rises"), SPLIT, before, idle).moved


def test_only_the_part_that_a_sign_names_counts_and_nobody_else_of_the_machine() -> None:
    decode, other = pair(0, 50), pair(0, 50, engine="vm:9999")
    quiet = pair(0, 0)
    assert signs.look(Sign(TOKENS, "counts", part="decode"), SPLIT, quiet, decode).moved
    assert not signs.look(Sign(TOKENS, "counts", part="prefill"), SPLIT, quiet, decode).moved
    assert not signs.look(Sign(TOKENS, "counts"), SPLIT, quiet, other).moved


def test_what_was_seen_is_said_with_both_values() -> None:
    seen = signs.look(Sign(TOKENS, "counts", (("role", "decode"),), part="decode"), SPLIT, pair(0, 5), pair(5, 30))
    assert str(seen) == f'{TOKENS}{{role="decode", decode}} 1/s → 5/s'
