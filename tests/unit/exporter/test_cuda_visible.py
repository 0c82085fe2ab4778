"""CUDA_VISIBLE_DEVICES as CUDA reads it: ordinals, UUIDs, prefixes, the end at the first entry that is no card."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poise.exporter.cuda_visible import visible_cards
from poise.exporter.snapshot import EngineConfig, Gpu, GpuIdentity

UUIDS = ["GPU-aa11-0", "GPU-aa22-1", "GPU-bb33-2", "GPU-cc44-3"]
ALIKE = [Gpu(index, uuid, GpuIdentity(name="NVIDIA H20")) for index, uuid in enumerate(UUIDS)]
UNLIKE = [*ALIKE[:3], Gpu(3, UUIDS[3], GpuIdentity(name="NVIDIA T4"))]


def seen(text: str | None, gpus: list[Gpu] = ALIKE, order: str | None = None, *, read: bool = True) -> list[tuple[int, int | None]] | None:
    cards = visible_cards(gpus, EngineConfig(cuda_visible_devices=text, cuda_device_order=order, environment_read=read))
    return None if cards is None else [(card.gpu.index, card.cuda_index) for card in cards]


@pytest.mark.parametrize(
    ("text", "indices"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        (" ", []),
        ("0", [0]),
        ("1,0", [1, 0]),
        (" 2 , 3 ", [2, 3]),
        ("0,2,-1,1", [0, 2]),
        ("0,9,1", [0]),
        ("9", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0,,1", [0]),
        ("0x1", []),
        ("0,1.5", [0]),
        ("GPU-bb33-2", [2]),
        ("gpu-BB33-2", [2]),
        ("GPU-b,GPU-c", [2, 3]),
        ("GPU-aa,0", []),
        ("GPU-", []),
        ("GPU-aa1,1", [0, 1]),
        ("GPU-zz,0", []),
        ("0,0", []),
        ("1,GPU-aa22", []),
        ("0,\N{ARABIC-INDIC DIGIT ONE}", [0]),
    ],
)
def test_lists_are_read_as_cuda_reads_them(text: str | None, indices: list[int]) -> None:
    assert seen(text) == [(index, number) for number, index in enumerate(indices)]


def test_ordinals_on_unlike_cards_are_unknown_unless_in_bus_order() -> None:
    assert seen("0,1", UNLIKE) is None
    assert seen("0,1", UNLIKE, "FASTEST_FIRST") is None
    assert seen("1", UNLIKE, "PCI_BUS_ID") == [(1, 0)]
    assert seen("GPU-cc", UNLIKE) == [(3, 0)]
    assert seen(None, UNLIKE) == [(0, None), (1, None), (2, None), (3, None)]
    assert seen("", UNLIKE) == []


def test_what_could_not_be_read_is_unknown() -> None:
    assert seen("0", read=False) is None
    assert seen(None, read=False) is None
    assert seen("0", []) is None
    assert seen("MIG-123") is None
    assert seen("0,MIG-GPU-x/1/0") is None


ENTRIES = st.sampled_from(["0", "1", "2", "3", "4", "-1", "", "x", "GPU-a", "GPU-b", *UUIDS]) | st.text(max_size=5)


@given(st.lists(ENTRIES, max_size=6).map(",".join), st.sampled_from([None, "PCI_BUS_ID", "FASTEST_FIRST"]))
def test_any_list_gives_different_cards_numbered_in_its_order(text: str, order: str | None) -> None:
    for gpus in (ALIKE, UNLIKE):
        cards = seen(text, gpus, order)
        if cards is not None:
            assert len({index for index, _ in cards}) == len(cards)
            assert [number for _, number in cards] == list(range(len(cards)))


@given(st.lists(st.sampled_from(range(4)), unique=True), st.text(st.characters(exclude_characters=",Mm"), min_size=1))
def test_nothing_behind_an_entry_that_is_no_card_counts(indices: list[int], junk: str) -> None:
    text = ",".join([*map(str, indices), "!" + junk, "0"])
    assert seen(text) == [(index, number) for number, index in enumerate(indices)]
