"""Which engines split prefill from decode between them, and how checks name them. Pure; judges nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poise.exporter import metrics as m
from poise.exporter.checks import words
from poise.exporter.checks.result import Subject
from poise.exporter.checks.window import Window
from poise.exporter.snapshot import Engine, NodeSnapshot, Role, Router

SPLIT_ROLES = (Role.PREFILL, Role.DECODE)
_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")


@dataclass(frozen=True, slots=True)
class Split:
    """A deployment whose engines prefill or decode, as far as this exporter sees it: the rest may be other nodes'.

    `engines` are all of its engines, gone ones included; `routers` those that stand before them.
    """

    name: str
    engines: tuple[Engine, ...]
    routers: tuple[Router, ...]

    def pool(self, role: Role) -> tuple[Engine, ...]:
        """The living engines of a role."""
        return tuple(engine for engine in self.engines if engine.identity.role is role and engine.observed.process_up is not False)

    @property
    def about(self) -> Subject:
        """The deployment as the subject of a result; its series carry its first engine that decodes, else the first of all; where none is known
        here, the first such of its routers' lists, by the id that its own node gives it.
        """
        told = [backend for router in self.routers for backend in router.backends if backend.engine]
        roles = [(engine.identity.engine, engine.identity.role) for engine in self.engines] or [(each.engine, each.role) for each in told]
        names = [name for name, role in roles if role is Role.DECODE] + [name for name, _ in roles]
        return Subject(engine=names[0] if names else "", deployment=self.name)


def splits(snapshot: NodeSnapshot) -> tuple[Split, ...]:
    """The deployments in which prefill and decode are, or are meant to be, different engines, in order of their names.

    One of which nothing lives any more was stopped: that its engines are gone is said of each, once.
    """
    found = []
    routed = {router.deployment for router in snapshot.routers}
    for name in sorted({engine.identity.deployment for engine in snapshot.engines} | routed):
        engines = tuple(engine for engine in snapshot.engines if engine.identity.deployment == name)
        routers = tuple(router for router in snapshot.routers if router.deployment == name)
        lives = any(engine.observed.process_up is not False for engine in engines) or any(router.up for router in routers)
        meant = any(router.disaggregated for router in routers) or any(engine.identity.role in SPLIT_ROLES for engine in engines)
        if lives and meant:
            found.append(Split(name, engines, routers))
    return tuple(found)


def names(engines: Sequence[Engine]) -> str:
    """Engines in a sentence."""
    return words.joined([engine.identity.engine for engine in engines])


def prompt_tokens(engines: Sequence[Engine], part: Window) -> dict[str, float]:
    """Prompt tokens that engines which decode took in over the window, by where their KV came from; a source that none of them tells is
    absent."""
    found: dict[str, float] = {}
    for engine in engines:
        for source in _SOURCES if engine.identity.role is Role.DECODE else ():
            grown = part.increase(engine.identity.engine, m.ENGINE_PROMPT_TOKENS_BY_SOURCE, source)
            if grown is not None:
                found[source] = found.get(source, 0.0) + grown
    return found
