"""Cards of the overview: whose they are, what is known, and why the rest is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from poise.exporter import metrics as m

from tests.node_scenes import CardScene, EngineScene, NodeScene, eight_cards, one_visible, tensor_parallel
from tests.unit.dashboard.pages import card_of, engine_of, page_of, plain


def test_ranks_stand_in_rank_order_with_index_and_ordinal() -> None:
    scene = tensor_parallel()
    crossed = replace(
        scene,
        cards=(replace(scene.cards[0], tp_rank="1"), replace(scene.cards[1], tp_rank="0")),
        engines=(replace(scene.engines[0], visible=(1, 0)),),
    )
    cards = engine_of(page_of(crossed)).cards
    assert [(card.label, card.cuda, card.rank) for card in cards] == [("GPU 1", "cuda:0", "TP 0"), ("GPU 0", "cuda:1", "TP 1")]
    assert cards[0].uuid == scene.cards[1].uuid


def test_busy_is_the_mean_of_a_minute_with_its_range() -> None:
    busy = card_of(page_of(tensor_parallel((0.94, 0.5))), 0).busy
    assert busy.mean.value == pytest.approx(0.94, abs=0.02)
    assert busy.low.value is not None
    assert busy.high.value is not None
    assert busy.low.value < 0.94 < busy.high.value
    assert busy.spark.line.count("M") == 1
    assert "mean 94" in busy.spark.label


def test_without_the_counter_the_gauge_serves() -> None:
    scene = tensor_parallel((0.4, 0.4))
    bare = replace(scene, cards=tuple(replace(card, without=frozenset({m.GPU_BUSY_SECONDS})) for card in scene.cards))
    assert card_of(page_of(bare), 0).busy.mean.value == pytest.approx(0.4)


def test_after_one_scrape_there_is_a_first_value() -> None:
    assert card_of(page_of(tensor_parallel(), seconds=5), 0).busy.mean.value == pytest.approx(0.94)
    assert card_of(page_of(tensor_parallel(), seconds=5), 0).links.both.note == "two readings are needed, and there is one so far"


def test_what_a_card_does_not_report_is_not_available_with_its_reason() -> None:
    scene = tensor_parallel()
    missing = frozenset({m.GPU_POWER, m.GPU_UTILIZATION, m.GPU_BUSY_SECONDS, m.GPU_MEMORY_USED})
    card = card_of(page_of(replace(scene, cards=(replace(scene.cards[0], without=missing), scene.cards[1]))), 0)
    for number in (card.power, card.busy.mean, card.memory.used):
        assert (number.text, number.value, number.note) == ("n/a", None, "this card does not report it")
    assert card.busy.spark.line == ""


def test_memory_is_split_by_holder() -> None:
    cards = (CardScene(0, owner="a", memory=60.0, foreign=8.0, total=96.0), CardScene(1, memory=10.0))
    page = page_of(NodeScene(cards, (EngineScene("a", tensor=1, visible=(0,)),)))
    memory = card_of(page, 0).memory
    assert plain(memory.own.text) == "52.0"
    assert plain(memory.foreign.text) == "8.0"
    assert plain(memory.free.text) == "36.0"
    assert [segment.kind for segment in memory.segments] == ["own", "foreign"]
    assert sum(segment.width for segment in memory.segments) == pytest.approx(60 / 96, abs=0.001)
    assert [segment.kind for segment in card_of(page, 1).memory.segments] == ["unattributed"]


def test_cards_without_an_engine_stand_in_their_own_group() -> None:
    page = page_of(one_visible())
    assert [card.index for card in page.unowned] == ["1"]
    assert [card.index for card in engine_of(page).cards] == ["0"]
    assert page.unowned[0].check_state == "problem"
    assert page.unowned[0].cuda == ""


def test_a_free_card_that_an_engine_can_see_is_still_no_engines() -> None:
    scene = tensor_parallel(tensor=1)
    page = page_of(replace(scene, cards=(scene.cards[0], replace(scene.cards[1], owner=""))))
    assert [card.index for card in page.unowned] == ["1"]
    assert engine_of(page).visible_used == "uses 1 of 2 visible cards"


@pytest.mark.parametrize(
    ("reason", "state", "words"),
    [("gpu_lost", "lost", "has lost this card"), ("timeout", "hangs", "does not return"), ("error", "failed", "error")],
)
def test_a_card_that_does_not_answer_says_how(reason: str, state: str, words: str) -> None:
    card = card_of(page_of(NodeScene((CardScene(0, up=False, down_reason=reason),))), 0)
    assert card.state == state
    assert words in card.explanation


def test_how_a_card_fails_is_also_known_from_the_checks() -> None:
    scene = NodeScene((CardScene(0, up=False),))
    down = {"check": "cards", "status": "fail", "state": "problem", "uuid": scene.cards[0].uuid, "evidence": {"reason": "timeout"}}
    assert card_of(page_of(replace(scene, checks=(down,))), 0).state == "hangs"
    assert card_of(page_of(replace(scene, checks=({**down, "uuid": "GPU-other"},))), 0).state == "failed"


def test_links_are_summed_counted_and_missed() -> None:
    scene = tensor_parallel()
    down = replace(scene, cards=(replace(scene.cards[0], links_down=2), replace(scene.cards[1], links=0)))
    page = page_of(down)
    links = card_of(page, 0).links
    assert links.send.value == pytest.approx(12.4e9)
    assert plain(links.both.text) == "12.4 / 12.2 GB/s"
    assert (links.up.value, links.total.value, links.some_down) == (16, 18, True)
    assert not card_of(page, 1).links.has_links


def test_link_counters_serve_where_the_card_has_no_sum() -> None:
    scene = tensor_parallel()
    without = frozenset({m.GPU_NVLINK_TOTAL_TX, m.GPU_NVLINK_TOTAL_RX})
    links = card_of(page_of(replace(scene, cards=(replace(scene.cards[0], without=without), scene.cards[1]))), 0).links
    assert links.send.value == pytest.approx(12.4e9)


def test_only_reasons_that_cost_speed_are_marked() -> None:
    scene = tensor_parallel()
    card = card_of(page_of(replace(scene, cards=(replace(scene.cards[0], events=("gpu_idle", "sw_power_cap")), scene.cards[1]))), 0)
    assert [(event.word, event.slows) for event in card.clock_events] == [("idle", False), ("power cap", True)]


def test_order_and_keys_do_not_change_when_values_do() -> None:
    first, second = page_of(eight_cards()), page_of(eight_cards(), seconds=300)
    assert [card.key for card in first.unowned] == [card.key for card in second.unowned]
    assert [engine.key for group in first.deployments for engine in group.engines] == [
        engine.key for group in second.deployments for engine in group.engines
    ]
    keys = [card.key for group in first.deployments for engine in group.engines for card in engine.cards]
    assert len(set(keys)) == len(keys) == 7
