"""The exporter's checks as the page reads them: the real document round trip, and strange answers."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poise.dashboard.checks_document import ChecksError, read
from poise.exporter.checks.document import document
from poise.exporter.checks.result import State, Status

from tests.scenes import card, engine, node, play


def test_what_the_exporter_writes_is_what_the_page_reads() -> None:
    snapshot = node([card(0, busy=0.0), card(1, busy=0.0)], [engine(cards=(0,), visible=(0,), environment="0", tensor=1)])
    outcome = play(lambda _: snapshot, 3)
    found = read(json.dumps(document(snapshot, outcome)).encode())
    assert found.node == "n1"
    assert found.state is outcome.verdict.state
    assert [finding.result.check for finding in found.checks] == [result.check for result in outcome.results]
    assert [finding.result.sentence for finding in found.lines] == [line.sentence for line in outcome.verdict.lines]
    assert any(finding.subject.startswith("qwen-32b on n1:8000") for finding in found.checks)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "no verdict"),
        (b"{}", "no verdict"),
        (b'{"verdict": {}, "format": 2}', "different versions"),
    ],
)
def test_another_form_is_named(body: bytes, words: str) -> None:
    with pytest.raises(ChecksError, match=words):
        read(body)


def test_strange_values_are_cut_and_unknown_words_are_unknown() -> None:
    result = {"check": "x" * 500, "status": "great", "state": ["ok"], "evidence": {str(n): "y" * 999 for n in range(99)}, "since": "then"}
    body = {"format": 1, "verdict": {"state": "superb", "lines": "none"}, "checks": [result, 3, None], "simulated": "yes", "time": True}
    found = read(json.dumps(body).encode())
    assert (found.state, found.lines, found.simulated, found.time) == (State.UNKNOWN, (), False, 0.0)
    (finding,) = found.checks
    assert (finding.result.status, finding.result.state, finding.result.since) == (Status.UNKNOWN, State.UNKNOWN, None)
    assert len(finding.result.check) == 80
    assert len(finding.result.evidence) == 24
    assert max(len(text) for text in finding.result.evidence.values()) == 300


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_any_json_in_any_place_is_read(value: object) -> None:
    body = {"format": 1, "node": value, "verdict": {"lines": value}, "checks": [value, {"evidence": value, "since": value, "title": value}]}
    assert read(json.dumps(body).encode()) is not None
