"""What engines and routers that a person names have in common: ``NAME=URL[,key=value…]`` or a table of such keys, and rules for names.

This file knows no engine and no router; whoever uses it says which keys there are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from poise.exporter import setting_values

Spec = TypeVar("Spec")


def table_from_text(text: str, options: Collection[str], example: str) -> dict[str, str]:
    """The keys of ``NAME=URL[,key=value…]``; raises ValueError naming the option that is not among `options`."""
    head, *rest = text.split(",")
    name, equals, url = head.partition("=")
    if not equals:
        raise ValueError(f"expected NAME=URL, for example {example}")
    values = {"name": name.strip(), "url": url.strip()}
    for option in rest:
        key, equals, value = option.partition("=")
        key = key.strip()
        if not equals or key not in options:
            raise ValueError(f"unknown option {key!r}; known are {', '.join(f'{known}=' for known in options)}")
        values[key] = value.strip()
    return values


def check_keys(values: Mapping[str, Any], known: Collection[str], *, no_text: Collection[str] = ()) -> None:
    """Raises ValueError for a key that is not known, and for a value that is no text (but of the keys in `no_text`)."""
    unknown = set(values) - set(known)
    if unknown:
        raise ValueError(f"unknown key {min(unknown)!r}; known are {', '.join(known)}")
    for key, value in values.items():
        if key not in no_text and not isinstance(value, str):
            raise ValueError(f"{key} must be text, not {value!r}")


def checked_name(name: str, what: str) -> str:
    """A name fit for a label that all nodes of a fleet read; `what` it names stands in the error (ValueError)."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}", name):
        raise ValueError(f"name {name!r} must be letters, digits and . _ : / - (at most 128), and start with a letter or digit")
    if setting_values.is_loopback(name.partition(":")[0]):
        # Loopback is another machine to each node that reads the name.
        raise ValueError(f"name {name!r} is a loopback address; choose a name that tells the {what} from those of other nodes")
    return name


def many(value: object, from_text: Callable[[str], Spec], from_table: Callable[[Mapping[str, Any]], Spec]) -> tuple[Spec, ...]:
    """From a TOML list of tables, or from text with items separated by blanks or semicolons."""
    if isinstance(value, str):
        return tuple(from_text(item) for item in re.split(r"[;\s]+", value) if item)
    if not isinstance(value, list):
        raise ValueError("expected a list of tables with name and url")
    found = []
    for item in value:
        if isinstance(item, str):
            found.append(from_text(item))
        elif isinstance(item, dict):
            found.append(from_table(item))
        else:
            raise ValueError(f"expected a table with name and url, not {item!r}")
    return tuple(found)
