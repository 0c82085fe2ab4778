"""Numbers and addresses on the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poise.testbed import argument_types as types

ALL = (
    *(types.count, types.positive, types.clients, types.port, types.seed),
    *(types.above_zero, types.share, types.duration, types.pause, types.server_url),
)


@pytest.mark.parametrize(
    ("kind", "word", "value"),
    [
        (types.count, "0", 0),
        (types.positive, "999999999999", 999_999_999_999),
        (types.clients, "10000", 10_000),
        (types.port, "0", 0),
        (types.port, "65535", 65535),
        (types.seed, "4294967295", 2**32 - 1),
        (types.above_zero, "1e-3", 0.001),
        (types.share, "0", 0.0),
        (types.duration, "0.5", 0.5),
        (types.pause, "0", 0.0),
        (types.server_url, "http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        (types.server_url, "http://localhost:8000/", "http://localhost:8000"),
        (types.server_url, "http://[::1]:80", "http://[::1]:80"),
    ],
)
def test_what_is_meant_is_taken(kind: Callable[[str], Any], word: str, value: object) -> None:
    assert kind(word) == value


@pytest.mark.parametrize(
    ("kind", "word", "said"),
    [
        (types.count, "-1", "'-1' is not 0 or more"),
        (types.positive, "0", "'0' is not 1 or more"),
        (types.positive, "1e3", "'1e3' is not 1 or more"),
        (types.positive, "9" * 5000, f"'{'9' * 40}'… is not 1 or more"),
        (types.positive, "\N{SUPERSCRIPT TWO}", r"'\xb2' is not 1 or more"),
        (types.clients, "1000000", "'1000000' is no number from 1 to 10000"),
        (types.port, "99999999", "'99999999' is no number from 0 to 65535"),
        (types.port, "-1", "'-1' is no number from 0 to 65535"),
        (types.seed, "4294967296", "'4294967296' is no number from 0 to 4294967295"),
        *((types.above_zero, word, f"'{word}' is no number above 0") for word in ("0", "nan", "inf", "x", "-2")),
        *((types.share, word, f"'{word}' is no number from 0 to below 1") for word in ("1", "nan", "5", "-0.1")),
        *(
            (types.duration, word, f"'{word}' is no number of seconds above 0 and up to 31622400 (a year)")
            for word in ("nan", "inf", "-1", "0", "1e300", "")
        ),
        *((types.pause, word, f"'{word}' is no number of seconds from 0 to") for word in ("nan", "inf", "-1")),
        (types.server_url, "ftp://x", "url 'ftp://x' is not of the form http://HOST:PORT"),
        (types.server_url, "nonsense", "url 'nonsense' is not of the form http://HOST:PORT"),
        (types.server_url, "http://127.0.0.1:99999", "url is not valid: the port is no number"),
        (types.server_url, "https://127.0.0.1:8000", "(https and paths are not supported)"),
        (types.server_url, "http://127.0.0.1:8000/v1", "(https and paths are not supported)"),
        (types.server_url, "http://127.0.0.1:8000/\x1b[31m", r"'http://127.0.0.1:8000/\x1b[31m' is not of the form"),
        (types.server_url, "http://user:planted@127.0.0.1:8000", "url holds a user or password, which would show in logs"),
    ],
)
def test_what_cannot_be_meant_is_said(kind: Callable[[str], Any], word: str, said: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        kind(word)
    assert said in str(caught.value)
    assert "planted" not in str(caught.value)


@given(st.sampled_from(ALL), st.text(max_size=60))
def test_no_word_does_more_than_be_refused(kind: Callable[[str], Any], word: str) -> None:
    said = ""
    try:
        kind(word)
    except argparse.ArgumentTypeError as error:
        said = str(error)
    assert said.isprintable()
