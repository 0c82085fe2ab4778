"""Whether a document read from a file is what a JSON schema says, told by the first field that is not. Pure.

Knows the keywords that run.schema.json uses and no others; a test holds it against the package jsonschema, which is no dependency of ours.
Two things are otherwise than there: `additionalProperties: false` is not asked for, because a newer version may write more fields, and 1.0 is
no integer.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

KEYWORDS = frozenset(
    {
        *("$schema", "$defs", "$ref", "title", "description"),
        *("type", "const", "enum", "minimum", "maximum", "pattern", "minItems"),
        *("properties", "required", "additionalProperties", "items"),
    }
)
# Run files nest six deep. What reads and writes JSON gives up at some hundreds, at a depth that depends on who asks.
DEEPEST = 32
# Means, squares and ratios of numbers within these stay finite. Bytes, joules and nanoseconds of a year stay far below.
LARGEST = 1e30
SMALLEST = 1e-30
# Of a wrong value, and of a wrong key.
SHOWN = 60

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]{1,60}")
_WORDS = {
    "object": "an object",
    "array": "a list",
    "string": "a text",
    "number": "a number",
    "integer": "a whole number",
    "boolean": "true or false",
    "null": "null",
}


def problem(document: object, schema: Mapping[str, Any]) -> str | None:
    """What is wrong, e.g. `steps[0].rate is "fast" and has to be a number or null`; None when nothing is. The text fits on one line and holds
    no character that a terminal acts on."""
    return next(_unusual(document, "", DEEPEST), None) or next(_wrong(document, schema, schema, ""), None)


def shown(value: object) -> str:
    """A value as JSON writes it, cut short; of an object or a list only what it is."""
    if isinstance(value, dict | list):
        return _WORDS["object" if isinstance(value, dict) else "array"]
    text = json.dumps(value, default=str)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _unusual(value: object, place: str, depth: int) -> Iterator[str]:
    """What no reader can use, wherever it stands: numbers that are none or overflow, halves of surrogate pairs, endless nesting."""
    if isinstance(value, str):
        if not _encodable(value):
            yield f"{_at(place)} holds half a surrogate pair and is no text"
    elif isinstance(value, int | float):
        if isinstance(value, float) and not math.isfinite(value):
            yield f"{_at(place)} is {shown(value)} and has to be a finite number"
        elif value and not SMALLEST <= abs(value) <= LARGEST:
            yield f"{_at(place)} is {shown(value)} and has to be 0 or from {SMALLEST:g} to {LARGEST:g} in size"
    elif isinstance(value, dict | list):
        if not depth:
            yield f"{_at(place)} is nested more than {DEEPEST} deep"
            return
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(key, str) and not _encodable(key):
                yield f"a key of {_at(place)} holds half a surrogate pair and is no text"
            yield from _unusual(item, _below(place, key), depth - 1)


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _wrong(value: object, schema: Mapping[str, Any], root: Mapping[str, Any], place: str) -> Iterator[str]:
    if "$ref" in schema:
        yield from _wrong(value, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root, place)
    kinds = schema.get("type", list(_WORDS))
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not any(_is(value, kind) for kind in kinds):
        yield _has_to_be(place, value, " or ".join(_WORDS[kind] for kind in kinds))
        return
    allowed = [schema["const"]] if "const" in schema else schema.get("enum")
    if allowed is not None and not any(type(value) is type(entry) and value == entry for entry in allowed):
        yield _has_to_be(place, value, " or ".join(json.dumps(entry) for entry in allowed))
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value < schema.get("minimum", value):
            yield _has_to_be(place, value, f"{schema['minimum']:.15g} or more")
        if value > schema.get("maximum", value):
            yield _has_to_be(place, value, f"{schema['maximum']:.15g} or less")
    elif isinstance(value, str):
        if "pattern" in schema and re.search(schema["pattern"], value) is None:
            yield _has_to_be(place, value, f"as {schema['pattern']} has it")
    elif isinstance(value, list):
        yield from _wrong_items(value, schema, root, place)
    elif isinstance(value, dict):
        yield from _wrong_fields(value, schema, root, place)


def _wrong_items(value: Sequence[object], schema: Mapping[str, Any], root: Mapping[str, Any], place: str) -> Iterator[str]:
    if len(value) < schema.get("minItems", 0):
        yield f"{_at(place)} has {len(value)} entries and needs {schema['minItems']} or more"
    for number, item in enumerate(value):
        yield from _wrong(item, schema.get("items", {}), root, _below(place, number))


def _wrong_fields(value: Mapping[str, object], schema: Mapping[str, Any], root: Mapping[str, Any], place: str) -> Iterator[str]:
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{_below(place, name)} is missing"
    known, others = schema.get("properties", {}), schema.get("additionalProperties")
    for name, item in value.items():
        if name in known:
            yield from _wrong(item, known[name], root, _below(place, name))
        elif isinstance(others, dict):
            yield from _wrong(item, others, root, _below(place, name))


def _is(value: object, kind: str) -> bool:
    if kind in ("number", "integer"):
        return isinstance(value, int if kind == "integer" else int | float) and not isinstance(value, bool)
    types: Mapping[str, type | tuple[type, ...]] = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
    return isinstance(value, types[kind])


def _has_to_be(place: str, value: object, wanted: str) -> str:
    return f"{_at(place)} is {shown(value)} and has to be {wanted}"


def _below(place: str, key: str | int) -> str:
    if isinstance(key, int):
        return f"{place}[{key}]"
    name = key if _PLAIN_KEY.fullmatch(key) else shown(key)
    return f"{place}.{name}" if place else name


def _at(place: str) -> str:
    return place or "the whole"
