"""Our reading of a JSON schema beside that of the package jsonschema, and the words for what is wrong."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from poise.testbed.bench import run
from poise.testbed.bench.schema import DEEPEST, KEYWORDS, problem

from tests.unit.testbed.bench.damage import Place, damaged
from tests.unit.testbed.bench.runs import document


def schemas(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The schema and all within it."""
    yield schema
    for key in ("properties", "$defs"):
        for inner in schema.get(key, {}).values():
            yield from schemas(inner)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from schemas(schema[key])


def open_schema() -> dict[str, Any]:
    """The schema of runs, without its bans on further fields, which we lift as well."""
    schema = copy.deepcopy(dict(run.schema()))
    for each in schemas(schema):
        if each.get("additionalProperties") is False:
            del each["additionalProperties"]
    return schema


def test_every_keyword_of_the_schema_is_one_that_is_looked_at() -> None:
    assert {key for each in schemas(dict(run.schema())) for key in each} <= KEYWORDS


@settings(max_examples=60, deadline=None)
@given(damaged())
def test_what_jsonschema_refuses_we_refuse(found: tuple[Place, object]) -> None:
    _, content = found
    validator = jsonschema.Draft202012Validator(OPEN)
    if problem(content, run.schema()) is None:
        validator.validate(content)


OPEN = open_schema()


def test_a_run_of_a_newer_version_with_further_fields_is_read() -> None:
    content = document()
    content["weather"] = "rain"
    content["steps"][0]["client"]["latency"]["ttft"]["p999"] = 1.0
    assert problem(content, run.schema()) is None


NESTED: object = 1
for _ in range(DEEPEST + 1):
    NESTED = [NESTED]


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("steps", 0, "client", "output_tokens_per_second"), "fast", '"fast" and has to be a number'),
        (("steps", 0, "client", "output_tokens_per_second"), float("nan"), "NaN and has to be a finite number"),
        (("steps", 0, "client", "output_tokens_per_second"), float("inf"), "Infinity and has to be a finite number"),
        (("steps", 0, "client", "output_tokens_per_second"), -5, "-5 and has to be 0 or more"),
        (("steps", 0, "client", "output_tokens_per_second"), 10**400, "0… and has to be 0 or from 1e-30 to 1e+30 in size"),
        (("steps", 0, "client", "output_tokens_per_second"), 5e-324, "5e-324 and has to be 0 or from 1e-30 to 1e+30 in size"),
        (("steps", 0, "client", "raw", "rtfx"), True, "true and has to be a number"),
        (("steps", 0), 3, "3 and has to be an object"),
        (("steps",), [], "has 0 entries and needs 1 or more"),
        (("headline",), 1.0, "1.0 and has to be a whole number"),
        (("deployment", "gpus"), 0, "0 and has to be 1 or more"),
        (("deployment", "fault"), 7, "7 and has to be a text or null"),
        (("deployment", "shape"), "\ud800", "holds half a surrogate pair and is no text"),
        (("deployment", "engines"), {}, "an object and has to be a list"),
        (("profile", "scale"), "tpu", '"tpu" and has to be "cpu" or "gpu"'),
        (("began",), 1e20, "1e+20 and has to be 253402300799 or less"),
        (("workload", "sha256"), "x", '"x" and has to be as ^[0-9a-f]{64}$ has it'),
        (("slo_milliseconds",), {"ttft": "soon"}, '.ttft is "soon" and has to be a number'),
        (("weather",), NESTED, f"is nested more than {DEEPEST} deep"),
    ],
)
def test_the_field_the_value_and_what_it_has_to_be_are_said(place: Place, value: object, said: str) -> None:
    content: Any = document()
    holder = content
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    words = problem(content, run.schema())
    assert words is not None
    assert words.endswith(said)
    field = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in place).removeprefix(".")
    assert words.startswith(field)


def test_a_field_that_is_missing_is_named_and_a_key_may_be_anything() -> None:
    content = document()
    del content["steps"][0]["client"]
    assert problem(content, run.schema()) == "steps[0].client is missing"
    content = document()
    content["versions"]["\x1b[31m"] = 1
    assert problem(content, run.schema()) == 'versions."\\u001b[31m" is 1 and has to be a text'
    assert problem([], run.schema()) == "the whole is a list and has to be an object"
