"""Connectors and roles out of --kv-transfer-config, nested ones too."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from poise.exporter.engines.kv_transfer import kv_transfer, moves_between_engines, serves_whole_requests


def multi(*inner: object, **outer: str) -> str:
    return json.dumps({"kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": list(inner)}, **outer})


NIXL_P = {"kv_connector": "NixlConnector", "kv_role": "kv_producer"}
NIXL_D = {"kv_connector": "NixlConnector", "kv_role": "kv_consumer"}
OFFLOAD = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (json.dumps(NIXL_P), ("NixlConnector", "kv_producer")),
        (multi(NIXL_P, OFFLOAD, kv_role="kv_both"), ("MultiConnector(NixlConnector, OffloadingConnector)", "kv_producer")),
        (multi(NIXL_D, OFFLOAD), ("MultiConnector(NixlConnector, OffloadingConnector)", "kv_consumer")),
        (multi(NIXL_D, OFFLOAD, kv_role="kv_producer"), ("MultiConnector(NixlConnector, OffloadingConnector)", "kv_producer")),
        (multi(NIXL_P, NIXL_D, kv_role="kv_both"), ("MultiConnector(NixlConnector, NixlConnector)", "kv_both")),
        (multi({"kv_role": "kv_producer"}, 3, None), ("MultiConnector(?)", "kv_producer")),
        (multi(), ("MultiConnector", None)),
        (json.dumps({"kv_connector": "MultiConnector", "kv_connector_extra_config": "x"}), ("MultiConnector", None)),
        (json.dumps({"kv_connector": 3, "kv_role": None}), (None, None)),
        ("[]", None),
        ("{", None),
        ("[" * 100_000, None),
    ],
)
def test_connector_and_role(document: str, expected: tuple[str | None, str | None] | None) -> None:
    assert kv_transfer(document, {}) == expected


def test_dotted_flags_win() -> None:
    assert kv_transfer(json.dumps(NIXL_P), {"kv_role": "kv_consumer"}) == ("NixlConnector", "kv_consumer")
    assert kv_transfer(None, {"kv_connector": "C"}) == ("C", None)


@pytest.mark.parametrize(
    ("connector", "whole"),
    [
        ("OffloadingConnector", True),
        ("MultiConnector(OffloadingConnector, SimpleCPUOffloadConnector)", True),
        ("MultiConnector(NixlConnector, OffloadingConnector)", False),
        ("MultiConnector", False),
        ("LMCacheConnectorV1", False),
    ],
)
def test_connectors_to_own_memory_serve_whole_requests(connector: str, whole: bool) -> None:
    assert serves_whole_requests(connector) is whole


_JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=5) | st.sampled_from(["MultiConnector", "kv_producer"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["kv_connector", "kv_role", "kv_connector_extra_config", "connectors"]), inner, max_size=4)
    ),
    max_leaves=8,
)


@settings(max_examples=50)
@given(_JSON)
def test_no_document_breaks_it(document: object) -> None:
    found = kv_transfer(json.dumps(document), {})
    assert found is None or all(item is None or isinstance(item, str) for item in found)


@pytest.mark.parametrize(
    ("connector", "moves"),
    [
        ("NixlConnector", True),
        ("MultiConnector(OffloadingConnector, MooncakeConnector)", True),
        ("MooncakeStoreConnector", False),
        ("MultiConnector(OffloadingConnector, LMCacheConnectorV1)", False),
        ("", False),
    ],
)
def test_a_connector_through_a_store_moves_nothing_between_engines(connector: str, moves: bool) -> None:
    assert moves_between_engines(connector) is moves
