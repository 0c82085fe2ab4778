"""The figures of a step, from recorded results of `vllm bench serve`."""

from __future__ import annotations

import pytest
from poise.testbed.bench.figures import read_result
from poise.testbed.errors import TestbedError

from tests.unit.testbed.bench.runs import figures, recorded


def test_a_recorded_chat_is_read_whole_and_in_seconds() -> None:
    seen = figures()
    assert (seen.completed, seen.failed, seen.input_tokens, seen.output_tokens) == (64, 0, 6066, 3220)
    assert seen.output_tokens_per_second == pytest.approx(3220 / seen.duration_seconds)
    assert seen.latency["ttft"].p50 == pytest.approx(0.14474, abs=1e-5)
    assert seen.latency["e2el"].p99 == pytest.approx(3.66443, abs=1e-5)
    assert set(seen.latency) == {"ttft", "tpot", "itl", "e2el"}
    assert seen.goodput is None
    assert seen.raw["mean_ttft_ms"] == pytest.approx(211.2655, abs=1e-4)


def test_no_text_of_an_answer_and_no_path_is_kept() -> None:
    assert all(isinstance(value, int | float) for value in figures().raw.values())


def test_goodput_is_there_when_limits_were_given() -> None:
    seen = figures("goodput.json")
    assert seen.goodput == pytest.approx(0.81406, abs=1e-5)


def test_failures_are_counted_by_their_last_line_and_have_no_latency() -> None:
    seen = figures("dead.json")
    assert (seen.completed, seen.failed, dict(seen.latency)) == (0, 4, {})
    assert list(seen.errors.values()) == [4]
    assert next(iter(seen.errors)).startswith("aiohttp.client_exceptions.ClientConnectorError: Cannot connect to host 127.0.0.1:1")
    assert figures("too-long.json").errors == {"Bad Request": 3}


def test_answers_of_one_token_have_no_latency_between_tokens() -> None:
    one = recorded("chat.json") | {"itls": [[] for _ in range(64)], "mean_itl_ms": 0.0}
    assert set(read_result(one).latency) == {"ttft", "e2el"}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400])
def test_what_is_no_number_is_no_figure(value: float) -> None:
    """numpy writes NaN and Infinity into JSON where it divides by nothing."""
    seen = read_result(recorded("chat.json") | {"p99_itl_ms": value, "rtfx": value, "request_goodput": value})
    assert set(seen.latency) == {"ttft", "tpot", "e2el"}
    assert seen.goodput is None
    assert {"p99_itl_ms", "rtfx", "request_goodput"}.isdisjoint(seen.raw)
    with pytest.raises(TestbedError, match="lacks 'output_throughput'"):
        read_result(recorded("chat.json") | {"output_throughput": value})


def test_errors_hold_nothing_that_a_terminal_acts_on() -> None:
    seen = read_result(recorded("dead.json") | {"errors": ["first\nlast \x1b[31mred \udc80"]})
    assert seen.errors == {"last \\x1b[31mred \\udc80": 1}


def test_a_result_of_an_unknown_version_is_said() -> None:
    short = recorded("chat.json")
    del short["total_output_tokens"]
    with pytest.raises(TestbedError, match="lacks 'total_output_tokens': this version of vLLM is not known yet"):
        read_result(short)
