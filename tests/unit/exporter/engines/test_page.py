"""The text format: agrees with prometheus_client's parser on every valid page, refuses what breaks it or a limit, keeps nothing."""

from __future__ import annotations

import contextlib
import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from poise.exporter.engines.page import Limits, PageError, PageParser, Samples
from prometheus_client.parser import text_string_to_metric_families

from tests.recorded import CAPTURES

#: One page of each way of writing: single, several ranks, multiprocess, V0, through Ray, and the Rust front end's OpenMetrics.
RECORDED = [
    CAPTURES / f"{name}.prom"
    for name in ("single-server-after", "dp2api1-server-after", "api2-server-after", "generations/0.6.6-v0", "generations/0.33.0-ray")
]


def counted(samples: Samples) -> Counter[tuple[str, tuple[tuple[str, str], ...], str]]:
    return Counter((name, tuple(sorted(labels.items())), repr(value)) for name, series in samples.items() for labels, value in series)


def reference(text: str) -> Counter[tuple[str, tuple[tuple[str, str], ...], str]]:
    families = text_string_to_metric_families(text)
    return Counter(
        (sample.name, tuple(sorted(sample.labels.items())), repr(float(sample.value))) for family in families for sample in family.samples
    )


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_recorded_pages_read_as_prometheus_client_reads_them(path: object) -> None:
    data = (CAPTURES / str(path)).read_bytes()
    parser = PageParser()
    expected = reference(data.decode())
    assert counted(parser.parse(data)) == expected
    assert counted(parser.parse(data)) == expected  # from memory


def test_openmetrics_is_read_as_the_text_format() -> None:
    page = b"""# HELP a Something.
# TYPE a histogram
# UNIT a seconds
a_sum 1
a_count 2 1700000000.123
a_bucket{le="0.5"} 1 # {trace_id="ab c"} 0.25 1700000000.1
a_bucket{le="+Inf"} 2 1700000000.5 # {trace_id="#"} 1
# EOF
"""
    expected = {"a_sum": [({}, 1.0)], "a_count": [({}, 2.0)], "a_bucket": [({"le": "0.5"}, 1.0), ({"le": "+Inf"}, 2.0)]}
    parser = PageParser()
    assert parser.parse(page) == expected
    assert parser.parse(page) == expected


def test_the_rust_front_ends_openmetrics_is_read_as_prometheus_client_reads_it() -> None:
    data = (CAPTURES / "generations" / "0.33.0-rust.prom").read_bytes()
    assert counted(PageParser().parse(data)) == reference(data.decode())


NAMES = st.sampled_from(["a", "vllm:x_total", ":", "_", "A9:z", "le"])
LABEL_NAMES = st.sampled_from(["a", "le", "model_name", "_", "Z9"])
VALUES = st.floats().map(lambda value: {math.inf: "+Inf", -math.inf: "-Inf"}.get(value, "NaN" if value != value else repr(value)))
LABEL_VALUES = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\r"), max_size=12)


def escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


@st.composite
def lines(draw: st.DrawFn) -> str:
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return draw(st.sampled_from(["", "# comment", "# HELP x y", "#", "  "]))
    labels = draw(st.dictionaries(LABEL_NAMES, LABEL_VALUES, max_size=3))
    comma = draw(st.sampled_from(["", ","])) if labels else ""
    text = ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items()) + comma
    braces = f"{{{text}}}" if labels or draw(st.booleans()) else ""
    timestamp = draw(st.sampled_from(["", "", "", " 1700000000000"]))
    return f"{draw(NAMES)}{braces} {draw(VALUES)}{timestamp}"


@given(st.lists(lines(), max_size=5))
@settings(max_examples=150)
def test_generated_pages_read_as_prometheus_client_reads_them(page: list[str]) -> None:
    text = "".join(line + "\n" for line in page)
    parser = PageParser()
    assert counted(parser.parse(text.encode())) == reference(text)
    assert counted(parser.parse(text.encode())) == reference(text)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(PageError):
        PageParser().parse(data)


@pytest.mark.parametrize(
    "line",
    [
        "a",
        "a{",
        "a{}",
        'a{b="c"',
        'a{b="c}" 1',
        'a{b="c"} ',
        'a{b="c"} x',
        'a{b="c"} 1_0',
        'a{b="c"} 1 2 3',
        "a{b=c} 1",
        'a{b="c" d="e"} 1',
        "1a 1",
        "<!doctype html>",
        '{"json": 1}',
        'a{b="\\"} 1',
    ],
)
def test_a_line_that_is_no_sample_refuses_the_page_by_its_number(line: str) -> None:
    with pytest.raises(PageError, match="line 2 is no sample"):
        PageParser().parse(f"good 1\n{line}\n".encode())


def test_a_known_series_with_a_broken_value_refuses_the_page() -> None:
    parser = PageParser()
    parser.parse(b'a{b="c"} 1\n')
    with pytest.raises(PageError, match="line 1 is no sample"):
        parser.parse(b'a{b="c"} x\n')


def test_a_page_that_was_cut_off_is_refused() -> None:
    with pytest.raises(PageError, match="cut off"):
        PageParser().parse(b"a 1\nb 2")


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(PageError, match="UTF-8"):
        PageParser().parse(b"a\xff 1\n")


def test_a_page_of_many_blocks_is_read_whole_and_its_lines_are_counted_through() -> None:
    page = b"".join(b'a{b="%050d"} %d\n' % (number, number) for number in range(7_000))
    assert len(page) > 3 * 128 * 1024
    samples = PageParser().parse(page)["a"]
    assert [value for _, value in samples] == list(range(7_000))
    with pytest.raises(PageError, match="line 7001 is no sample"):
        PageParser().parse(page + b"x\n")


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        (Limits(size=10), "larger than 10 bytes"),
        (Limits(lines=2), "more than 2 lines"),
        (Limits(series=2), "more than 2 series"),
        (Limits(line_length=10), "longer than 10 characters"),
        (Limits(label_length=3), "label of more than 3 characters"),
        (Limits(labels=1), "more than 1 labels"),
    ],
)
def test_every_limit_refuses_the_page_and_says_which(limits: Limits, problem: str) -> None:
    page = b'a{b="long value",c="d"} 1\nb 2\nc 3\n'
    with pytest.raises(PageError, match=problem):
        PageParser(limits=limits).parse(page)


def test_reading_stops_when_the_time_is_over() -> None:
    page = b"".join(b"a%d 1\n" % number for number in range(5000))
    with pytest.raises(PageError, match="too long to read"):
        PageParser().parse(page, expired=lambda: True)


def test_only_wanted_samples_are_kept_but_all_are_checked() -> None:
    parser = PageParser(lambda name: name == "a")
    assert parser.parse(b"a 1\nb 2\n") == {"a": [({}, 1.0)]}
    with pytest.raises(PageError):
        parser.parse(b"a 1\nb x\n")


def test_labels_that_change_with_every_page_do_not_fill_memory() -> None:
    parser = PageParser(limits=Limits(series=100))
    for number in range(50):
        parser.parse(b"".join(b'a{b="%d-%d"} 1\n' % (number, item) for item in range(90)))
    assert len(parser._known) <= 200


def test_problems_do_not_quote_the_page() -> None:
    with pytest.raises(PageError) as caught:
        PageParser().parse(b"sk-planted-secret\n")
    assert "planted" not in str(caught.value)
