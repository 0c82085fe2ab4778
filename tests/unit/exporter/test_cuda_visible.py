"""CUDA_VISIBLE_DEVICES as CUDA reads it: ordinals, UUIDs, prefixes, the end at the first entry that is no card."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poise.exporter.cuda_visible import visible_cards
from poise.exporter.snapshot import ContainerCards, EngineConfig, Gpu, GpuIdentity

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


# ------------------------------------------------------------------------------------------------------------ in a container
MINORS = ("4", "3", "2", "1")  # NVML's order need not be that of the device nodes
NODE = [Gpu(index, uuid, GpuIdentity(name="NVIDIA H20", minor=MINORS[index])) for index, uuid in enumerate(UUIDS)]


def seen_inside(
    minors: set[int] | None, asked: str | None, text: str | None, gpus: list[Gpu] = NODE
) -> list[tuple[int, int | None]] | None:
    container = ContainerCards(None if minors is None else frozenset(minors), asked)
    cards = visible_cards(gpus, EngineConfig(cuda_visible_devices=text, environment_read=True, container=container))
    return None if cards is None else [(card.gpu.index, card.cuda_index) for card in cards]


@pytest.mark.parametrize(
    ("minors", "asked", "text", "cards"),
    [
        ({2, 3}, "whatever", None, [(1, 0), (2, 1)]),
        ({2, 3}, None, "1,0", [(2, 0), (1, 1)]),
        ({2, 3}, None, "1,2", [(2, 0)]),
        ({2, 3}, None, "", []),
        ({2, 3}, None, "GPU-cc44", []),
        ({2, 3}, None, "GPU-bb33,GPU-aa22", [(2, 0), (1, 1)]),
        ({1, 2, 3, 4}, "all", "3", [(3, 0)]),
        ({2, 9}, None, None, None),
        ({2, 9}, None, "GPU-bb33", [(2, 0)]),
        (set(), None, None, []),
        (set(), "void", "0", []),
        (set(), "all", "0", [(0, 0)]),
        (set(), "2,0", "1", [(2, 0)]),
        (set(), "2,7", "0", None),
        (set(), "GPU-cc44-3", None, [(3, 0)]),
        (set(), "MIG-GPU-cc44/1/0", None, None),
        (set(), "0:1", None, None),
        (None, "1", None, [(1, 0)]),
        (None, "none", None, None),
        (None, None, "0", None),
        ({2, 3}, None, "MIG-1", None),
    ],
)
def test_in_a_container_everything_counts_its_cards_only(
    minors: set[int] | None, asked: str | None, text: str | None, cards: list[tuple[int, int]] | None
) -> None:
    assert seen_inside(minors, asked, text) == cards


def test_cards_of_a_container_are_in_the_order_of_the_bus_if_they_are_alike() -> None:
    unlike = [*NODE[:3], Gpu(3, UUIDS[3], GpuIdentity(name="NVIDIA T4", minor="1"))]
    assert seen_inside({2, 3}, None, "1", unlike) == [(2, 0)]
    assert seen_inside({1, 2}, None, "1", unlike) is None
    assert seen_inside({1, 2}, None, "GPU-cc", unlike) == [(3, 0)]


@pytest.mark.parametrize(
    ("text", "container", "told"),
    [
        ("0", None, True),
        (None, None, False),
        (None, ContainerCards(frozenset({1}), "GPU-x"), True),
        (None, ContainerCards(frozenset({1}), None), True),
        (None, ContainerCards(frozenset({1}), "all"), False),
        ("0", ContainerCards(frozenset({1}), "all"), True),
    ],
)
def test_who_was_told_which_cards_to_use(text: str | None, container: ContainerCards | None, told: bool) -> None:
    assert EngineConfig(cuda_visible_devices=text, container=container).told_cards is told


@given(
    st.sets(st.integers(0, 5)) | st.none(), st.none() | st.sampled_from(["all", "none", "0,1", "GPU-aa", "0:0", "x"]), st.text(max_size=8)
)
def test_any_container_gives_only_cards_of_the_node(minors: set[int] | None, asked: str | None, text: str) -> None:
    cards = seen_inside(minors, asked, text)
    assert cards is None or {index for index, _ in cards} <= set(range(4))
