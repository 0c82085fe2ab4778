"""The checks of an engine's memory settings, its batch, the balance of its data-parallel ranks, and whether it makes progress."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
from poise.exporter import metrics as m
from poise.exporter.checks.result import State, Status
from poise.exporter.checks.runner import Runner
from poise.exporter.metrics import Metric
from poise.exporter.snapshot import Engine, EnginePage, GpuIdentity, Libraries, ModelShape, NodeSnapshot, Role

from tests.check_lines import Scene, line, lines
from tests.scenes import GIB, START, card, engine, node, play

PAIR = [card(0, busy=0), card(1, busy=0)]
BFLOAT16, FLOAT32 = ModelShape(40, 8, "bfloat16"), ModelShape(40, 8, "float32")


# ---------------------------------------------------------------------------------------------------------- memory settings
@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ({}, "vLLM's default of each card, bfloat16"),
        ({"gpu_memory_utilization": 0.9, "dtype": "auto"}, "0.9 of each card, bfloat16"),
        ({"gpu_memory_utilization": 0.97}, "0.97 of each card, bfloat16"),
    ],
)
def test_sensible_settings_pass(told: dict[str, Any], sentence: str) -> None:
    found = line(node(PAIR, [engine(**told)]), "memory_settings")
    assert (found.status, found.sentence) == (Status.PASS, sentence)


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ({"gpu_memory_utilization": 0.99}, "gpu-memory-utilization=0.99 leaves next to nothing of the cards"),
        ({"gpu_memory_utilization": 0.3}, "gpu-memory-utilization=0.3 leaves most of the cards unused, and nobody else is on them"),
        ({"dtype": "float"}, "the engine computes in float32"),
        ({"dtype": "half"}, "a bfloat16 model is computed in float16"),
    ],
)
def test_settings_that_cost_are_watched(told: dict[str, Any], sentence: str) -> None:
    found = line(node(PAIR, [engine(**told)]), "memory_settings")
    assert (found.state, found.sentence) == (State.WATCH, sentence)


def test_two_engines_that_are_promised_more_than_a_card_are_a_problem_for_both() -> None:
    both = [engine("n1:8000", cards=[0], gpu_memory_utilization=0.9), engine("n1:8001", cards=[0], gpu_memory_utilization=0.9)]
    found = lines(node(PAIR, both), "memory_settings")
    assert [result.sentence for result in found] == [
        "GPU 0 is promised 1.8 times: to this engine and to n1:8001",
        "GPU 0 is promised 1.8 times: to this engine and to n1:8000",
    ]
    assert {result.state for result in found} == {State.PROBLEM}
    halves = [engine("n1:8000", cards=[0], gpu_memory_utilization=0.45), engine("n1:8001", cards=[0], gpu_memory_utilization=0.45)]
    assert {result.status for result in lines(node(PAIR, halves), "memory_settings")} == {Status.PASS}


def test_small_share_beside_a_stranger_and_float16_on_cards_without_bfloat16_are_meant() -> None:
    scene = node(PAIR, [engine(gpu_memory_utilization=0.3)])
    shared = dataclasses.replace(scene, gpu_process_readings={f"GPU-{index}": {m.GPU_FOREIGN_MEMORY: {(): 40 * GIB}} for index in (0, 1)})
    assert line(shared, "memory_settings").status is Status.PASS
    old = [dataclasses.replace(gpu, identity=GpuIdentity("Tesla T4", architecture="turing")) for gpu in PAIR]
    assert line(node(old, [engine(dtype="half")]), "memory_settings").status is Status.PASS
    assert line(node(PAIR, [engine(dtype="float32", libraries=Libraries())]), "memory_settings").status is Status.PASS, "a build for CPUs"


def test_settings_of_which_nothing_is_known_are_unknown_and_a_silent_engine_has_no_line() -> None:
    for shape in (None, FLOAT32):
        assert line(node(PAIR, [engine(shape=shape)]), "memory_settings").status is Status.UNKNOWN
    assert lines(node(PAIR, [engine(page=False)]), "memory_settings") == []


# ------------------------------------------------------------------------------------------------------------- batch limit
def batch(running: float, waiting: float, used: float, preempted: float = 0.0, limit: int | None = 16) -> Scene:
    """An engine with a steady batch, and so many preemptions a second."""

    def scene(second: float) -> NodeSnapshot:
        readings = {
            m.ENGINE_REQUESTS_RUNNING: running,
            m.ENGINE_REQUESTS_WAITING: waiting,
            m.ENGINE_KV_CACHE_USAGE: used,
            m.ENGINE_PREEMPTIONS: preempted * second,
        }
        return node(PAIR, [engine(tokens=500 * second, readings=readings, max_num_seqs=limit)])

    return scene


def test_full_batch_with_room_in_the_kv_cache_is_watched() -> None:
    found = line(batch(16, 30, 0.2), "batch_limit", 60)
    assert (found.state, found.sentence) == (
        State.WATCH,
        "max-num-seqs=16 holds 30 requests back while the KV cache is 20 % full, mean of 60 s",
    )
    assert found.fix.startswith("start it with --max-num-seqs 32")


def test_kv_cache_that_pushes_requests_out_is_watched() -> None:
    found = line(batch(16, 3, 0.99, preempted=0.5), "batch_limit", 60)
    assert (found.state, found.sentence) == (
        State.WATCH,
        "30 requests pushed out of the batch in 60 s: the KV cache is full (99 %)",
    )


@pytest.mark.parametrize(
    ("scene", "sentence"),
    [
        (batch(16, 0, 0.2), "16 running, 0 waiting, KV cache 20 % full, mean of 60 s"),
        (batch(16, 30, 0.8), "16 running, 30 waiting, KV cache 80 % full, mean of 60 s"),
        (batch(200, 30, 0.2, limit=None), "200 running, 30 waiting, KV cache 20 % full, mean of 60 s"),
        (batch(9, 30, 0.95), "30 wait for a full KV cache (95 %): it needs more engines, not other settings"),
    ],
)
def test_batches_that_are_as_they_should_be_pass(scene: Scene, sentence: str) -> None:
    found = line(scene, "batch_limit", 60)
    assert (found.status, found.sentence) == (Status.PASS, sentence)


def test_engine_that_has_just_answered_is_judged_by_what_it_told() -> None:
    def scene(second: float) -> NodeSnapshot:
        return node(PAIR, [engine(page=second > 55, last_page_at=None, start=START - 30)])

    assert line(scene, "batch_limit", 60).status is Status.PASS


def test_page_that_does_not_tell_the_kv_cache_is_unknown() -> None:
    one = engine()
    page = EnginePage(1.0, 0.1, "0.6.0", (dataclasses.replace(one.observed.page.work[0], readings={}),)) if one.observed.page else None
    one = dataclasses.replace(one, observed=dataclasses.replace(one.observed, page=page))
    assert line(node(PAIR, [one]), "batch_limit").status is Status.UNKNOWN


# ----------------------------------------------------------------------------------------------------------- data parallel
def ranks(*held: float, tokens: float = 100.0) -> Scene:
    """An engine with so many running requests on each data-parallel rank."""

    def scene(second: float) -> NodeSnapshot:
        more = {
            rank: {m.ENGINE_REQUESTS_RUNNING: count, m.ENGINE_GENERATION_TOKENS: tokens * second}
            for rank, count in enumerate(held)
            if rank > 0
        }
        return node(PAIR, [engine(tokens=100 * second, readings={m.ENGINE_REQUESTS_RUNNING: held[0]}, ranks=more)])

    return scene


def test_ranks_that_share_pass_and_one_rank_has_no_line() -> None:
    assert line(ranks(8, 12), "data_parallel_balance", 60).sentence == "from 8 to 12 requests per rank, mean of 60 s"
    assert line(ranks(1, 0), "data_parallel_balance", 60).sentence == "too few requests to share"
    assert lines(ranks(8), "data_parallel_balance", 60) == []
    assert line(ranks(8, 12), "data_parallel_balance", 3).status is Status.UNKNOWN


@pytest.mark.parametrize(
    ("held", "sentence"),
    [
        ((20, 0), "DP rank 0 holds 20 requests and rank 1 0, mean of 60 s"),
        ((1, 2, 2, 20), "DP rank 3 holds 20 requests and rank 0 1, mean of 60 s"),
    ],
)
def test_ranks_that_do_not_share_are_watched(held: tuple[float, ...], sentence: str) -> None:
    found = line(ranks(*held), "data_parallel_balance", 60)
    assert (found.state, found.sentence) == (State.WATCH, sentence)


# ---------------------------------------------------------------------------------------------------------------- progress
def stuck(*, busy: float = 1.0, held: float = 4.0, role: Role = Role.MIXED, **more: Any) -> Scene:
    """An engine that holds requests and makes no token."""

    def scene(second: float) -> NodeSnapshot:
        gpus = [card(0, busy=busy * second, power=300), card(1, busy=busy * second, power=300)]
        readings: Mapping[Metric, float] = {m.ENGINE_GENERATION_TOKENS: 700.0, m.ENGINE_REQUESTS_RUNNING: held, **more.get("readings", {})}
        return node(gpus, [with_role(engine(readings=readings, ranks=more.get("ranks")), role)])

    return scene


def with_role(one: Engine, role: Role) -> Engine:
    identity = dataclasses.replace(one.identity, role=role)
    return dataclasses.replace(one, observed=dataclasses.replace(one.observed, identity=identity))


def test_spinning_ranks_without_tokens_are_watched_after_thirty_seconds_and_a_problem_after_sixty() -> None:
    assert line(stuck(), "progress", 10).status is Status.UNKNOWN
    assert line(stuck(), "progress", 32).state is State.WATCH
    found = line(stuck(), "progress", 61)
    assert (found.state, found.sentence) == (
        State.PROBLEM,
        "no token in 60 s while at least 4 requests are held, and all its cards are 100 % busy",
    )
    assert "collective" in found.cause


def test_stall_is_the_first_sentence_of_the_verdict() -> None:
    outcome = play(stuck(), 61, Runner())
    assert outcome.verdict.lines[0].check == "progress"
    assert outcome.verdict.state is State.PROBLEM


def test_stall_without_load_and_decode_without_kv_have_other_causes() -> None:
    assert "worker hangs" in line(stuck(busy=0.0), "progress", 61).cause
    assert "waits for KV" in line(stuck(busy=0.0, role=Role.DECODE), "progress", 61).cause


def test_one_stuck_rank_of_several_is_named() -> None:
    def scene(second: float) -> NodeSnapshot:
        more = {1: {m.ENGINE_REQUESTS_RUNNING: 3.0, m.ENGINE_GENERATION_TOKENS: 50.0}}
        return node(PAIR, [engine(tokens=100 * second + 1, ranks=more)])

    assert line(scene, "progress", 61).sentence.startswith("no token of DP rank 1 in 60 s while at least")


@pytest.mark.parametrize(
    "scene",
    [
        stuck(held=0.0),
        stuck(readings={m.ENGINE_REQUESTS_WAITING: 0.0, m.ENGINE_REQUESTS_RUNNING: 0.0}),
        lambda second: node(PAIR, [engine(tokens=100 * second)]),
        lambda second: node(PAIR, [engine(tokens=700.0, readings={m.ENGINE_REQUESTS_RUNNING: 1.0 if second % 20 < 10 else 0.0})]),
        lambda second: node(PAIR, [engine(tokens=700.0, page=second % 7 != 3)]),
    ],
)
def test_idle_working_and_briefly_silent_engines_are_quiet(scene: Scene) -> None:
    assert line(scene, "progress", 61).status is Status.PASS


def test_sleeping_engine_is_quiet() -> None:
    def scene(second: float) -> NodeSnapshot:
        asleep = stuck()(second).engines[0]
        assert asleep.observed.page is not None
        work = asleep.observed.page.work[0]
        work = dataclasses.replace(work, readings={**work.readings, m.ENGINE_SLEEPING: {("weights_offloaded",): 1.0}})
        page = dataclasses.replace(asleep.observed.page, work=(work,))
        return node(PAIR, [dataclasses.replace(asleep, observed=dataclasses.replace(asleep.observed, page=page))])

    assert line(scene, "progress", 61).sentence == "the engine sleeps"
