"""The exporter's page before its real readers: promtool's linter, and a full node within the contract's budget."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from poise.exporter.checks.runner import Runner
from poise.exporter.exposition import Build, Exposition, library_collectors

from tests.full_node import page_engine, snapshot_of
from tests.simulated_cards import START, bench

pytestmark = pytest.mark.contract

PROMTOOL_SECONDS = 60


@pytest.mark.parametrize("profile", ["h20x2", "h100x8", "blackwell-x8", "pcie-x2", "driver535", "mig"])
def test_promtool_finds_nothing_to_complain_of(profile: str) -> None:
    promtool = shutil.which("promtool")
    assert promtool, "promtool is not installed: apt-get install prometheus"
    with bench(profile) as cards:
        count = 4 if profile == "h100x8" else 1
        snapshot = snapshot_of(cards, [page_engine(number, "tp2-server-after.prom", 2) for number in range(count)])
        page = Exposition(Build("1.2.3", "3.11"), library_collectors()).render(snapshot, Runner().observe(snapshot).results, START)
    done = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, timeout=PROMTOOL_SECONDS, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
