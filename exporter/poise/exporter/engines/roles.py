"""Which role an engine says that it has, in order: the configuration, its own environment, its command line.

Routers and what an engine was seen to do come later and fill only what these leave unknown (identity.py). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from poise.exporter import named_specs
from poise.exporter.engine_specs import EngineSpec, role_word
from poise.exporter.engines.argv import VALUE_LIMIT, shown
from poise.exporter.engines.discovery import FoundEngine
from poise.exporter.engines.kv_transfer import serves_whole_requests
from poise.exporter.snapshot import Role

#: Variables of the engine's own process by which whoever starts it says what it is: in Kubernetes from a label, through the downward API.
NAME, DEPLOYMENT, ROLE = "POISE_ENGINE_NAME", "POISE_ENGINE_DEPLOYMENT", "POISE_ENGINE_ROLE"

_ROLES = {"kv_producer": Role.PREFILL, "kv_consumer": Role.DECODE}


@dataclass(frozen=True, slots=True)
class Declared:
    """What an engine's environment says of it; "" and None where it does not. `problems` are sentences about values that cannot be."""

    name: str = ""
    deployment: str = ""
    role: Role | None = None
    problems: tuple[str, ...] = ()


def declared(variables: Mapping[str, str]) -> Declared:
    """What the variables of an engine say. A value that cannot be is left out and said; an empty one (a label that is not there) is none."""
    problems: list[str] = []

    def name_of(variable: str, what: str) -> str:
        value = variables.get(variable, "").strip()[:VALUE_LIMIT]  # one character more than a name may have is enough to refuse it
        try:
            return named_specs.checked_name(value, what) if value else ""
        except ValueError as error:
            problems.append(f"{variable} is left out: {error}")
            return ""

    role: Role | None = None
    word = variables.get(ROLE, "").strip()
    try:
        role = role_word(word) if word else None
    except ValueError:
        problems.append(f"{ROLE}={shown(word)} is left out: it is not one of mixed, prefill, decode")
    return Declared(name_of(NAME, "engine"), name_of(DEPLOYMENT, "deployment"), role, tuple(problems))


def role_of(found: FoundEngine, spec: EngineSpec | None, said: Declared | None = None) -> tuple[Role, str]:
    """The role and where it is from. ``kv_both`` tells nothing, and neither does a command line whose file may name a connector."""
    config = found.config
    if spec is not None and spec.role is not None:
        return spec.role, "config"
    if said is not None and said.role is not None:
        return said.role, "environment"
    if config.kv_role in _ROLES:
        return _ROLES[config.kv_role], "argv"
    if config.kv_connector is not None and serves_whole_requests(config.kv_connector):
        return Role.MIXED, "argv"
    if config.kv_connector is not None or config.kv_role is not None or found.command.reads_file:
        return Role.UNKNOWN, "argv"
    return Role.MIXED, "default"
