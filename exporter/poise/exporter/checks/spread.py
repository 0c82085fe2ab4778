"""Whether an engine, or a deployment that splits, reaches beyond this node: checks of networks ask it. Pure; judges nothing."""

from __future__ import annotations

from poise.exporter.checks.pools import SPLIT_ROLES, Split, splits
from poise.exporter.snapshot import Engine, NodeSnapshot


def spans_nodes(engine: Engine) -> bool:
    """Whether its tensor or pipeline ranks are on several nodes, so that NCCL talks over the network."""
    return engine.config.nnodes > 1 or engine.config.headless


def split_of(snapshot: NodeSnapshot, engine: Engine) -> Split | None:
    """The deployment of a prefill or decode engine that reaches other nodes, or None."""
    if engine.identity.role not in SPLIT_ROLES:
        return None
    for split in splits(snapshot):
        if engine.identity.deployment == split.name and _reaches_out(snapshot, split):
            return split
    return None


def _reaches_out(snapshot: NodeSnapshot, split: Split) -> bool:
    """Whether a role of it lives elsewhere: an engine known by address only, or one that only the router knows. One that died here was here."""
    here = {engine.identity.engine for engine in snapshot.engines if engine.observed.process_up is not None}
    roles = [(engine.identity.engine, engine.identity.role) for engine in split.engines]
    roles += [(backend.engine or backend.url, backend.role) for router in split.routers for backend in router.backends]
    return any(name not in here and role in SPLIT_ROLES for name, role in roles)
