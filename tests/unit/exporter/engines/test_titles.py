"""Titles of vLLM's processes, of all versions since 0.10, whole and cut, and titles of others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poise.exporter.engines.titles import TITLE_LIMIT, Kind, Title, parse_comm, parse_title


@pytest.mark.parametrize(
    ("text", "kind", "tensor", "pipeline", "data"),
    [
        ("VLLM::Worker", Kind.WORKER, None, None, None),
        ("VLLM::Worker_TP1", Kind.WORKER, 1, None, None),
        ("VLLM::Worker_DP0_PP1_TP3_EP1", Kind.WORKER, 3, 1, 0),
        ("VLLM::Worker_DP1_PP0_PCP1_TP12_DCP3", Kind.WORKER, 12, 0, 1),
        ("VLLM::Worker_TP0_DP2", Kind.WORKER, 0, None, 2),
        ("VLLM::EngineCore", Kind.ENGINE_CORE, None, None, None),
        ("VLLM::EngineCore_DP1", Kind.ENGINE_CORE, None, None, 1),
        ("VLLM::EngineCore_0", Kind.ENGINE_CORE, None, None, 0),
        ("VLLM::DPEngineCore_3", Kind.ENGINE_CORE, None, None, 3),
        ("VLLM::EngineCoreProc_2", Kind.ENGINE_CORE, None, None, 2),
        ("VLLM::APIServer_0", Kind.API_SERVER, None, None, None),
        ("VLLM::DPCoordinator", Kind.COORDINATOR, None, None, None),
        ("team-a::Worker_TP0", Kind.WORKER, 0, None, None),
    ],
)
def test_titles_tell_kind_and_ranks(text: str, kind: Kind, tensor: int | None, pipeline: int | None, data: int | None) -> None:
    assert parse_title(text) == Title(text, kind, tensor, pipeline, data)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Worker_TP0",
        "vllm::router",
        "VLLM::",
        "::Worker",
        "VLLM::Workers",
        "VLLM::Worker_tp0",
        "VLLM::Worker_TP0 --x",
        "std::vector",
        "a b::Worker",
        "/bin/a::Worker",
        "ray::RayWorkerWrapper",
    ],
)
def test_other_titles_are_nobodys(text: str) -> None:
    assert parse_title(text) is None


@pytest.mark.parametrize(
    ("comm", "kind"),
    [
        ("VLLM::Worker_TP", Kind.WORKER),
        ("VLLM::Worker_DP", Kind.WORKER),
        ("VLLM::EngineCor", Kind.ENGINE_CORE),
        ("VLLM::APIServer", Kind.API_SERVER),
        ("VLLM::DPCoordin", Kind.COORDINATOR),
        ("team-a::EngineC", Kind.ENGINE_CORE),
        ("VLLM::Worker", Kind.WORKER),
    ],
)
def test_a_name_cut_by_the_kernel_still_tells_the_kind(comm: str, kind: Kind) -> None:
    title = parse_comm(comm)
    assert title is not None
    assert title.kind is kind
    assert title.tp_rank is None


@pytest.mark.parametrize("comm", ["python3", "VLLM::", "a-long-prefix::", "kworker/u4:2-ev", "abcdefgh::other_"])
def test_other_names_are_nobodys(comm: str) -> None:
    assert parse_comm(comm) is None


RANK = st.none() | st.integers(0, 99_999)


@given(RANK, RANK, RANK, RANK, st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]{0,8}", fullmatch=True))
def test_every_title_that_vllm_can_make_is_read_back(
    data: int | None, pipeline: int | None, tensor: int | None, expert: int | None, prefix: str
) -> None:
    parts = (("DP", data), ("PP", pipeline), ("TP", tensor), ("EP", expert))
    text = f"{prefix}::Worker" + "".join(f"_{name}{rank}" for name, rank in parts if rank is not None)
    title = parse_title(text)
    assert title is not None
    assert (title.dp_rank, title.pp_rank, title.tp_rank) == (data, pipeline, tensor)
    assert len(title.text) <= TITLE_LIMIT
    cut = parse_comm(text.encode()[:15].decode(errors="ignore"))
    assert cut is None or cut.kind is Kind.WORKER


@given(st.text(max_size=100))
def test_no_text_breaks_the_reader(text: str) -> None:
    parse_title(text)
    parse_comm(text[:15])
