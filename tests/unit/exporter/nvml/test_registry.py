"""The registry: every series of a card has one collector, every collector a flag and its help."""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import replace

from poise.exporter import metrics as m
from poise.exporter import setting_flags
from poise.exporter.metrics import Owner
from poise.exporter.nvml import registry

#: What follows from a card's state rather than from a collector's reading.
FROM_STATE = {m.GPU_UP, m.GPU_UNSUPPORTED_INFO, m.GPU_LAST_SAMPLE}


def test_every_series_of_a_card_has_exactly_one_collector_by_default() -> None:
    given = Counter(metric for collector in registry.enabled({}) for metric in collector.metrics)
    assert set(given) == {metric for metric in m.ALL if metric.owner is Owner.GPU} - FROM_STATE
    assert set(given.values()) == {1}


def test_what_is_off_by_default_is_another_way_to_a_series_that_has_one() -> None:
    usual = registry.enabled({})
    others = [collector for collector in registry.ALL if collector not in usual]
    assert [collector.name for collector in others] == ["pcie_throughput"]
    given = {metric for collector in usual for metric in collector.metrics}
    assert all(set(collector.metrics) <= given for collector in others)


def test_names_are_unique_and_helped() -> None:
    names = [collector.name for collector in registry.ALL]
    assert len(set(names)) == len(names)
    assert all(collector.help for collector in registry.ALL)


def test_every_collector_but_the_identity_has_a_switch() -> None:
    parser = argparse.ArgumentParser()
    setting_flags.add_arguments(parser, registry.SWITCHES)
    text = " ".join(parser.format_help().split())
    for name, words in registry.SWITCHES.items():
        assert f"--collector.{name}" in text
        assert f"--no-collector.{name}" in text
        assert words in text
    assert {collector.name for collector in registry.ALL} - set(registry.SWITCHES) == {"identity"}


def test_a_switched_off_collector_does_not_run_and_the_identity_always_does() -> None:
    off = dict.fromkeys((collector.name for collector in registry.ALL), False)
    assert [collector.name for collector in registry.enabled(off)] == ["identity"]
    assert registry.enabled({}) == tuple(collector for collector in registry.ALL if collector.on_by_default)


def test_without_defaults_only_what_was_switched_on_runs() -> None:
    assert [collector.name for collector in registry.enabled({}, defaults=False)] == ["identity"]
    switched = registry.enabled({"power": True, "memory": False}, defaults=False)
    assert [collector.name for collector in switched] == ["identity", "power"]


def test_what_is_off_by_default_runs_once_it_is_switched_on() -> None:
    costly = replace(next(collector for collector in registry.ALL if collector.name == "bar1"), on_by_default=False)
    assert registry.enabled({}, among=(costly,)) == ()
    assert registry.enabled({"bar1": True}, defaults=False, among=(costly,)) == (costly,)
