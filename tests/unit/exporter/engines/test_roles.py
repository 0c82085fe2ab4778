"""What an engine's own environment says of it, and what cannot be said there."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from poise.exporter.engines import roles
from poise.exporter.engines.roles import Declared, declared
from poise.exporter.procfs import ENVIRONMENT
from poise.exporter.snapshot import Role

ALL = (roles.NAME, roles.DEPLOYMENT, roles.ROLE)


def test_the_variables_are_among_those_that_are_read() -> None:
    assert set(ALL) <= ENVIRONMENT


def test_all_three_may_be_said() -> None:
    said = declared({roles.NAME: "qwen-p0", roles.DEPLOYMENT: "qwen", roles.ROLE: "prefill", "OTHER": "x"})
    assert said == Declared("qwen-p0", "qwen", Role.PREFILL)


def test_an_empty_value_is_none_as_a_label_that_is_not_there_gives_it() -> None:
    assert declared(dict.fromkeys(ALL, "")) == declared({}) == Declared()


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        (roles.ROLE, "both", "POISE_ENGINE_ROLE=both is left out: it is not one of mixed, prefill, decode"),
        (roles.ROLE, "unknown", "is left out"),
        (roles.NAME, "localhost:8000", "POISE_ENGINE_NAME is left out: name 'localhost:8000' is a loopback address"),
        (roles.DEPLOYMENT, "two words", "POISE_ENGINE_DEPLOYMENT is left out: name 'two words' must be letters"),
    ],
)
def test_what_cannot_be_is_left_out_and_said(variable: str, value: str, words: str) -> None:
    said = declared({variable: value})
    assert (said.name, said.deployment, said.role) == ("", "", None)
    (problem,) = said.problems
    assert words in problem


@settings(max_examples=50)
@given(st.dictionaries(st.sampled_from(ALL), st.text(max_size=200)))
def test_no_environment_breaks_it(variables: dict[str, str]) -> None:
    said = declared(variables)
    assert said.role in (None, Role.MIXED, Role.PREFILL, Role.DECODE)
    assert said.name.isprintable()
    assert said.deployment.isprintable()
