"""What is shown and said of a member of the roster: member and newest page as an `ObservedEngine`, and the log of those that come and go."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from poise.exporter.engines.identity import Member
from poise.exporter.engines.insides import Inside
from poise.exporter.engines.poll import Poll
from poise.exporter.snapshot import ObservedEngine

_log = logging.getLogger(__name__)


def observed(member: Member, poll: Poll | None, inside: Inside | None, connections: int | None) -> ObservedEngine:
    """An engine as it is shown. `connections`: established ones to its API port; None where that is not known."""
    found = member.found
    inside = inside or Inside()
    process_up = True if found is not None else False if member.gone_since is not None else None
    engine = ObservedEngine(
        identity=member.identity,
        config=member.config,
        url=member.url,
        pid=found.key.pid if found is not None else None,
        process_up=process_up,
        start_time=member.start_time,
        gone_since=member.gone_since,
        ranks=found.ranks if found is not None else (),
        pids=found.pids if found is not None else frozenset(),
        page_error=member.why_no_url or ("its process is gone" if process_up is False else "not asked yet"),
        client_connections=connections,
        notes=member.notes if found is not None else (),
        gpus_meant=member.spec.gpus if member.spec is not None else None,
        pod=member.pod if found is not None else None,
        libraries=inside.libraries,
        model_shape=inside.model_shape,
    )
    if poll is None:
        return engine
    return replace(engine, page=poll.page, page_error=poll.error, last_page_at=poll.last_page_at, rtt=poll.rtt)


def tell(before: Sequence[Member], now: Sequence[Member]) -> None:
    """Logs engines that came and went."""
    old_keys = {member.identity.engine: member.found.key for member in before if member.found is not None}
    identities = {member.identity.engine: member.identity for member in before}
    for member in now:
        name, old = member.identity.engine, old_keys.get(member.identity.engine)
        earlier = identities.get(name, member.identity)
        is_same = member.found is None or member.found.key == old
        if is_same and (earlier.deployment, earlier.role) != (member.identity.deployment, member.identity.role):
            role, source = member.identity.role, member.identity.role_source
            _log.info("engine %s: is of deployment %s now, role %s (%s)", name, member.identity.deployment, role, source)
        if member.found is not None and member.found.key != old:
            _log.info("engine %s: process %d, role %s (%s)", name, member.found.key.pid, member.identity.role, member.identity.role_source)
            for problem in member.notes:
                _log.warning("engine %s: %s", name, problem)
        elif member.found is None and old is not None:
            _log.info("engine %s: process %d is gone", name, old.pid)
