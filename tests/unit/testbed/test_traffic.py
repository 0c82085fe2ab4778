"""Who sends how many bytes to whom."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poise.testbed import model, traffic
from poise.testbed.model import ModelShape
from poise.testbed.traffic import Flow, Grid

TINY = model.tiny_shape()
# Qwen2.5-32B.
LARGE = ModelShape(5120, 64, 40, 8, 27648, 152064, 32768, 2)


def grid(tensor: int, pipeline: int = 1, data: int = 1, first: int = 0) -> Grid:
    """A server whose ranks sit on cards in order, from card `first` on."""
    return Grid(tensor, pipeline, data, {rank: first + rank for rank in range(tensor * pipeline * data)})


def sent(flows: list[Flow]) -> dict[tuple[int, int], float]:
    found: dict[tuple[int, int], float] = {}
    for flow in flows:
        key = (flow.source, flow.target)
        found[key] = found.get(key, 0.0) + flow.count
    return found


def test_all_reduce_volume_of_the_tiny_model_and_of_a_large_one() -> None:
    # tiny: 9 reductions of 256 bfloat16; two ranks send each once over the ring (2·1/2).
    assert traffic.all_reduce_bytes_per_token(TINY, 2, 4, embeds=True) == 9 * 256 * 2
    assert traffic.all_reduce_bytes_per_token(LARGE, 2, 64, embeds=True) == 129 * 5120 * 2
    assert traffic.all_reduce_bytes_per_token(LARGE, 8, 64, embeds=True) == pytest.approx(2 * 7 / 8 * 129 * 5120 * 2)
    assert traffic.all_reduce_bytes_per_token(LARGE, 2, 16, embeds=False) == 32 * 5120 * 2
    assert traffic.all_reduce_bytes_per_token(LARGE, 1, 64, embeds=True) == 0


@pytest.mark.parametrize(
    ("layers", "stages", "expected"), [(4, 1, [4]), (4, 2, [2, 2]), (5, 2, [3, 2]), (6, 4, [1, 2, 2, 1]), (7, 4, [2, 2, 2, 1])]
)
def test_layers_are_divided_over_stages_as_vllm_does(layers: int, stages: int, expected: list[int]) -> None:
    """The expected lists are what vLLM 0.32's get_pp_indices gives."""
    assert traffic.stage_layers(layers, stages) == expected


def test_kv_bytes_of_a_token_are_those_that_the_recorded_servers_say_of_their_whole_cache() -> None:
    # pd-decode: 512 blocks of 128 tokens, tp2-server: 1024, and kv_cache_memory_bytes="134217728" for each rank of both.
    assert 512 * 128 * traffic.kv_bytes_per_token(TINY, 1, 4, 2) == 134217728
    assert 1024 * 128 * traffic.kv_bytes_per_token(TINY, 2, 4, 2) == 134217728
    assert traffic.kv_bytes_per_token(TINY, 4, 4, 2) == traffic.kv_bytes_per_token(TINY, 2, 4, 2)  # a head is not divided


def test_one_card_sends_nothing_and_neither_do_data_parallel_ranks() -> None:
    assert list(traffic.compute_flows(grid(1), TINY, {0: 100.0})) == []
    assert list(traffic.compute_flows(grid(1, data=2), TINY, {0: 100.0, 1: 50.0})) == []


def test_tensor_parallel_ranks_send_round_a_ring() -> None:
    volume = 10 * traffic.all_reduce_bytes_per_token(TINY, 4, 4, embeds=True)
    assert sent(list(traffic.compute_flows(grid(4), TINY, {0: 10.0}))) == {
        (0, 1): volume,
        (1, 2): volume,
        (2, 3): volume,
        (3, 0): volume,
    }


def test_a_data_parallel_rank_has_its_own_tokens_and_cards() -> None:
    found = sent(list(traffic.compute_flows(grid(2, data=2), TINY, {0: 10.0, 1: 30.0})))
    assert found[(2, 3)] == 3 * found[(0, 1)]
    assert set(found) == {(0, 1), (1, 0), (2, 3), (3, 2)}


def test_pipeline_stages_hand_hidden_states_and_residual_on_and_never_back() -> None:
    assert sent(list(traffic.compute_flows(grid(1, 3), TINY, {0: 10.0}))) == {(0, 1): 10 * 2 * 256 * 2, (1, 2): 10 * 2 * 256 * 2}


def test_with_tensor_and_pipeline_parallelism_each_rank_hands_on_a_half_and_the_next_stage_puts_it_together() -> None:
    found = sent(list(traffic.compute_flows(grid(2, 2), TINY, {0: 1.0})))
    whole = 2 * 256 * 2
    first = traffic.all_reduce_bytes_per_token(TINY, 2, 2, embeds=True)
    second = traffic.all_reduce_bytes_per_token(TINY, 2, 2, embeds=False)
    assert found == {
        (0, 1): first,
        (1, 0): first,
        (0, 2): whole / 2,
        (1, 3): whole / 2,
        (2, 3): second + whole / 2,
        (3, 2): second + whole / 2,
    }


def test_a_rank_without_a_card_sends_and_receives_nothing() -> None:
    lost = Grid(2, 1, 1, {0: 0})
    assert list(traffic.compute_flows(lost, TINY, {0: 10.0})) == []


def test_decode_pulls_the_whole_cache_from_one_prefill_rank_and_halves_from_two() -> None:
    one = traffic.transfer_flows([(grid(1), 1.0)], grid(1, first=1), 4, {0: 1000.0})
    assert sent(list(one)) == {(0, 1): 1000.0}
    two = traffic.transfer_flows([(grid(2), 1.0)], grid(1, first=2), 4, {0: 1000.0})
    assert sent(list(two)) == {(0, 2): 500.0, (1, 2): 500.0}


def test_decode_ranks_that_are_more_pull_their_heads_each() -> None:
    found = traffic.transfer_flows([(grid(1), 1.0)], grid(2, first=1), 4, {0: 1000.0})
    assert sent(list(found)) == {(0, 1): 500.0, (0, 2): 500.0}


def test_prefill_stages_give_their_layers() -> None:
    found = traffic.transfer_flows([(grid(1, 2), 1.0)], grid(1, first=2), 5, {0: 1000.0})
    assert sent(list(found)) == pytest.approx({(0, 2): 600.0, (1, 2): 400.0})


def test_several_prefill_servers_give_in_proportion_to_what_each_took_in() -> None:
    sources = [(grid(1), 300.0), (grid(1, first=1), 100.0), (grid(1, first=2), 0.0)]
    assert sent(list(traffic.transfer_flows(sources, grid(1, first=3), 4, {0: 1000.0}))) == {(0, 3): 750.0, (1, 3): 250.0}


sizes = st.integers(1, 4)


@given(sizes, sizes, sizes, sizes, st.integers(1, 12), st.floats(0.001, 1e12), st.lists(st.floats(0, 1e9), min_size=1, max_size=3))
def test_what_decode_pulled_is_what_prefill_servers_gave(
    tensor: int, stages: int, origins: int, target: int, layers: int, count: float, shares: list[float]
) -> None:
    layers = max(layers, stages)
    sources = [(grid(tensor, stages, origins, first=100 * place), share) for place, share in enumerate(shares)]
    flows = list(traffic.transfer_flows(sources, grid(target, first=1000), layers, {0: count}))
    assert sum(flow.count for flow in flows) == pytest.approx(count if any(shares) else 0.0)
    assert all(flow.source < 1000 <= flow.target for flow in flows)


@given(sizes, sizes, sizes, st.floats(0.001, 1e9))
def test_ranks_of_one_stage_send_alike_and_tokens_scale_everything(tensor: int, stages: int, data: int, tokens: float) -> None:
    one = sent(list(traffic.compute_flows(grid(tensor, stages, data), LARGE, {0: tokens})))
    double = sent(list(traffic.compute_flows(grid(tensor, stages, data), LARGE, {0: 2 * tokens})))
    assert double == pytest.approx({pair: 2 * count for pair, count in one.items()})
    by_card: Counter[int] = Counter()
    for (source, _), count in one.items():
        by_card[source] += count  # type: ignore[assignment]  # a Counter of floats
    for stage in range(stages):
        values = [by_card[stage * tensor + rank] for rank in range(tensor)]
        assert max(values) == pytest.approx(min(values))


@given(st.integers(0, 10**15), st.integers(1, 40))
def test_whole_parts_add_up_and_differ_by_one_at_most(count: int, places: int) -> None:
    parts = traffic.whole_parts(count, places)
    assert (len(parts), sum(parts)) == (places, count)
    assert max(parts) - min(parts) <= 1
