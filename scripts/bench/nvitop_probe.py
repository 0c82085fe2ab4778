"""Runs in nvitop-exporter's own environment: times its update of all cards, or serves it with its PCIe reads left out.

    nvitop_probe.py time UPDATES [--without-pcie]     prints one JSON object
    nvitop_probe.py serve [--without-pcie] -- ARGS…   is `nvitop-exporter ARGS…`

NVML's PCIe throughput call blocks for 20 ms, twice per card and update; leaving it out shows what the rest costs. Nothing of Poise is
imported here.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable

import nvitop
from nvitop_exporter import cli
from nvitop_exporter.exporter import PrometheusExporter


def leave_out_pcie() -> None:
    """Replaces the two blocking reads by a constant."""
    for name in ("pcie_tx_throughput", "pcie_rx_throughput"):
        setattr(nvitop.Device, name, lambda self: 0)


def time_updates(updates: int, clock: Callable[[], float]) -> None:
    devices = nvitop.Device.all()
    exporter = PrometheusExporter(devices, hostname="bench", interval=1.0)
    took = []
    for _ in range(updates + 1):
        begun = clock()
        for device in devices:
            exporter.update_device(device)
        took.append(clock() - begun)
    took = took[1:]
    print(json.dumps({"median_s": statistics.median(took), "mean_s": statistics.fmean(took)}))


def main(words: list[str]) -> int:
    # With its PCIe reads it waits, so the time that passes counts; without, its CPU time, whatever others do on the machine.
    clock = time.perf_counter
    if "--without-pcie" in words:
        leave_out_pcie()
        words.remove("--without-pcie")
        clock = time.thread_time
    if words[0] == "time":
        time_updates(int(words[1]), clock)
        return 0
    sys.argv = ["nvitop-exporter", *words[words.index("--") + 1 :]]
    return cli.main()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
