"""Roles that the counters of recorded pages show, and that they contradict."""

from __future__ import annotations

from dataclasses import replace

import pytest
from poise.exporter import metrics as m
from poise.exporter.engines.dialects import read_page, wanted
from poise.exporter.engines.page import PageParser
from poise.exporter.observed_role import ROLE_MIN_REQUESTS, observed_role, shown_role
from poise.exporter.snapshot import EngineConfig, EnginePage, Readings, Role, Work

from tests.recorded import CAPTURES


def page(name: str, version: str = "0.32.0") -> EnginePage:
    return read_page(PageParser(wanted).parse((CAPTURES / f"{name}.prom").read_bytes()), version, 100.0, 0.25)


@pytest.mark.parametrize(
    ("capture", "role", "observed"),
    [
        ("pd-prefill-after", Role.PREFILL, None),
        ("pd-decode-after", Role.DECODE, None),
        ("single-server-after", Role.MIXED, None),
        ("pd-prefill-after", Role.DECODE, "mixed"),
        ("pd-decode-after", Role.PREFILL, "decode"),
        ("pd-decode-after", Role.MIXED, "decode"),
        ("single-server-after", Role.PREFILL, "mixed"),
        ("single-server-after", Role.DECODE, "mixed"),
        ("pd-prefill-after", Role.MIXED, None),
        ("pd-decode-after", Role.UNKNOWN, None),
        ("tp2-server-before", Role.DECODE, None),
    ],
)
def test_an_observed_role_is_told_only_when_it_contradicts(capture: str, role: Role, observed: str | None) -> None:
    assert observed_role(page(capture), role) == observed


NIXL = EngineConfig(kv_connector="NixlConnector", kv_role="kv_both")


@pytest.mark.parametrize(
    ("capture", "config", "shown"),
    [
        ("pd-prefill-after", NIXL, Role.PREFILL),
        ("pd-decode-after", NIXL, Role.DECODE),
        ("hybrid-prefill-after", NIXL, Role.PREFILL),
        ("hybrid-decode-after", NIXL, Role.DECODE),
        ("single-server-after", NIXL, None),
        ("tp2-server-before", NIXL, None),
        ("pd-decode-after", replace(NIXL, kv_connector="MultiConnector(NixlConnector, OffloadingConnector)"), Role.DECODE),
        # Out of a store an engine that serves whole requests takes prompt tokens too; without a connector one token is a short answer.
        ("pd-example-decode-after", replace(NIXL, kv_connector="LMCacheConnectorV1"), None),
        ("single-prefix-server-after", EngineConfig(), None),
        # An engine that is only a URL: its page has the transfers of NIXL.
        ("pd-prefill-after", EngineConfig(), Role.PREFILL),
        ("pd-decode-after", EngineConfig(), Role.DECODE),
    ],
)
def test_counters_show_a_role_beyond_doubt_or_none(capture: str, config: EngineConfig, shown: Role | None) -> None:
    assert shown_role(page(capture), config) == shown


def counted(finished: dict[str, float], generated: float, local: float, transferred: float) -> EnginePage:
    readings: Readings = {
        m.ENGINE_REQUESTS_FINISHED: {(reason,): value for reason, value in finished.items()},
        m.ENGINE_GENERATION_TOKENS: {(): generated},
        m.ENGINE_PROMPT_TOKENS_BY_SOURCE: {("local_compute",): local, ("external_kv_transfer",): transferred},
    }
    return EnginePage(0.0, 0.0, "0.32.0", (Work("m", "0", readings),))


@pytest.mark.parametrize(
    ("observed", "shown"),
    [
        (counted({"length": 100}, 100, 5000, 0), Role.PREFILL),
        (counted({"length": 100}, 100, 5000, 1), None),
        (counted({"length": 90, "stop": 10}, 100, 5000, 0), None),
        (counted({"length": 100}, 120, 5000, 0), None),
        (counted({"length": 100}, 9000, 100, 5000), Role.DECODE),
        (counted({"stop": 100}, 9000, 1000, 5000), None),
        (counted({"length": ROLE_MIN_REQUESTS - 1}, 19, 5000, 0), None),
        (counted({"length": 100}, 100, 0, 0), None),
    ],
)
def test_what_is_not_beyond_doubt_shows_nothing(observed: EnginePage, shown: Role | None) -> None:
    assert shown_role(observed, NIXL) == shown


def test_a_decode_engine_counts_a_transfer_for_each_rank_of_the_prefill_engine() -> None:
    """Hybrid: the prefill engine has two ranks, so that each request takes two transfers of half its KV each."""

    def transfers_per_request(capture: str) -> tuple[float, float]:
        (work,) = page(capture).work
        finished = sum(work.readings[m.ENGINE_REQUESTS_FINISHED].values())
        (size,) = work.histograms[m.ENGINE_KV_TRANSFER_BYTES].values()
        return size.count / finished, size.sum / size.count

    hybrid, plain = transfers_per_request("hybrid-decode-after"), transfers_per_request("pd-decode-after")
    assert hybrid[0] == 2
    assert plain[0] == 1
    assert hybrid[1] == plain[1] / 2
