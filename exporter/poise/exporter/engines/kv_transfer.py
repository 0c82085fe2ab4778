"""Reads what ``--kv-transfer-config`` says: which KV connector an engine has, and which part of a request it takes. Pure; never raises.

Of the document the names of connectors and roles are looked at, nothing else. Source: vLLM 0.33, config/kv_transfer.py and
distributed/kv_transfer/kv_connector/v1/multi_connector.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

#: Roles that say which part of a request an engine has; ``kv_both`` says nothing.
TELLING_ROLES = ("kv_producer", "kv_consumer")
#: Connectors that move KV between a card and the same engine's own host memory: with one of these alone an engine serves whole requests.
OWN_MEMORY_CONNECTORS = frozenset({"OffloadingConnector", "SimpleCPUOffloadConnector"})
#: Connectors (vLLM 0.33) that move KV from one engine to another, the whole of a prompt. Others keep it in a store, by chunks.
PEER_CONNECTORS = ("NixlConnector", "NixlPullConnector", "NixlPushConnector", "MooncakeConnector", "MoRIIOConnector", "P2pNcclConnector")
_MULTI = "MultiConnector"


def kv_transfer(document: str | None, dotted: Mapping[str, str]) -> tuple[str | None, str | None] | None:
    """Connector and role from the JSON document and the dotted flags, which win as in vLLM; None when the document is no JSON object.

    A MultiConnector is shown with those in it (``kv_connector_extra_config.connectors``, each a configuration of its own), and has their role
    where its own does not tell and theirs agree.
    """
    found: dict[str, str] = {}
    inner: list[dict[str, str]] = []
    if document is not None:
        try:
            parsed = json.loads(document)
        except (ValueError, RecursionError):
            return None
        if not isinstance(parsed, dict):
            return None
        found.update(_connector(parsed))
        inner = _inner_connectors(parsed)
    found.update(dotted)
    connector, role = found.get("kv_connector"), found.get("kv_role")
    if connector == _MULTI and inner:
        roles = {item["kv_role"] for item in inner if item.get("kv_role") in TELLING_ROLES}
        if role not in TELLING_ROLES and len(roles) == 1:
            role = roles.pop()
        connector = f"{_MULTI}({', '.join(item.get('kv_connector', '?') for item in inner)})"
    return connector, role


def serves_whole_requests(connector: str) -> bool:
    """Whether a connector (as `kv_transfer` shows it) only takes KV to the engine's own host memory and back."""
    return OWN_MEMORY_CONNECTORS.issuperset(_names(connector))


def moves_between_engines(connector: str) -> bool:
    """Whether a connector (as `kv_transfer` shows it), or one of those in it, moves KV from one engine to another."""
    return not _names(connector).isdisjoint(PEER_CONNECTORS)


def _names(connector: str) -> set[str]:
    return set(connector.removeprefix(f"{_MULTI}(").removesuffix(")").split(", "))


def _connector(parsed: Mapping[str, object]) -> dict[str, str]:
    return {key: value for key in ("kv_connector", "kv_role") if isinstance(value := parsed.get(key), str)}


def _inner_connectors(parsed: Mapping[str, object]) -> list[dict[str, str]]:
    extra = parsed.get("kv_connector_extra_config")
    listed = extra.get("connectors") if isinstance(extra, dict) else None
    return [_connector(item) for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
