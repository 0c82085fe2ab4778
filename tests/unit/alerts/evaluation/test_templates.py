"""The template language of labels and annotations. tests/contract/test_evaluator.py holds the same texts against promtool."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poise.alerts.evaluation.templates import FUNCTIONS, TemplateError, go_float, parse_template


def expanded(text: str, value: float = 0.97, **labels: str) -> str:
    return parse_template(text).expand(labels, value, {"cluster": "c1"})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.97, "0.97"),
        (1e6, "1e+06"),
        (123456.0, "123456"),
        (1234567.0, "1.234567e+06"),
        (0.0001, "0.0001"),
        (0.00001234, "1.234e-05"),
        (-2.5, "-2.5"),
        (0.0, "0"),
        (100.0, "100"),
        (1e21, "1e+21"),
        (math.nan, "NaN"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
    ],
)
def test_a_number_stands_as_go_writes_it(value: float, text: str) -> None:
    assert go_float(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_can_be_read_back(value: float) -> None:
    assert float(go_float(value)) == value


@pytest.mark.parametrize(
    ("text", "value", "wanted"),
    [
        ("GPU {{ $labels.gpu }} of {{$labels.engine}}", 0.97, "GPU 1 of e"),
        ("{{ .Labels.gpu }} {{ .Value }} {{ $externalLabels.cluster }}", 2.0, "1 2 c1"),
        ("[{{ $labels.absent }}]", 0.97, "[]"),
        ("{{ $value | humanizePercentage }}", 0.97, "97%"),
        ("{{ humanizePercentage $value }}", 0.97, "97%"),
        ("{{ $value | humanize }}", 12345.0, "12.35k"),
        ("{{ $value | humanize }}", 0.0123, "12.3m"),
        ("{{ $value | humanize1024 }}B", 80 * 2.0**30, "80GiB"),
        ("{{ $value | humanizeDuration }}", 3661.0, "1h 1m 1s"),
        ("{{ $value | humanizeDuration }}", 0.012, "12ms"),
        ("{{ $value | humanizeDuration }}", 7.5, "7.5s"),
        ("{{ $value | humanizeTimestamp }}", 1435065584.128, "2015-06-23 13:19:44.128 +0000 UTC"),
        ('{{ $value | printf "%.1f" }} s', 2.345, "2.3 s"),
        ('{{ printf "%.0f%%" $value }}', 97.4, "97%"),
        ("{{ $labels.number | humanize }}", 0.0, "2k"),
    ],
)
def test_what_stands_in_braces_is_filled_in(text: str, value: float, wanted: str) -> None:
    assert expanded(text, value, gpu="1", engine="e", number="2000") == wanted


def test_braces_with_dashes_take_the_blanks_beside_them() -> None:
    assert expanded("a  {{- $value -}}  b", 1.0) == "a1b"


def test_a_label_that_is_no_number_says_so_in_the_text_and_breaks_nothing() -> None:
    assert expanded("{{ $labels.gpu | humanize }}", gpu="one") == "<error expanding template: humanize needs a number, not 'one'>"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('{{ query "up" }}', "'query' is not supported"),
        ("{{ if $value }}x{{ end }}", "'if' is not supported"),
        ("{{ $labels.gpu | toUpper }}", "'toUpper' is not supported"),
        ("{{ $labels }}", r"'\$labels' is not supported"),
        ("{{ $value", "has no closing braces"),
        ("{{" * 20_000, "has no closing braces"),
        ("{{ $value " + "| '" * 20_000 + " }}", "is not supported"),
        ('{{ $value | printf "%.1f }}', "a quote is not closed"),
        ('{{ $value | printf "%99999999999999999999f" }}', "99999999999999999999 is too wide; at most 1000"),
        ('{{ $value | printf "%.1001f" }}', "1001 is too wide"),
        ('{{ printf "%1001%%1f" $value }}', "1001 is too wide"),
        ('{{ printf "%d" $value }}', "is not supported"),
        ('{{ printf "%s %s" $value }}', "is not supported"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(text: str, named: str) -> None:
    with pytest.raises(TemplateError, match=named):
        parse_template(text)


@pytest.mark.parametrize("step", [*sorted(FUNCTIONS), 'printf "%1000.1000f"', 'printf "%+e"', 'printf "%s"'])
@pytest.mark.parametrize("value", [1e306, 1.7976931348623157e308, -1e308, 5e-324, math.inf, math.nan])
def test_every_function_takes_every_number(step: str, value: float) -> None:
    assert expanded(f"{{{{ $value | {step} }}}}", value)
    assert expanded(f"{{{{ $labels.number | {step} }}}}", number=repr(value))


def test_a_bar_in_quotes_is_text() -> None:
    assert expanded('{{ $value | printf "|%.0f|" | printf "<%s>" }}', 1.0) == "<|1|>"


@given(st.text('{}-| "$.valuehmizprntf%s1', max_size=60))
def test_any_text_is_a_template_or_refused(text: str) -> None:
    with contextlib.suppress(TemplateError):
        parse_template(text).expand({}, 1.5, {})


@given(st.text(max_size=40))
def test_any_text_without_braces_stays_as_it_is(text: str) -> None:
    if "{{" not in text:
        assert expanded(text) == text
