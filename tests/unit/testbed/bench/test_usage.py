"""What the cards did, from recorded pages of the exporter around a recorded chat on TP=2."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poise.testbed.bench import usage
from poise.testbed.bench.observe import Card, Engine, NodePage, Place, gained, read_page
from poise.testbed.plan import EnginePlan
from poise.testbed.shapes import EngineRole

from tests.unit.testbed.bench.runs import ENGINE, RECORDED, figures, page, tp_usage

shares = st.lists(st.floats(0, 1), min_size=2, max_size=8)


def test_a_recorded_page_is_read() -> None:
    found = page("tp-after.prom")
    assert (found.simulated, len(found.cards), list(found.engines)) == (True, 2, [ENGINE.port])
    engine = found.engines[ENGINE.port]
    assert [(place.use, place.tp_rank) for place in engine.places] == [("own", "0"), ("own", "1")]
    assert engine.counters["generation_tokens"] == 3224
    assert engine.counters["requests_finished"] == 65


def test_a_reading_that_is_no_number_is_not_there() -> None:
    text = (RECORDED / "tp-after.prom").read_bytes()
    spoiled = re.sub(rb"(?m)^(poise_gpu_(?:busy|energy|nvlink)\S* |poise_engine_generation_tokens_total\S* )\S+$", rb"\1NaN", text)
    assert spoiled.count(b" NaN\n") > 4
    found = read_page(spoiled)
    assert all("busy_seconds" not in card.figures and "memory_used_bytes" in card.figures for card in found.cards.values())
    engine = found.engines[ENGINE.port]
    assert "generation_tokens" not in engine.counters
    assert engine.counters["requests_finished"] == 65


def test_the_exporter_counts_what_the_client_counted() -> None:
    seen = figures()
    found = tp_usage().engines[0].gained
    assert (found["prompt_tokens"], found["generation_tokens"], found["requests_finished"]) == (seen.input_tokens, seen.output_tokens, 64)
    assert usage.reached([ENGINE], None, page("tp-before.prom"), page("tp-after.prom"), (seen.input_tokens, seen.output_tokens))
    assert not usage.reached([ENGINE], None, page("tp-before.prom"), page("tp-after.prom"), (seen.input_tokens, seen.output_tokens + 1))


def test_utilization_power_and_traffic_come_from_counters() -> None:
    found = tp_usage()
    before, after = page("tp-before.prom"), page("tp-after.prom")
    assert [(card.gpu, card.engine, card.tp_rank) for card in found.cards] == [(0, "server", "0"), (1, "server", "1")]
    for card in found.cards:
        first, last = before.cards[card.uuid].figures, after.cards[card.uuid].figures
        assert card.utilization == pytest.approx((last["busy_seconds"] - first["busy_seconds"]) / (last["sampled"] - first["sampled"]))
    sent = sum(card.nvlink_tx_bytes or 0 for card in found.cards)
    assert found.nvlink_bytes_per_token == pytest.approx(sent / (6066 + 3220))
    assert found.joules_per_output_token == pytest.approx((found.power_watts or 0) * figures().duration_seconds / 3220)
    assert [(role.role, role.cards) for role in found.roles] == [("mixed", 2)]
    assert found.kv_transfer is None


def made_page(busy: dict[str, float], sampled: float, places: dict[int, list[tuple[str, str, str]]], counted: float = 0.0) -> NodePage:
    cards = {
        uuid: Card(number, uuid, "a card", {"busy_seconds": value, "sampled": sampled}) for number, (uuid, value) in enumerate(busy.items())
    }
    counters = {"prompt_tokens": counted, "generation_tokens": counted, "kv_transfers": counted, "kv_transfer_bytes": 10 * counted}
    engines = {
        port: Engine("", tuple(Place(uuid, use, rank, "", "0") for uuid, use, rank in found), counters) for port, found in places.items()
    }
    return NodePage("", False, cards, engines)


def made_usage(places: dict[int, list[tuple[str, str, str]]], engines: list[tuple[EnginePlan, int]], busy: dict[str, float]) -> usage.Usage:
    before = made_page(dict.fromkeys(busy, 0.0), 100.0, places)
    after = made_page(busy, 110.0, places, counted=8.0)
    return usage.usage(usage.Pages(before, before, after, after), engines, 10.0, (8, 8), True)


def engine_plan(name: str, port: int, role: EngineRole = "mixed", connector: str | None = None) -> EnginePlan:
    return EnginePlan(name, port, 1, None, (), role, connector)


def test_a_card_that_was_meant_and_is_left_makes_the_skew_one() -> None:
    """The article's deployment: two cards were meant, the server's processes are on one."""
    found = made_usage({1: [("a", "own", "0"), ("b", "free", "")]}, [(engine_plan("server", 1), 2)], {"a": 9.0, "b": 0.0})
    assert [(card.use, card.utilization) for card in found.cards] == [("own", 0.9), ("free", 0.0)]
    assert found.skew == 1.0


def test_cards_beyond_what_was_meant_are_nobodys_business() -> None:
    found = made_usage({1: [("a", "own", "0"), ("b", "free", "")]}, [(engine_plan("server", 1), 1)], {"a": 9.0, "b": 0.0})
    assert [card.uuid for card in found.cards] == ["a"]
    assert found.skew is None


def test_prefill_and_decode_are_two_groups_and_two_roles() -> None:
    engines = [(engine_plan("prefill", 1, "prefill", "NixlConnector"), 1), (engine_plan("decode", 2, "decode", "NixlConnector"), 1)]
    found = made_usage({1: [("a", "own", "")], 2: [("b", "own", "")]}, engines, {"a": 2.0, "b": 8.0})
    assert [(role.role, role.utilization) for role in found.roles] == [("prefill", 0.2), ("decode", 0.8)]
    assert found.skew is None
    assert found.kv_transfer is not None
    assert (found.kv_transfer.transfers, found.kv_transfer.bytes) == (16.0, 160.0)


def test_without_a_window_utilization_is_unknown_and_the_rest_is_there() -> None:
    before, after = page("tp-before.prom"), page("tp-after.prom")
    found = usage.usage(usage.Pages(before, None, None, after), [(ENGINE, 2)], 10.0, (1, 1), True)
    assert all(card.utilization is None and card.nvlink_tx_bytes for card in found.cards)
    assert (found.skew, found.power_watts, found.joules_per_output_token) == (None, None, None)


def test_a_restart_in_the_middle_counts_nothing() -> None:
    assert gained({"a": 5.0}, {"a": 3.0}, "a") is None
    assert gained({}, {"a": 3.0}, "a") is None


def test_direct_requests_are_looked_for_on_their_engine_alone() -> None:
    engines = [engine_plan("prefill", 1, "prefill"), engine_plan("decode", 2, "decode")]
    places: dict[int, list[tuple[str, str, str]]] = {1: [], 2: []}
    before = made_page({}, 0.0, places)
    after = made_page({}, 1.0, places, counted=8.0)
    assert usage.reached(engines, None, before, after, (8, 8))
    assert usage.reached(engines, "decode", before, after, (8, 8))
    idle = replace(after, engines={1: after.engines[1], 2: before.engines[2]})
    assert not usage.reached(engines, "decode", before, idle, (8, 8))


@given(shares)
def test_skew_is_from_zero_to_one_and_unknown_when_all_are_idle(found: list[float]) -> None:
    value = usage.skew(found)
    if max(found) <= usage.SKEW_NEEDS:
        assert value is None
    else:
        assert value is not None
        assert 0 <= value <= 1


@given(st.floats(0.31, 1), st.integers(2, 8))
def test_equal_shares_have_no_skew(share: float, count: int) -> None:
    assert usage.skew([share] * count) == 0


@given(shares)
def test_an_unknown_share_makes_the_skew_unknown(found: list[float]) -> None:
    assert usage.skew([*found, None]) is None
    assert usage.total([*found, None]) is None
    assert usage.mean([]) is None
