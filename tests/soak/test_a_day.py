"""A day of ticks on an injected clock: nothing grows, no counter falls, every series is declared. Ticks: POISE_SOAK_TICKS (default 86,400).

Runs in a process of its own, so that what is measured is the exporter's and not the tests'. Writes its section of docs/soak.md.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tests.long_day import MEASURE_TICKS, PROFILE
from tests.soak_page import write_section

pytestmark = pytest.mark.soak

ROOT = Path(__file__).resolve().parents[2]
TICKS = int(os.environ.get("POISE_SOAK_TICKS", "86400"))
#: The share of the run in which memory settles. The cache of label texts decides it: processes that come and go fill its 16,384 places in about
#: 26,000 ticks, and the allocator takes some more until places are only exchanged.
WARM_UP = 0.4
#: What resident memory may grow by over the run, by its slope after the warm-up.
GROWTH_MEGABYTES = 2.0
SPARE = 1


def slope(values: list[int]) -> float:
    """By how much a least-squares line through evenly spaced values rises from its first to its last."""
    count = len(values)
    middle = (count - 1) / 2
    mean = sum(values) / count
    rise = sum((place - middle) * (value - mean) for place, value in enumerate(values))
    return rise / sum((place - middle) ** 2 for place in range(count)) * (count - 1)


def test_nothing_grows_in_a_day_of_ticks() -> None:
    done = subprocess.run([sys.executable, "-m", "tests.long_day", str(TICKS)], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, "a promise was broken, see above"
    figures = json.loads(done.stdout)
    write_section(ROOT / "docs" / "soak.md", "A day of ticks", report(figures))
    settled = {name: figures[name][int(len(figures[name]) * WARM_UP) :] for name in ("resident", "threads", "descriptors")}
    assert slope(settled["resident"]) / 1024 < GROWTH_MEGABYTES, settled["resident"]
    for name in ("threads", "descriptors"):
        # While the driver is unloaded there are fewer threads, so the highest of both halves are compared.
        half = len(settled[name]) // 2
        assert max(settled[name][half:]) <= max(settled[name][:half]) + SPARE, settled[name]


def report(figures: dict[str, object]) -> list[str]:
    """The section."""
    resident, threads, descriptors = (figures[name] for name in ("resident", "threads", "descriptors"))
    assert isinstance(resident, list)
    assert isinstance(threads, list)
    assert isinstance(descriptors, list)
    settled = resident[int(len(resident) * WARM_UP) :]
    return [
        f"Written by `make soak` (`tests/soak/test_a_day.py`): {TICKS:,} ticks of one second on an injected clock, Linux {platform.release()}, "
        f"Python {platform.python_version()}.",
        "",
        f"The real sampler with its threads, the real join, checks and page over the simulated library ({PROFILE}). Cards are lost, hang, fall off",
        "the bus and come back, a link goes down and up, XIDs come, the driver is unloaded and loaded, waiting for events hangs, three engines with",
        "recorded pages come and go. The clock moves on when all threads have done what was due.",
        "",
        f"* Resident memory: {settled[0] / 1024:.1f} MB after the warm-up, {settled[-1] / 1024:.1f} MB at the end; "
        f"slope from there on {slope(settled) / 1024:+.2f} MB (allowed {GROWTH_MEGABYTES:+.0f} MB), "
        f"in the second half {slope(resident[len(resident) // 2 :]) / 1024:+.2f} MB. The warm-up is {WARM_UP:.0%} of the run: processes that come and go",
        f"  fill the cache of label texts (16,384 places) until then, from {resident[1] / 1024:.1f} MB on.",
        f"* Threads {min(threads)} to {max(threads)}, open descriptors {min(descriptors)} to {max(descriptors)}, one look every {MEASURE_TICKS} ticks.",
        f"* {figures['pages']:,} pages of up to {figures['samples']:,} samples, in both formats: every name declared.",
        f"* {figures['xids']:,} XIDs counted, {figures['reloads']} driver reloads, {figures['down']:,} card-seconds down: no counter fell.",
    ]
