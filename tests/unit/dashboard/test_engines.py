"""Engines of the overview: identity, groups, and figures that say idle, n/a or a number, never a false zero."""

from __future__ import annotations

from dataclasses import replace

import pytest
from poise.exporter import metrics as m

from tests.node_scenes import eight_cards, idle, tensor_parallel
from tests.unit.dashboard.pages import engine_of, figure, page_of, plain


def test_an_engine_says_what_it_is() -> None:
    engine = engine_of(page_of(tensor_parallel()))
    assert (engine.engine, engine.model, engine.role_word, engine.version) == (
        "gpu-node-1:8000",
        "Qwen/Qwen2.5-32B-Instruct",
        "mixed",
        "vLLM 0.32.0",
    )
    assert engine.parallel == ("TP=2",)
    assert (engine.ranks_seen.value, engine.ranks_expected.value, engine.ranks_missing) == (2, 2, False)


def test_a_missing_rank_is_counted() -> None:
    scene = tensor_parallel()
    engine = engine_of(page_of(replace(scene, cards=(scene.cards[0], replace(scene.cards[1], owner="")))))
    assert (engine.ranks_seen.value, engine.ranks_expected.value, engine.ranks_missing) == (1, 2, True)


def test_figures_of_the_last_minute() -> None:
    engine = engine_of(page_of(tensor_parallel()))
    assert figure(engine, "requests").first.value == pytest.approx(3.2)
    assert figure(engine, "requests").below == "12 running · 1 waiting"
    assert figure(engine, "prefill").first.value == pytest.approx(3.2 * 420)
    assert plain(figure(engine, "decode").first.text) == "576"
    assert plain(figure(engine, "ttft").first.text) == "58 ms"
    second = figure(engine, "ttft").second
    assert second is not None
    assert plain(second.text) == "96 ms"
    assert plain(figure(engine, "queue").first.text) == "< 10 ms"
    assert figure(engine, "kv_cache").fraction == pytest.approx(0.37)
    assert figure(engine, "preemptions").first.text == "0"


def test_latencies_above_the_last_bound_say_so() -> None:
    engine = engine_of(page_of(tensor_parallel(ttft=60.0)))
    assert plain(figure(engine, "ttft").first.text) == "≥ 10 s"


def test_no_load_is_idle_and_measured_zeros_stay_zero() -> None:
    engine = engine_of(page_of(idle()))
    assert figure(engine, "ttft").first.text == "idle"
    assert figure(engine, "ttft").first.value is None
    assert figure(engine, "itl").first.note == "nothing was generated in the last 60 s"
    assert figure(engine, "decode").first.text == "0"
    assert figure(engine, "requests").first.text == "0"


def test_after_one_scrape_rates_are_not_available_yet() -> None:
    engine = engine_of(page_of(tensor_parallel(), seconds=5))
    for key in ("requests", "ttft", "decode", "preemptions"):
        number = figure(engine, key).first
        assert (number.text, number.note) == ("n/a", "two readings are needed, and there is one so far")


def test_what_the_engine_does_not_feed_is_not_available() -> None:
    engine = engine_of(page_of(tensor_parallel(without=frozenset({m.ENGINE_QUEUE_TIME}))))
    assert figure(engine, "queue").first.note == "the exporter does not give it"


def test_a_loading_engine_has_reasons_instead_of_figures() -> None:
    engine = engine_of(page_of(eight_cards()), "gpu-node-1:8003")
    assert engine.source.state == "loading"
    assert (engine.ranks_missing, engine.visible_used) == (False, "")
    assert {one.first.text for one in engine.figures} == {"n/a"}
    assert figure(engine, "ttft").first.note == "the engine is loading"


def test_an_engine_that_answered_before_is_down_not_loading() -> None:
    up = tensor_parallel()
    silent = replace(up, engines=(replace(up.engines[0], up=False),))
    assert engine_of(page_of(up, silent)).source.state == "down"
    assert engine_of(page_of(silent)).source.state == "loading"
    gone = replace(up, engines=(replace(up.engines[0], up=False, process_up=False),))
    assert engine_of(page_of(gone)).source.detail == "its process is gone"
    by_url = replace(up, engines=(replace(up.engines[0], up=False, process_up=None),))
    assert engine_of(page_of(by_url)).source.state == "down"


def test_an_engine_without_an_address_is_not_asked_and_neither_loading_nor_down() -> None:
    up = tensor_parallel()
    headless = engine_of(page_of(replace(up, engines=(replace(up.engines[0], up=None),))))
    assert (headless.source.state, headless.source.word) == ("unknown", "not asked")
    assert figure(headless, "ttft").first.note == headless.source.detail
    assert (headless.ranks_missing, len(headless.cards)) == (False, 2)


def test_engines_of_one_deployment_stand_together_prefill_first() -> None:
    groups = page_of(eight_cards()).deployments
    named = [group for group in groups if group.named]
    assert [group.name for group in named] == ["qwen-pd"]
    assert [engine.role for engine in named[0].engines] == ["prefill", "decode"]
    assert all(not group.named for group in groups if len(group.engines) == 1)


def test_a_restart_of_the_engine_does_not_show_as_a_jump() -> None:
    before, after = tensor_parallel(), tensor_parallel(rate=0.1)
    rate = figure(engine_of(page_of(before, after, seconds=30)), "requests").first.value
    assert rate is not None
    assert 0 <= rate < 3.3
