"""The text format: what stands on a page, what is refused with which words, and that nothing else ever comes out."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poise.history.text_format import PageError, PageReader, Series, series
from prometheus_client.parser import text_string_to_metric_families

from tests.node_scenes import eight_cards


def read(text: str, **limits: int) -> dict[Series, float]:
    return PageReader(**limits).read(text.encode())


def test_name_labels_and_value_are_read() -> None:
    page = '# HELP a Help.\n# TYPE a gauge\na{gpu="0",uuid="GPU-x"} 0.5\n\nb 3\n'
    assert read(page) == {series("a", {"gpu": "0", "uuid": "GPU-x"}): 0.5, series("b", {}): 3.0}


def test_label_order_and_empty_labels_do_not_make_another_series() -> None:
    (one,) = read('a{y="2",x="1",z=""} 1\n')
    assert one == series("a", {"x": "1", "y": "2"})
    assert one.label("z") == ""


def test_escapes_commas_and_braces_in_values_are_kept() -> None:
    (one,) = read('a{x="q\\"b\\\\n\\nl,{}=}",y="é\u2028 z"} 1\n')
    assert one.labels == {"x": 'q"b\\n\nl,{}=}', "y": "é\u2028 z"}


def test_timestamps_and_special_values_are_understood() -> None:
    values = read("a 1 1700000000000\nb +Inf\nc -inf\nd NaN\ne 1e-3\nf .5\n")
    assert [values[series(name, {})] for name in "abcef"] == [1, math.inf, -math.inf, 0.001, 0.5]
    assert math.isnan(values[series("d", {})])


def test_of_a_series_that_stands_twice_the_first_counts() -> None:
    assert read("a 1\na 2\n") == {series("a", {}): 1.0}


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("a\n", "line 1: expected a value"),
        ("# x\na 1_000\n", "line 2: not a number"),
        ("a 0x10\n", "not a number"),
        ("a{x=1} 1\n", "cannot read the labels of a"),
        ('a{x="1" 1\n', "line 1"),
        ('a{x="1",x="2"} 1\n', "label x stands twice on a"),
        ('1a{x="1"} 1\n', "not a metric name"),
        ("<html>hello</html>\n", "line 1"),
        ("a 1 2 3\n", "expected a value"),
    ],
)
def test_a_broken_page_is_refused_with_line_and_reason(page: str, words: str) -> None:
    with pytest.raises(PageError, match=words):
        read(page)


def test_limits_are_named() -> None:
    with pytest.raises(PageError, match="more than 2 series"):
        read("a 1\nb 1\nc 1\n", max_series=2)
    with pytest.raises(PageError, match="label x of a is longer than 4096 characters"):
        read(f'a{{x="{"y" * 5000}"}} 1\n')
    with pytest.raises(PageError, match="more than 64 labels on a"):
        read("a{" + ",".join(f'l{n}="1"' for n in range(65)) + "} 1\n")
    with pytest.raises(PageError, match="the labels of a are longer than 16384 characters together"):
        read("a{" + ",".join(f'l{n}="{"y" * 4_000}"' for n in range(5)) + "} 1\n")
    with pytest.raises(PageError, match="not UTF-8"):
        PageReader().read(b'a{x="\xff"} 1\n')


def test_the_second_page_uses_the_label_sets_of_the_first() -> None:
    reader = PageReader()
    first = reader.read(b'a{x="1"} 1\n')
    second = reader.read(b'a{x="1"} 2\nb 1\n')
    assert next(iter(first)) is next(iter(second))
    reader.read(b"b 1\n")
    assert next(iter(reader.read(b'a{x="1"} 3\n'))) is not next(iter(first))


def test_a_whole_page_reads_as_the_reference_parser_reads_it() -> None:
    page = eight_cards().metrics(100.0)
    expected = {
        (sample.name, tuple(sorted((k, v) for k, v in sample.labels.items() if v))): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }
    found = {(one.name, tuple(one.labels.items())): value for one, value in PageReader().read(page).items()}
    assert found == expected


@given(st.dictionaries(st.from_regex(r"\A[a-z][a-z0-9_]{0,8}\Z"), st.text(max_size=40), max_size=5), st.floats(allow_nan=False))
def test_any_label_values_come_back_as_written(labels: dict[str, str], value: float) -> None:
    escaped = {k: v.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"') for k, v in labels.items()}
    text = "m{" + ",".join(f'{k}="{v}"' for k, v in escaped.items()) + "} " + repr(value)
    ((one, found),) = PageReader().read(text.encode("utf-8", "replace")).items()
    kept = {k: v.encode("utf-8", "replace").decode() for k, v in labels.items() if v}
    assert (one.labels, found) == (kept, value)


@given(st.binary(max_size=300))
def test_whatever_bytes_come_the_answer_is_samples_or_a_page_error(page: bytes) -> None:
    with contextlib.suppress(PageError):
        assert PageReader().read(page) is not None
