"""Engines that a person names: what can be said of one in `poise.toml`, in the environment and behind ``--engine``, and what is wrong with it.

This file knows no layer of settings and asks no engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from poise.exporter import access, named_specs, setting_values
from poise.exporter.access import PLAIN, Access
from poise.exporter.snapshot import Role


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """An engine that the user named: `url` is its base URL, which its page is below; deployment and role are empty when not given.

    `gpus`: how many cards of this node it is meant to use; None when that was not said. `access`: how it lets itself be asked.
    """

    name: str
    url: str
    deployment: str = ""
    role: Role | None = None
    gpus: int | None = None
    access: Access = PLAIN


#: What can be said of an engine, in `poise.toml` and behind `--engine NAME=URL`.
ENGINE_KEYS = (*(item.name for item in fields(EngineSpec) if item.name != "access"), *access.KEYS)
_ENGINE_OPTIONS = tuple(key for key in ENGINE_KEYS if key not in ("name", "url"))


def parse_engine(text: str) -> EngineSpec:
    """An engine from ``NAME=URL[,deployment=…][,role=mixed|prefill|decode][,gpus=N]`` and the keys of `Access`.

    Raises:
        ValueError: what is wrong with it, in words.
    """
    for option in text.split(",")[1:]:
        _refuse_secret(option.partition("=")[0])
    return _engine(named_specs.table_from_text(text, _ENGINE_OPTIONS, "qwen=http://10.0.0.5:8000"))


def _engine(values: Mapping[str, Any]) -> EngineSpec:
    """An engine from a table; raises ValueError naming the key."""
    for key in values:
        _refuse_secret(key)
    named_specs.check_keys(values, ENGINE_KEYS, no_text=("gpus", "insecure_skip_verify"))
    name = named_specs.checked_name(values.get("name", ""), "engine")
    role = role_word(values["role"]) if values.get("role") else None
    url = setting_values.base_url(values.get("url", ""))
    return EngineSpec(
        name,
        url,
        values.get("deployment", ""),
        role,
        _gpus(values["gpus"]) if "gpus" in values else None,
        access.from_values(values, url),
    )


def _refuse_secret(key: str) -> None:
    """Raises ValueError with the way out for a key that would hold a secret itself."""
    if hint := access.secret_hint(key):
        raise ValueError(hint)


def _gpus(value: object) -> int:
    """How many cards an engine is meant to use; raises ValueError naming the key."""
    try:
        gpus = setting_values.expected_gpus(value)
    except ValueError:
        gpus = 0
    if not gpus:
        raise ValueError(f"gpus {value!r} is not a number of cards from 1 to 1024")
    return gpus


def role_word(text: str) -> Role:
    """A role that a person may give an engine; raises ValueError naming it."""
    if text not in (Role.MIXED, Role.PREFILL, Role.DECODE):
        raise ValueError(f"role {text!r} is not one of mixed, prefill, decode")
    return Role(text)


def engines(value: object) -> tuple[EngineSpec, ...]:
    """From a TOML list of tables, or from text with engines separated by blanks or semicolons."""
    return named_specs.many(value, parse_engine, _engine)
