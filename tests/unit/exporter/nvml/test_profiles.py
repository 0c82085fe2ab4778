"""Every series of a card on every kind of card: there, or absent with its reason. What is expected stands in the table, not in code."""

from __future__ import annotations

import logging

import pytest
from poise.exporter import metrics as m
from poise.exporter.exposition import gpu_readings
from poise.exporter.metrics import Metric, Owner
from poise.exporter.ownership import join
from poise.exporter.snapshot import Gpu, Reason
from poise.testbed.nvml import profiles
from poise.testbed.nvml.gpu import Process

from tests.simulated_cards import Bench, bench

#: yes: given · ns: absent, not_supported · -: neither, because nothing has happened yet (no XID).
#: h20, h100, b200 are SXM boards behind NVSwitches (drivers 580, 570, 580); a100 two PCIe boards with bridges on driver 535; v100 SXM2 on
#: driver 535; l40s PCIe boards without NVLink, 4090 in a workstation, mig two H100 PCIe that are divided.
TABLE = """
series                             h20  h100  b200  a100  v100  l40s  4090  mig
info                               yes  yes   yes   yes   yes   yes   yes   yes
up                                 yes  yes   yes   yes   yes   yes   yes   yes
unsupported_info                   yes  yes   yes   yes   yes   yes   yes   yes
last_sample_timestamp_seconds      yes  yes   yes   yes   yes   yes   yes   yes
utilization_ratio                  yes  yes   yes   yes   yes   yes   yes   ns
utilization_peak_ratio             yes  yes   yes   yes   yes   yes   yes   ns
busy_seconds_total                 yes  yes   yes   yes   yes   yes   yes   ns
memory_busy_ratio                  yes  yes   yes   yes   yes   yes   yes   ns
encoder_utilization_ratio          yes  yes   yes   yes   yes   yes   yes   ns
decoder_utilization_ratio          yes  yes   yes   yes   yes   yes   yes   ns
sm_active_ratio                    yes  yes   yes   ns    ns    ns    ns    yes
sm_occupancy_ratio                 yes  yes   yes   ns    ns    ns    ns    yes
tensor_active_ratio                yes  yes   yes   ns    ns    ns    ns    yes
dram_active_ratio                  yes  yes   yes   ns    ns    ns    ns    yes
pcie_tx_bytes_per_second           yes  yes   yes   ns    ns    ns    ns    yes
pcie_rx_bytes_per_second           yes  yes   yes   ns    ns    ns    ns    yes
memory_total_bytes                 yes  yes   yes   yes   yes   yes   yes   yes
memory_used_bytes                  yes  yes   yes   yes   yes   yes   yes   yes
memory_free_bytes                  yes  yes   yes   yes   yes   yes   yes   yes
memory_reserved_bytes              yes  yes   yes   yes   yes   yes   yes   yes
bar1_total_bytes                   yes  yes   yes   yes   yes   yes   yes   yes
bar1_used_bytes                    yes  yes   yes   yes   yes   yes   yes   yes
power_watts                        yes  yes   yes   yes   yes   yes   yes   yes
power_limit_watts                  yes  yes   yes   yes   yes   yes   yes   yes
energy_joules_total                yes  yes   yes   yes   yes   yes   yes   yes
temperature_celsius                yes  yes   yes   yes   yes   yes   yes   yes
temperature_margin_celsius         yes  yes   yes   yes   yes   yes   yes   yes
fan_ratio                          ns   ns    ns    ns    ns    ns    yes   ns
performance_state                  yes  yes   yes   yes   yes   yes   yes   yes
persistence_mode                   yes  yes   yes   yes   yes   yes   yes   yes
mig_mode                           yes  yes   yes   yes   ns    ns    ns    yes
recovery_action                    yes  yes   yes   ns    ns    yes   yes   yes
clock_hertz                        yes  yes   yes   yes   yes   yes   yes   yes
clock_max_hertz                    yes  yes   yes   yes   yes   yes   yes   yes
clocks_event                       yes  yes   yes   yes   yes   yes   yes   yes
clocks_event_seconds_total         yes  yes   yes   yes   yes   yes   yes   yes
ecc_errors_total                   yes  yes   yes   yes   yes   yes   ns    yes
ecc_errors_lifetime_total          yes  yes   yes   yes   yes   yes   ns    yes
remapped_rows                      yes  yes   yes   yes   ns    yes   ns    ns
remap_pending                      yes  yes   yes   yes   ns    yes   ns    ns
remap_failed                       yes  yes   yes   yes   ns    yes   ns    ns
retired_pages                      ns   ns    ns    ns    yes   ns    ns    ns
xid_errors_total                   yes  yes   yes   yes   yes   yes   yes   yes
xid_last_timestamp_seconds         -    -     -     -     -     -     -     -
pcie_link_generation               yes  yes   yes   yes   yes   yes   yes   yes
pcie_link_generation_max           yes  yes   yes   yes   yes   yes   yes   yes
pcie_link_width                    yes  yes   yes   yes   yes   yes   yes   yes
pcie_link_width_max                yes  yes   yes   yes   yes   yes   yes   yes
pcie_replays_total                 yes  yes   yes   yes   yes   yes   yes   yes
nvlink_tx_bytes_total              yes  yes   yes   yes   yes   ns    ns    ns
nvlink_rx_bytes_total              yes  yes   yes   yes   yes   ns    ns    ns
nvlink_total_tx_bytes_total        yes  yes   yes   yes   yes   ns    ns    ns
nvlink_total_rx_bytes_total        yes  yes   yes   yes   yes   ns    ns    ns
nvlink_up                          yes  yes   yes   yes   yes   ns    ns    ns
nvlink_bandwidth_bytes_per_second  yes  yes   yes   yes   yes   ns    ns    ns
nvlink_errors_total                yes  yes   yes   yes   yes   ns    ns    ns
nvlink_peer_info                   yes  yes   yes   yes   yes   ns    ns    ns
pair_info                          yes  yes   yes   yes   yes   yes   yes   yes
fabric_state                       yes  yes   yes   ns    ns    ns    ns    yes
process_memory_bytes               yes  yes   yes   yes   yes   yes   yes   yes
foreign_memory_bytes               yes  yes   yes   yes   yes   yes   yes   yes
"""
PROFILES = {
    "h20": ("h20x2", "h20x8"),
    "h100": ("h100x8",),
    "b200": ("blackwell-x8",),
    "a100": ("driver535",),
    "v100": ("v100x2",),
    "l40s": ("pcie-x2",),
    "4090": ("rtx4090x2",),
    "mig": ("mig",),
}
_REASONS = {"ns": Reason.NOT_SUPPORTED}
_HEAD, *_ROWS = (line.split() for line in TABLE.strip().splitlines())
EXPECTED: dict[str, dict[Metric, str]] = {
    profile: {m.by_name()[f"poise_gpu_{row[0]}"]: row[1 + place] for row in _ROWS}
    for place, column in enumerate(_HEAD[1:])
    for profile in PROFILES[column]
}


def read_twice(cards: Bench) -> Gpu:
    """The first tick has no GPM sample before it."""
    cards.node.gpus[0].set_processes([Process(4711, 1 << 30)])
    cards.read()
    return cards.read(after=1.0)


def given_by(gpu: Gpu) -> set[Metric]:
    """All series of the card that a page would show."""
    joined = join((gpu,), (), lambda pid: "python").gpu_readings[gpu.uuid]
    return {metric for readings in (gpu_readings(gpu), gpu.readings, joined) for metric, values in readings.items() if values}


def test_the_table_has_every_series_of_a_card_and_every_profile() -> None:
    assert set(EXPECTED) == set(profiles.names())
    for row in EXPECTED.values():
        assert set(row) == {metric for metric in m.ALL if metric.owner is Owner.GPU}


@pytest.mark.parametrize("profile", EXPECTED)
def test_each_series_is_there_or_absent_with_its_reason(profile: str) -> None:
    with bench(profile) as cards:
        gpu = read_twice(cards)
        assert given_by(gpu) == {metric for metric, cell in EXPECTED[profile].items() if cell == "yes"}
        assert dict(gpu.absent) == {metric: _REASONS[cell] for metric, cell in EXPECTED[profile].items() if cell in _REASONS}
        assert all(run.success for run in cards.runs[0].values()), "an absence is no failure"


def test_a_card_that_is_divided_by_mig_is_said_once_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with bench("mig") as cards:
        assert read_twice(cards).value(m.GPU_MIG_MODE) == 1
        cards.prepare()
        cards.read_all_tiers()
        assert caplog.text.count("is divided by MIG") == 1
        assert "nothing of its instances" in caplog.text
        cards.node.gpus[0].set_mig(False)
        assert cards.read_all_tiers().value(m.GPU_MIG_MODE) == 0
        assert "not divided by MIG any more" in caplog.text
