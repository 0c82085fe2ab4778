"""YAML as plain values: text stays text, a key stands once, and nothing of any size or kind gets past a message."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poise.exporter.web import document

from tests.complaints import complaint


def test_scalars_stay_text_and_an_empty_value_is_none() -> None:
    text = "yes: no\n0123: 1e3\nempty:\nnull: ~\n'quoted': ''\nlist: [1, true]\n"
    assert document.read(text) == {"yes": "no", "0123": "1e3", "empty": None, "null": None, "quoted": "", "list": ["1", "true"]}
    assert document.read("# nothing but words\n") is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb: 2\na: 3\n", "line 3: the key 'a' stands twice"),
        ("a: [1, 2\n", "not YAML"),
        ("a: 1\n---\nb: 2\n", "not YAML"),
        ("a: \x00\n", "not YAML"),
        ("a: *nobody\n", "not YAML"),
        ("[a]: 1\n", "a key must be a word"),
        ("a: &a [*a]\n", "nested too deeply"),
        ("[" * 1000, "nested too deeply"),
        ("{a: " * 30 + "1" + "}" * 30, "nested too deeply"),
    ],
)
def test_what_is_no_document_is_said_with_its_line(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=r"line|not YAML") as error:
        document.read(text)
    assert words in str(error.value)


def test_aliases_that_multiply_end_at_the_limit() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    with pytest.raises(ValueError, match="too large"):
        document.read("\n".join(lines))


def test_a_message_quotes_no_value() -> None:
    for text in ("a: 'hunter2\n", "a: hunter2: b\n", "a: [hunter2\nb\n", "\thunter2: 1"):
        with pytest.raises(ValueError, match="not YAML") as error:
            document.read(text)
        assert "hunter2" not in str(error.value)


@given(st.text(max_size=120) | st.text(alphabet="ab:- \n[]{}&*!|>'\"#%@,?", max_size=60))
def test_no_text_breaks_the_reading(text: str) -> None:
    assert complaint(lambda: document.read(text), ValueError) != "an empty message"


def test_without_pyyaml_the_way_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ValueError, match=r"needs PyYAML, which is not installed: in a clone, pip install '\.\[web-config\]'"):
        document.read("a: 1")
