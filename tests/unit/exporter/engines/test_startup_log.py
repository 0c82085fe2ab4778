"""Start-up logs of several vLLM versions and of NCCL, whole, broken off and hostile."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from poise.exporter.engines.startup_log import StartupLog, parse

from tests.recorded import INFO
from tests.startup_logs import V0, V1


def test_newest_start_tells_sizes_ranks_transports_and_that_it_is_ready() -> None:
    log = parse(V1)
    assert (log.version, log.sizes, log.worlds, log.ranks) == ("0.32.0", {"tensor": 2, "pipeline": 1, "data": 1}, {2}, {0, 1})
    assert (log.nccl, log.transports, log.ready, log.waiting) == ("2.27.3", {"P2P": 2}, True, False)


def test_old_start_tells_sizes_and_why_all_reduce_is_off() -> None:
    log = parse(V0)
    assert (log.version, log.size("tensor"), log.size("pipeline"), log.size("data")) == ("0.6.3", 4, 2, 1)
    assert (log.nccl, log.all_reduce_off, log.ready) == ("2.20.5", "more than two cards that only PCIe joins", False)


def test_real_start_of_vllm_without_cards_is_understood() -> None:
    log = parse((INFO / "tp2-startup.log").read_text().splitlines())
    assert (log.version, log.size("tensor"), log.worlds, log.ranks, log.ready) == ("0.32.0", 2, {2}, {0, 1}, True)


def test_only_the_last_start_of_a_file_counts() -> None:
    assert parse([*V0, *V1]) == parse(V1)


def test_known_ends_of_a_start_are_understood() -> None:
    assert parse(["ValueError: Total number of attention heads (4) must be divisible by tensor parallel size (3)."]).heads == (4, 3)
    assert parse(["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB"]).out_of_memory
    assert parse(["DEBUG [utils.py:1407] Waiting for 1 local, 1 remote core engine proc(s) to start."]).waiting
    assert parse(["NCCL INFO P2P is disabled between connected GPUs 0 and 1. You can repress this"]).p2p_off == (0, 1)


def test_log_of_something_else_says_nothing() -> None:
    assert not parse(["GET /metrics 200", "", "tensor_parallel_size=8"]).said_anything


@given(st.lists(st.text(max_size=60) | st.sampled_from(V1 + V0), max_size=12))
def test_no_lines_break_the_reader_and_nothing_of_the_text_is_kept(lines: list[str]) -> None:
    log = parse(lines)
    assert isinstance(log, StartupLog)
    assert "secret" not in repr(log)


@given(st.sampled_from(V1 + V0), st.integers(0, 300), st.text(max_size=20))
def test_no_change_of_a_real_line_breaks_the_reader(line: str, position: int, change: str) -> None:
    parse([line[:position] + change + line[position:]])


def test_endless_line_is_cut() -> None:
    assert parse(["x" * 200_000 + " rank 0 in world size 2 is assigned as"]).worlds == set()
