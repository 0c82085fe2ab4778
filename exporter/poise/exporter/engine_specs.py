"""Engines that a person names: what can be said of one in `poise.toml`, in the environment and behind ``--engine``, and what is wrong with it.

This file knows no layer of settings and asks no engine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from poise.exporter import setting_values
from poise.exporter.snapshot import Role


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """An engine that the user named: `url` is its base URL without path or query; deployment and role are empty when not given.

    `gpus`: how many cards of this node it is meant to use; None when that was not said.
    """

    name: str
    url: str
    deployment: str = ""
    role: Role | None = None
    gpus: int | None = None


#: What can be said of an engine, in `poise.toml` and behind `--engine NAME=URL`.
_ENGINE_KEYS = tuple(item.name for item in fields(EngineSpec))
_ENGINE_OPTIONS = tuple(key for key in _ENGINE_KEYS if key not in ("name", "url"))


def parse_engine(text: str) -> EngineSpec:
    """An engine from ``NAME=URL[,deployment=…][,role=mixed|prefill|decode][,gpus=N]``.

    Raises:
        ValueError: what is wrong with it, in words.
    """
    head, *options = text.split(",")
    name, equals, url = head.partition("=")
    if not equals:
        raise ValueError("expected NAME=URL, for example qwen=http://10.0.0.5:8000")
    values = {"name": name.strip(), "url": url.strip()}
    for option in options:
        key, equals, value = option.partition("=")
        key = key.strip()
        if not equals or key not in _ENGINE_OPTIONS:
            raise ValueError(f"unknown option {key!r}; known are {', '.join(f'{known}=' for known in _ENGINE_OPTIONS)}")
        values[key] = value.strip()
    return _engine(values)


def _engine(values: Mapping[str, Any]) -> EngineSpec:
    """An engine from a table; raises ValueError naming the key."""
    unknown = set(values) - set(_ENGINE_KEYS)
    if unknown:
        raise ValueError(f"unknown key {min(unknown)!r}; known are {', '.join(_ENGINE_KEYS)}")
    for key, value in values.items():
        if key != "gpus" and not isinstance(value, str):
            raise ValueError(f"{key} must be text, not {value!r}")
    name = values.get("name", "")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}", name):
        raise ValueError(f"name {name!r} must be letters, digits and . _ : / - (at most 128), and start with a letter or digit")
    if setting_values.is_loopback(name.partition(":")[0]):
        # The name is the label `engine`, which all nodes of a fleet read: loopback is another machine to each of them.
        raise ValueError(f"name {name!r} is a loopback address; choose a name that tells the engine from those of other nodes")
    role = values.get("role", "")
    if role and role not in (Role.MIXED, Role.PREFILL, Role.DECODE):
        raise ValueError(f"role {role!r} is not one of mixed, prefill, decode")
    return EngineSpec(
        name,
        setting_values.base_url(values.get("url", "")),
        values.get("deployment", ""),
        Role(role) if role else None,
        _gpus(values["gpus"]) if "gpus" in values else None,
    )


def _gpus(value: object) -> int:
    """How many cards an engine is meant to use; raises ValueError naming the key."""
    try:
        gpus = setting_values.expected_gpus(value)
    except ValueError:
        gpus = 0
    if not gpus:
        raise ValueError(f"gpus {value!r} is not a number of cards from 1 to 1024")
    return gpus


def engines(value: object) -> tuple[EngineSpec, ...]:
    """From a TOML list of tables, or from text with engines separated by blanks or semicolons."""
    if isinstance(value, str):
        return tuple(parse_engine(item) for item in re.split(r"[;\s]+", value) if item)
    if not isinstance(value, list):
        raise ValueError("expected a list of tables with name and url")
    found = []
    for item in value:
        if isinstance(item, str):
            found.append(parse_engine(item))
        elif isinstance(item, dict):
            found.append(_engine(item))
        else:
            raise ValueError(f"expected a table with name and url, not {item!r}")
    return tuple(found)
