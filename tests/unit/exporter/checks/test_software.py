"""The checks of what an engine was built with and for: heads, CUDA runtime, NCCL."""

from __future__ import annotations

import dataclasses

import pytest
from poise.exporter.checks.result import State, Status
from poise.exporter.snapshot import DriverInfo, Libraries, ModelShape, NodeSnapshot

from tests.check_lines import line, lines
from tests.scenes import START, card, engine, node

PAIR = [card(0, busy=0), card(1, busy=0)]


# ------------------------------------------------------------------------------------------------------------------- heads
@pytest.mark.parametrize(
    ("shape", "size", "sentence"),
    [
        (ModelShape(40, 8), 2, "20 attention heads per rank, 4 KV heads"),
        (ModelShape(40, 2), 4, "10 attention heads per rank, each KV head on 2 ranks: the KV cache is held 2 times"),
        (ModelShape(32), 8, "4 attention heads per rank"),
    ],
)
def test_heads_that_divide_pass_with_what_each_rank_has(shape: ModelShape, size: int, sentence: str) -> None:
    found = line(node(PAIR, [engine(shape=shape, tensor=size)]), "heads")
    assert (found.status, found.sentence) == (Status.PASS, sentence)


def test_heads_that_do_not_divide_are_a_problem_also_of_an_engine_that_ended() -> None:
    for alive in (True, False):
        scene = node(PAIR, [engine(shape=ModelShape(4, 2), tensor=3, process_up=alive, page=alive)])
        found = line(scene, "heads")
        assert (found.state, found.sentence) == (State.PROBLEM, "4 attention heads do not divide by tensor_parallel_size=3")
        assert found.fix == "start it with --tensor-parallel-size 2 or 4"
    prime = line(node(PAIR, [engine(shape=ModelShape(37), tensor=2)]), "heads")
    assert prime.fix.startswith("use pipeline parallelism")


def test_kv_heads_that_neither_divide_nor_are_divided_are_a_problem() -> None:
    found = line(node(PAIR, [engine(shape=ModelShape(12, 3), tensor=2)]), "heads")
    assert (found.state, found.sentence) == (State.PROBLEM, "3 KV heads neither divide by tensor_parallel_size=2 nor divide it")


def test_model_that_cannot_be_read_is_unknown_and_one_rank_needs_no_line() -> None:
    for shape in (None, ModelShape()):
        assert line(node(PAIR, [engine(shape=shape)]), "heads").status is Status.UNKNOWN
    assert lines(node(PAIR, [engine(cards=[0])]), "heads") == []
    assert lines(node(PAIR, [engine(shape=None, process_up=False, page=False)]), "heads") == []
    assert lines(node(PAIR, [engine(shape=None, page=False, start=START - 3)]), "heads") == [], "not looked yet"
    assert lines(node(PAIR, [engine(process_up=False, page=False)]), "heads") == [], "gone for another reason"
    assert line(node(PAIR, [engine(shape=ModelShape(4), tensor=3, page=False, start=START - 3)]), "heads").status is Status.FAIL


# --------------------------------------------------------------------------------------------------------------- libraries
def with_driver(libraries: Libraries | None, cuda: str = "12.2", driver: str = "535.104") -> NodeSnapshot:
    scene = node(PAIR, [engine(libraries=libraries)])
    return dataclasses.replace(scene, driver=DriverInfo(driver, driver, cuda))


@pytest.mark.parametrize(
    ("libraries", "sentence"),
    [
        (Libraries("2.18", "12.1", "12.1"), "CUDA runtime 12.1 and NCCL for CUDA 12.1 fit: driver 535.104 (CUDA 12.2)"),
        (Libraries("2.27.3", "12.8"), "CUDA runtime 12.8 fits by minor-version compatibility: driver 535.104 (CUDA 12.2)"),
        (Libraries("", "11"), "CUDA runtime 11.0 fits: driver 535.104 (CUDA 12.2)"),
        (
            Libraries("2.27.7", "13.0", "13.0", "580.65.06"),
            "CUDA runtime 13.0 and NCCL for CUDA 13.0 over libcuda 580.65.06 on driver 535.104 (forward compatibility)",
        ),
    ],
)
def test_libraries_that_the_driver_runs_pass_and_say_by_which_rule(libraries: Libraries, sentence: str) -> None:
    found = line(with_driver(libraries), "cuda_runtime")
    assert (found.status, found.sentence) == (Status.PASS, sentence)


@pytest.mark.parametrize(
    "libraries", [Libraries("", "13.0"), Libraries("2.27.7", "13.0", "13.0", "535.104"), Libraries("2.27.7", "", "13.0")]
)
def test_newer_major_version_on_an_old_driver_is_a_problem(libraries: Libraries) -> None:
    found = line(with_driver(libraries), "cuda_runtime")
    assert found.state is State.PROBLEM
    assert found.sentence.endswith("is for CUDA 13.0 and driver 535.104 knows CUDA up to 12.2")
    assert "cuda-compat-13-0" in found.fix


def test_newer_minor_version_before_cuda_11_does_not_run() -> None:
    assert line(with_driver(Libraries("", "10.2"), cuda="10.1", driver="418.67"), "cuda_runtime").state is State.PROBLEM


def test_nccl_of_another_major_version_is_watched() -> None:
    found = line(with_driver(Libraries("2.27.7", "12.8", "13.0"), cuda="13.0", driver="580.65"), "cuda_runtime")
    assert (found.state, found.sentence) == (State.WATCH, "NCCL is built for CUDA 13.0 and the CUDA runtime is 12.8")


def test_unreadable_process_is_unknown_and_one_without_cuda_has_no_line() -> None:
    assert line(with_driver(None), "cuda_runtime").status is Status.UNKNOWN
    loading = node(PAIR, [engine(libraries=None, page=False, start=START - 20)])
    assert lines(loading, "cuda_runtime") == [], "they are not all loaded yet"
    assert line(with_driver(Libraries("2.18")), "cuda_runtime").status is Status.UNKNOWN
    assert line(with_driver(Libraries("", "12.8"), cuda=""), "cuda_runtime").status is Status.UNKNOWN
    assert lines(with_driver(Libraries()), "cuda_runtime") == []
