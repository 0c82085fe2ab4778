"""Which rank of which engine has which card: by the driver's lists, by the environment, by neither."""

from __future__ import annotations

from dataclasses import replace

import pytest
from poise.exporter import metrics as m
from poise.exporter.ownership import FOREIGN_USE_BYTES, Joined, join, local_world_size, rank_label
from poise.exporter.snapshot import (
    Engine,
    EngineConfig,
    EngineIdentity,
    Gpu,
    GpuIdentity,
    GpuProcess,
    ObservedEngine,
    Rank,
    Reason,
    Role,
    Use,
)

GIB = 1024**3


def card(index: int, *processes: tuple[int, int | None], listed: bool = True, up: bool = True) -> Gpu:
    found = tuple(GpuProcess(pid, None if gib is None else gib * GIB) for pid, gib in processes)
    return Gpu(
        index,
        f"GPU-{index}",
        GpuIdentity(name="NVIDIA H20"),
        up=up,
        down_reason=None if up else Reason.GPU_LOST,
        processes=found if listed and up else None,
    )


def engine(
    name: str, ranks: dict[int, tuple[int | None, int | None, int | None]], *, visible: str | None = None, read: bool = True, **config: int
) -> ObservedEngine:
    """`ranks`: pid → (data, pipeline, tensor); the server is pid 1 of the name's number times 100."""
    server = {"a": 100, "b": 200}[name]
    sizes = {"tensor_parallel_size": max(len(ranks), 1), **config}
    return ObservedEngine(
        EngineIdentity(name, name, Role.MIXED, "default", "argv"),
        EngineConfig(cuda_visible_devices=visible, environment_read=read, **sizes),
        pid=server,
        process_up=True,
        ranks=tuple(Rank(pid, f"VLLM::Worker_{rank_label(Rank(pid, '', t, p, d))}", t, p, d) for pid, (d, p, t) in ranks.items()),
        pids=frozenset({server, server + 1, *ranks}),
    )


def joined(gpus: list[Gpu], *engines: ObservedEngine) -> Joined:
    return join(gpus, engines, lambda pid: {100: "python3.11", 900: "train", 901: "x" * 200}.get(pid, ""))


def uses(result: Engine) -> list[tuple[int, str, int | None]]:
    return [(item.index, str(item.use), item.rank.tp_rank if item.rank else None) for item in result.visible or ()]


def test_ranks_are_where_the_driver_lists_their_pids() -> None:
    (result,) = joined([card(0, (11, 80)), card(1, (10, 80))], engine("a", {10: (None, None, 0), 11: (None, None, 1)})).engines
    assert uses(result) == [(1, "own", 0), (0, "own", 1)]
    assert [item.cuda_index for item in result.own] == [1, 0]
    assert (result.used, result.source, result.local_world_size) == ({"GPU-0", "GPU-1"}, "processes", 2)


def test_one_card_of_two_visible_ones_is_free() -> None:
    (result,) = joined([card(0, (10, 80)), card(1)], engine("a", {10: (None, None, None)})).engines
    assert uses(result) == [(0, "own", None), (1, "free", None)]
    assert result.readings[m.ENGINE_GPU_INFO] == {("0", "GPU-0", "0", "", "", "", "own"): 1, ("1", "GPU-1", "1", "", "", "", "free"): 1}
    assert result.readings[m.ENGINE_GPUS_VISIBLE] == {(): 2}
    assert result.readings[m.ENGINE_GPUS_USED] == {(): 1}


def test_a_hidden_card_is_not_among_the_visible() -> None:
    (result,) = joined([card(0, (10, 80)), card(1)], engine("a", {10: (None, None, None)}, visible="0")).engines
    assert uses(result) == [(0, "own", None)]


def test_a_worker_with_contexts_on_two_cards_is_where_it_holds_most() -> None:
    workers = engine("a", {10: (None, None, 0), 11: (None, None, 1)})
    (result,) = joined([card(0, (10, 70), (11, 1)), card(1, (11, 70))], workers).engines
    assert uses(result) == [(0, "own", 0), (1, "own", 1)]


def test_a_context_of_the_server_alone_makes_a_card_no_own() -> None:
    (result,) = joined([card(0, (10, 70), (100, 1)), card(1, (100, 1))], engine("a", {10: (None, None, None)})).engines
    assert uses(result) == [(0, "own", None), (1, "free", None)]
    assert result.used == {"GPU-0"}


def test_an_engine_without_titles_owns_what_its_processes_hold() -> None:
    (result,) = joined([card(0), card(1, (101, 70))], engine("a", {})).engines
    assert uses(result) == [(1, "own", None), (0, "free", None)]


def test_another_engines_card_is_other() -> None:
    first, second = joined(
        [card(0, (10, 70)), card(1, (20, 70)), card(2)], engine("a", {10: (None, None, None)}), engine("b", {20: (None, None, None)})
    ).engines
    assert uses(first) == [(0, "own", None), (1, "other", None), (2, "free", None)]
    assert uses(second) == [(1, "own", None), (0, "other", None), (2, "free", None)]


def test_two_engines_on_one_card_both_own_it() -> None:
    first, second = joined(
        [card(0, (10, 40), (20, 40))], engine("a", {10: (None, None, None)}), engine("b", {20: (None, None, None)})
    ).engines
    assert uses(first) == uses(second) == [(0, "own", None)]


def test_a_card_that_a_loading_engine_was_told_to_use_is_other() -> None:
    first, _ = joined([card(0, (10, 70)), card(1)], engine("a", {10: (None, None, None)}), engine("b", {}, visible="1")).engines
    assert uses(first) == [(0, "own", None), (1, "other", None)]


def test_a_card_with_a_strangers_work_is_not_free_but_a_small_context_is() -> None:
    free = GpuProcess(900, FOREIGN_USE_BYTES - 1)
    (result,) = joined(
        [card(0, (10, 70)), replace(card(1), processes=(free,)), card(2, (900, 1))], engine("a", {10: (None, None, None)})
    ).engines
    assert uses(result) == [(0, "own", None), (1, "free", None), (2, "other", None)]


def test_two_ranks_on_one_card_use_one_card() -> None:
    (result,) = joined([card(0, (10, 40), (11, 40)), card(1)], engine("a", {10: (None, None, 0), 11: (None, None, 1)})).engines
    assert uses(result) == [(0, "own", 0), (1, "free", None)]
    assert (result.used, result.local_world_size) == ({"GPU-0"}, 2)


def test_own_cards_stand_in_rank_order() -> None:
    ranks = {10: (1, 0, 0), 11: (0, 1, 0), 12: (0, 0, 1), 13: (0, 0, 0)}
    (result,) = joined([card(index, (10 + index, 70)) for index in range(4)], engine("a", ranks)).engines
    assert [item.index for item in result.own] == [3, 2, 1, 0]
    assert result.readings[m.ENGINE_GPU_INFO][("0", "GPU-0", "0", "0", "0", "1", "own")] == 1


def test_without_process_lists_the_environment_stands_in() -> None:
    gpus = [card(index, listed=False) for index in range(3)]
    (result,) = joined(gpus, engine("a", {10: (None, None, 0), 11: (None, None, 1)}, visible="2,0")).engines
    assert uses(result) == [(2, "own", 0), (0, "own", 1)]
    assert (result.used, result.source) == (None, "environment")
    assert m.ENGINE_GPUS_USED not in result.readings
    (free,) = joined(gpus[:2], engine("a", {10: (None, None, None)})).engines
    assert uses(free) == [(0, "own", None), (1, "free", None)]


def test_without_process_lists_and_titles_the_parallel_size_stands_in() -> None:
    (result,) = joined([card(index, listed=False) for index in range(3)], engine("a", {}, tensor_parallel_size=2)).engines
    assert uses(result) == [(0, "own", None), (1, "own", None), (2, "free", None)]


def test_with_neither_lists_nor_environment_nothing_is_said() -> None:
    (result,) = joined([card(0, listed=False)], engine("a", {10: (None, None, None)}, read=False)).engines
    assert (result.visible, result.used, result.source) == (None, None, "")
    assert not {m.ENGINE_GPUS_VISIBLE, m.ENGINE_GPUS_USED, m.ENGINE_GPU_INFO} & set(result.readings)


def test_with_an_unreadable_environment_its_own_cards_are_still_known() -> None:
    (result,) = joined([card(0, (10, 70)), card(1)], engine("a", {10: (None, None, None)}, read=False)).engines
    assert uses(result) == [(0, "own", None)]
    assert result.own[0].cuda_index is None
    assert m.ENGINE_GPUS_VISIBLE not in result.readings
    assert result.readings[m.ENGINE_GPUS_USED] == {(): 1}


def test_a_lost_card_stays_with_the_rank_that_can_be_nowhere_else() -> None:
    workers = engine("a", {10: (None, None, 0), 11: (None, None, 1)})
    gpus = [card(0, (10, 70)), card(1, up=False)]
    (result,) = joined(gpus, replace(workers, last_page_at=5.0)).engines
    assert uses(result) == [(0, "own", 0), (1, "own", 1)]
    assert result.source == "processes"
    (loading,) = joined(gpus, workers).engines
    assert uses(loading) == [(0, "own", 0)]
    (two,) = joined([*gpus, card(2, up=False)], replace(workers, last_page_at=5.0)).engines
    assert uses(two) == [(0, "own", 0)]


def test_a_lost_card_of_nobody_known_is_not_called_free() -> None:
    (result,) = joined([card(0, (10, 70)), card(1, up=False)], engine("a", {10: (None, None, None)})).engines
    assert uses(result) == [(0, "own", None)]
    assert result.readings[m.ENGINE_GPUS_VISIBLE] == {(): 2}


def test_a_rank_that_left_its_card_leaves_it_free() -> None:
    (result,) = joined([card(0, (10, 70)), card(1)], engine("a", {10: (None, None, 0), 11: (None, None, 1)})).engines
    assert uses(result) == [(0, "own", 0), (1, "free", None)]
    assert result.used == {"GPU-0"}


def test_a_loading_engine_uses_no_card_yet() -> None:
    (result,) = joined([card(0), card(1)], engine("a", {}, tensor_parallel_size=2)).engines
    assert (result.used, result.local_world_size) == (frozenset(), 2)


def test_without_cards_nothing_is_said_of_cards() -> None:
    (result,) = joined([], engine("a", {10: (None, None, None)})).engines
    assert (result.visible, result.used) == (None, None)
    assert result.readings[m.ENGINE_WORLD_SIZE] == {(): 1}


@pytest.mark.parametrize(
    ("config", "size"),
    [
        ({}, 1),
        ({"tensor_parallel_size": 4, "pipeline_parallel_size": 2}, 8),
        ({"tensor_parallel_size": 2, "data_parallel_size": 4}, 8),
        ({"tensor_parallel_size": 2, "data_parallel_size": 4, "data_parallel_size_local": 1}, 2),
        ({"data_parallel_size": 4, "data_parallel_size_local": 0}, 0),
        ({"tensor_parallel_size": 8, "pipeline_parallel_size": 2, "nnodes": 2}, 8),
        ({"tensor_parallel_size": 3, "nnodes": 2}, None),
        ({"tensor_parallel_size": 4, "distributed_executor_backend": "ray"}, None),
    ],
)
def test_ranks_that_belong_on_this_node(config: dict[str, int], size: int | None) -> None:
    observed = replace(engine("a", {}), config=EngineConfig(**config))  # type: ignore[arg-type]  # one value is text
    assert local_world_size(observed) == size


def test_a_multi_node_engine_counts_all_ranks_and_those_here() -> None:
    (result,) = joined(
        [card(0, (10, 70))], engine("a", {10: (None, 1, None)}, pipeline_parallel_size=2, nnodes=2, tensor_parallel_size=1)
    ).engines
    assert result.readings[m.ENGINE_WORLD_SIZE] == {(): 2}
    assert result.readings[m.ENGINE_LOCAL_WORLD_SIZE] == {(): 1}
    assert result.own[0].rank is not None
    assert result.own[0].rank.pp_rank == 1


def test_a_gone_engine_holds_nothing() -> None:
    gone = replace(engine("a", {}), process_up=False, pid=None, pids=frozenset())
    (result,) = joined([card(0), card(1)], gone).engines
    assert (result.visible, result.used, result.local_world_size, result.source) == (None, None, None, "")
    assert set(result.readings) == {m.ENGINE_INFO, m.ENGINE_UP, m.ENGINE_PROCESS_UP}


def test_memory_by_process_with_engine_and_rank() -> None:
    readings = joined(
        [card(0, (10, 70), (100, 1), (900, 2), (901, 3))], engine("a", {10: (None, None, 1)}, tensor_parallel_size=2)
    ).gpu_readings["GPU-0"]
    assert readings[m.GPU_PROCESS_MEMORY] == {
        ("10", "VLLM::Worker_TP1", "a", "TP1"): 70 * GIB,
        ("100", "python3.11", "a", ""): GIB,
        ("900", "train", "", ""): 2 * GIB,
        ("901", "x" * 64, "", ""): 3 * GIB,
    }
    assert readings[m.GPU_FOREIGN_MEMORY] == {(): 5 * GIB}


def test_memory_that_is_not_told_is_absent_and_never_zero() -> None:
    result = joined([card(0, (10, None), (900, None)), card(1, listed=False), card(2)], engine("a", {10: (None, None, None)}))
    assert result.gpu_readings == {"GPU-0": {}, "GPU-2": {m.GPU_FOREIGN_MEMORY: {(): 0.0}}}
    assert uses(result.engines[0])[0] == (0, "own", None)


def test_rank_labels_are_vllms_words() -> None:
    assert rank_label(Rank(1, "")) == "0"
    assert rank_label(Rank(1, "", 1)) == "TP1"
    assert rank_label(Rank(1, "", 3, 1, 0)) == "DP0_PP1_TP3"


def test_every_card_stands_at_most_once_for_an_engine() -> None:
    ranks = {10: (0, None, None), 11: (1, None, None)}
    (result,) = joined([card(0, (10, 1), (11, 1)), card(1, (10, 2))], engine("a", ranks)).engines
    assert sorted(item.uuid for item in result.visible or ()) == ["GPU-0", "GPU-1"]
    assert all(item.use is Use.OWN for item in result.visible or ())


# ------------------------------------------------------------------------------------------------- in a pid namespace of our own
def part_of(gpu: Gpu, used_gib: float) -> Gpu:
    """The card as seen from a container: processes outside are left out, the memory in use is the whole card's."""
    return replace(gpu, processes_complete=False, readings={m.GPU_MEMORY_USED: {(): used_gib * GIB}})


def test_a_list_that_lacks_some_says_nothing_of_foreign_memory() -> None:
    result = joined([part_of(card(0, (101, 4), (900, 2)), 8)], engine("a", {101: (None, None, None)}))
    readings = result.gpu_readings["GPU-0"]
    assert m.GPU_FOREIGN_MEMORY not in readings
    assert set(readings[m.GPU_PROCESS_MEMORY].values()) == {4.0 * GIB, 2.0 * GIB}


def test_memory_that_no_listed_process_holds_is_somebodys_out_of_sight() -> None:
    gpus = [part_of(card(0, (101, 70)), 70.5), part_of(card(1), 40), part_of(card(2), 0.4)]
    result = joined(gpus, engine("a", {101: (None, None, None)}))
    assert uses(result.engines[0]) == [(0, "own", None), (1, "other", None), (2, "free", None)]


def test_where_nothing_tells_who_is_on_a_card_its_memory_in_use_tells_that_somebody_is() -> None:
    gpus = [part_of(card(index, listed=False), used) for index, used in enumerate((70, 40, 0.4))]
    result = joined(gpus, engine("a", {101: (None, None, None)}))
    assert uses(result.engines[0]) == [(0, "own", None), (1, "other", None), (2, "free", None)]
