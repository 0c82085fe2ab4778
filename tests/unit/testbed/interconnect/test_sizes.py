"""Message sizes as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poise.testbed.interconnect.arguments import CPU_SIZES, GPU_SIZES
from poise.testbed.interconnect.sizes import parse_sizes, show_size


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("1K..64K", (1024, 4096, 16384, 65536)),
        ("1K..6K", (1024, 4096, 6144)),
        ("1M", (1 << 20,)),
        ("4, 1KiB,1kb", (4, 1024)),
        ("8..16,1G", (8, 16, 1 << 30)),
    ],
)
def test_ranges_and_lists(text: str, sizes: tuple[int, ...]) -> None:
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize("text", ["", "0", "3", "1K..", "2K..1K", "1T", "17G", "1K..2K..3K", "-4", "1.5K"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no message size|from large to small"):
        parse_sizes(text)


def test_defaults_end_where_links_are_full_and_loopback_does_not_take_minutes() -> None:
    assert [len(parse_sizes(text)) for text in (GPU_SIZES, CPU_SIZES)] == [10, 8]
    assert show_size(parse_sizes(GPU_SIZES)[-1]) == "256 MiB"


@given(st.integers(1, 1 << 30))
def test_what_is_shown_is_read_again(quarter: int) -> None:
    size = quarter * 4
    assert parse_sizes(show_size(size).replace(" ", "")) == (size,)
