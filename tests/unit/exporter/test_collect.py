"""`collect[]` and `exclude[]`: the series of the collectors that were named, and those of the node, which are always there."""

from __future__ import annotations

import re
from http import HTTPStatus
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poise.exporter import collect
from poise.exporter import metrics as m
from poise.exporter.collect import Groups, groups_of
from poise.exporter.engines.source import EngineSource
from poise.exporter.metrics import Owner
from poise.exporter.nvml import registry
from poise.exporter.nvml.statuses import DRIVER_COLLECTOR
from poise.exporter.pages import Request

from tests.complaints import complaint
from tests.exporter_http import Latest, pages_of

GROUPS = groups_of({collector.name: collector.metrics for collector in registry.ALL})


def page(query: str) -> tuple[HTTPStatus, str]:
    response = pages_of(Latest()).answer(Request("GET", "/metrics", query))
    return response.status, response.body.decode()


def names(text: str) -> set[str]:
    return set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))


def test_every_metric_but_the_nodes_own_belongs_to_a_collector() -> None:
    grouped = {metric for metrics in GROUPS.values() for metric in metrics}
    assert {metric for metric in m.ALL if metric.owner is not Owner.NODE} - grouped == {m.GPU_UNSUPPORTED_INFO}
    assert grouped & {metric for metric in m.ALL if metric.owner is Owner.NODE} == {m.CHECK_STATUS}


def test_every_collector_that_reports_itself_can_be_chosen() -> None:
    source = EngineSource("node-a", discover=False)
    names = {status.name for status in source.latest().collectors} | {DRIVER_COLLECTOR, *(collector.name for collector in registry.ALL)}
    assert set(GROUPS) == names | {collect.CHECKS}


def test_without_a_choice_everything_is_there() -> None:
    assert Groups(GROUPS).chosen("") is None
    assert Groups(GROUPS).chosen("name[]=x&collect=power&debug") is None


def test_only_the_chosen_collectors_and_the_node_are_there() -> None:
    status, text = page("collect[]=memory&collect[]=checks")
    assert status == HTTPStatus.OK
    found = names(text)
    assert {"poise_gpu_memory_total_bytes", "poise_check_status", "poise_build_info", "poise_node_info"} <= found
    assert not {name for name in found if name.startswith(("poise_engine", "poise_gpu_up", "poise_gpu_power"))}


def test_what_is_excluded_is_gone_and_the_rest_is_there() -> None:
    everything = names(page("")[1])
    assert everything - names(page("exclude[]=engine_pages&exclude[]=engine_discovery")[1]) == {
        name for name in everything if name.startswith("poise_engine")
    }


def test_brackets_may_be_escaped() -> None:
    assert names(page("collect%5B%5D=memory")[1]) == names(page("collect[]=memory")[1])


def test_why_a_series_is_absent_is_told_of_chosen_ones_only() -> None:
    def told(query: str) -> set[str]:
        return set(re.findall(r'unsupported_info\{.*metric="(\w+)"', page(query)[1]))

    everything = told("")
    of_memory = {metric.name for metric in GROUPS["memory"]}
    assert told("collect[]=memory") == everything & of_memory


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("collect[]=nvlnk", ["unknown collector 'nvlnk'", "known are", "nvlink", "engine_pages"]),
        ("exclude[]=", ["unknown collector ''"]),
        ("collect[]=bar1", ["'bar1' is switched off"]),
        ("collect[]=power&exclude[]=memory", ["exclude each other"]),
        ("a=b&" * 101, ["more than 100 parameters"]),
        ("collect[]=" + quote("<script>\n" * 50), ["unknown collector"]),
    ],
)
def test_a_choice_that_cannot_be_is_refused(query: str, words: list[str]) -> None:
    status, text = page(query)
    assert status == HTTPStatus.BAD_REQUEST
    for word in words:
        assert word in text
    assert len(text.splitlines()) == 1
    assert len(text) < 1500


@given(st.text(max_size=80) | st.lists(st.sampled_from(["collect[]", "exclude[]", "=", "&", "power", "%", "%00", "+", ";"])).map("".join))
def test_no_query_breaks_the_choice(query: str) -> None:
    groups = Groups(GROUPS, [collect.CHECKS])
    assert complaint(lambda: groups.chosen(query), ValueError) != "an empty message"
