"""Label sets: sorted pairs without empty values, the metric's name among them. Owns no series and no syntax."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

#: Sorted by name. As in Prometheus an empty value is no label.
Labels = tuple[tuple[str, str], ...]

NAME = "__name__"
_ONLY_NAME = frozenset({NAME})
#: Parts of label sets that are remembered: rules take the same parts of the same series again and again; the shipped ones
#: need 2,600 over 4,000 series. An entry takes about 500 bytes.
_REMEMBERED = 6_000


def labels(values: Mapping[str, str]) -> Labels:
    """The label set of a mapping."""
    return tuple(sorted((name, value) for name, value in values.items() if value != ""))


def get(own: Labels, name: str) -> str:
    """A label's value, "" when there is no such label."""
    return next((value for label, value in own if label == name), "")


@lru_cache(maxsize=_REMEMBERED)
def only(own: Labels, names: frozenset[str]) -> Labels:
    """The labels with these names."""
    return tuple(pair for pair in own if pair[0] in names)


@lru_cache(maxsize=_REMEMBERED)
def without(own: Labels, names: frozenset[str]) -> Labels:
    """The labels but those with these names."""
    return tuple(pair for pair in own if pair[0] not in names)


def drop_name(own: Labels) -> Labels:
    """The labels without the metric's name."""
    return without(own, _ONLY_NAME)


def changed(own: Labels, changes: Iterable[tuple[str, str]]) -> Labels:
    """The labels with some set anew; an empty value takes a label away."""
    return labels({**dict(own), **dict(changes)})


def text(own: Labels) -> str:
    """As Prometheus writes it: ``name{a="1", b="2"}``."""
    pairs = ", ".join(f'{name}="{_escaped(value)}"' for name, value in own if name != NAME)
    return f"{get(own, NAME)}{{{pairs}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
