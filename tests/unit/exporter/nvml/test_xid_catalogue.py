"""The catalogue: complete, in our own words, and what it calls fatal."""

from __future__ import annotations

import pytest
from poise.exporter.nvml.xid_catalogue import CATALOGUE, FATAL, Severity, lookup


def test_every_entry_says_what_it_means_and_what_to_do() -> None:
    for code, xid in CATALOGUE.items():
        assert code == xid.code
        for text in (xid.name, xid.meaning, xid.action):
            assert text == text.strip()
            assert text
            assert not text.endswith(".")
            assert "|" not in text, "it stands in a table"


def test_codes_are_in_order_and_each_is_there_once() -> None:
    assert list(CATALOGUE) == sorted(CATALOGUE)


@pytest.mark.parametrize("code", [46, 48, 54, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, *range(144, 152), 155, 156, 158])
def test_what_the_rules_call_fatal_is_fatal(code: int) -> None:
    """Codes for which NVIDIA's catalogue asks for a reset, a restart, or a workflow for memory or links."""
    assert lookup(code).severity is Severity.FATAL
    assert code in FATAL


@pytest.mark.parametrize("code", [13, 31, 32, 43, 45, 94])
def test_faults_of_programs_are_told_apart(code: int) -> None:
    assert lookup(code).severity is Severity.APPLICATION


def test_units_have_their_numbers() -> None:
    assert [lookup(code).name for code in (39, 41, 70, 126, 135)] == [f"copy engine {number}" for number in (0, 2, 3, 10, 19)]
    assert lookup(98).name == "video decoder 7"


def test_a_code_that_is_not_there_is_said_to_be_unknown() -> None:
    xid = lookup(777)
    assert (xid.code, xid.severity) == (777, Severity.INFORMATION)
    assert "not in the catalogue" in xid.name
