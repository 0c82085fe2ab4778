"""Runs that a disk, an editor or somebody spoiled: a recorded one with any JSON in the place of any of its parts."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import strategies as st

from tests.unit.testbed.bench.runs import recorded

Place = tuple[str | int, ...]

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from([10**400, -(10**30), 1e300, 1e-320, -0.0, float("nan"), float("inf"), -1, 0, 3, 99, 2.5]),
    st.sampled_from(["", "a|b\n\x1b[31m<script>", "\ud800", "$x^$", "\u202e", "`", "x" * 5000]),
)
ANY_JSON = st.recursive(
    SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3))
)


def places(value: object, above: Place = ()) -> Iterator[Place]:
    """Where something can be changed, the whole included."""
    yield above
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(item, (*above, key))


RUN: dict[str, Any] = recorded("run-pd-1.json")
PLACES: Sequence[Place] = tuple(places(RUN))


@st.composite
def damaged(draw: st.DrawFn) -> tuple[Place, object]:
    """The place in which something was changed and the document: the part replaced, taken away, there twice, or one more beside it."""
    place = draw(st.sampled_from(PLACES))
    content: Any = copy.deepcopy(RUN)
    if not place:
        return place, draw(ANY_JSON)
    holder = content
    for key in place[:-1]:
        holder = holder[key]
    kind = draw(st.sampled_from(["replaced", "replaced", "replaced", "gone", "more"]))
    if kind == "gone":
        del holder[place[-1]]
    elif kind == "replaced":
        holder[place[-1]] = draw(ANY_JSON)
    elif isinstance(holder, list):
        holder.append(draw(st.one_of(st.just(copy.deepcopy(holder[0])), ANY_JSON)))
    else:
        holder[draw(st.text(max_size=6))] = draw(ANY_JSON)
    return place[:-1] if kind == "more" else place, content


def text_of(document: object) -> str:
    """As Python writes JSON: NaN and all."""
    return json.dumps(document)
