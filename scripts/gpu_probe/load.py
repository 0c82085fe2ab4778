"""A short load with PyTorch where that is at hand: what the driver says while the card works, and whether FP8 and BF16 are HMMA to GPM."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import time

import pynvml
from gpu_probe.nvml import Gpu, Nvml, Sample
from poise.exporter.nvml.library import SUCCESS, words_of

LOAD_SECONDS = 6.0
#: For importing PyTorch and making a context.
START_SECONDS = 60.0
PROGRAM = """
import os, sys, time
try:
    import torch
    assert torch.cuda.is_available()
except Exception as error:
    print("no:", type(error).__name__, error); sys.exit(0)
torch.cuda.set_device(0)
a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
b = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
(a @ b).sum().item()
print("ready:", os.getpid(), torch.__version__, flush=True)
end = time.time() + float(sys.argv[1])
while time.time() < end:
    for _ in range(50):
        c = a @ b
    torch.cuda.synchronize()
"""
GPM = {2: "SM", 3: "occupancy", 5: "any tensor", 7: "HMMA", 9: "IMMA", 10: "DRAM", 13: "FP16", 20: "PCIe TX MiB/s", 21: "PCIe RX MiB/s"}


def run(nvml: Nvml, gpu: Gpu) -> list[tuple[str, str]]:
    """(what, observation) pairs; one that says why when there is no PyTorch. Uses CUDA's first device, which need not be NVML's."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(LOAD_SECONDS)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline().strip()
            if not line.startswith("ready:"):
                return [("load", f"not tried: {line.removeprefix('no: ') or 'the program ended'}")]
            pid = int(line.split()[1])
            return [("load", f"BF16 matrix products with PyTorch {line.split()[2]} for {LOAD_SECONDS:g} s"), *_watch(nvml, gpu, pid)]
        finally:
            process.kill()


def _watch(nvml: Nvml, gpu: Gpu, pid: int) -> list[tuple[str, str]]:
    samples = [Sample(), Sample()]
    made = not any(nvml.call("nvmlGpmSampleAlloc", ctypes.byref(sample)) for sample in samples)
    taken = made and nvml.call("nvmlGpmSampleGet", gpu.handle, samples[0]) == SUCCESS
    before = nvml.fields(gpu, [(83, 0), (197, 0), (198, 0), (74, 0)])
    time.sleep(LOAD_SECONDS / 2)
    after = nvml.fields(gpu, [(83, 0), (197, 0), (198, 0), (74, 0)])
    rates = (ctypes.c_uint * 2)()
    nvml.call("nvmlDeviceGetUtilizationRates", gpu.handle, rates)
    plain = nvml.number("nvmlDeviceGetPowerUsage", gpu.handle)[1]
    found = [
        ("load: utilization", f"{rates[0]} %, memory {rates[1]} %"),
        ("load: power", f"nvmlDeviceGetPowerUsage {plain} mW, 185 {nvml.field(gpu, 185).text()}, 186 {nvml.field(gpu, 186).text()}"),
        ("load: processes", _sees(nvml, gpu, pid)),
    ]
    for old, new, name in zip(before, after, ("energy 83, mJ", "PCIe 197, bytes", "PCIe 198, bytes", "power cap 74, ns"), strict=True):
        moved = (
            f"{(new.value or 0) - (old.value or 0):g} in {LOAD_SECONDS / 2:g} s" if not old.code and not new.code else words_of(new.code)
        )
        found.append((f"load: {name}", moved))
    if taken and nvml.call("nvmlGpmSampleGet", gpu.handle, samples[1]) == SUCCESS:
        request = pynvml.c_nvmlGpmMetricsGet_t()
        request.version, request.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, len(GPM)
        request.sample1, request.sample2 = samples
        for place, metric in enumerate(GPM):
            request.metrics[place].metricId = metric
        nvml.call("nvmlGpmMetricsGet", ctypes.byref(request))
        values = ", ".join(
            f"{name} {request.metrics[place].value:.1f}" for place, name in enumerate(GPM.values()) if not request.metrics[place].nvmlReturn
        )
        found.append(("load: GPM (BF16 is HMMA?)", values or "no metric answers"))
    if made:
        for sample in samples:
            nvml.call("nvmlGpmSampleFree", sample)
    return found


def _sees(nvml: Nvml, gpu: Gpu, pid: int) -> str:
    entries, count = ctypes.create_string_buffer(24 * 256), ctypes.c_uint(256)
    code = nvml.call("nvmlDeviceGetComputeRunningProcesses_v3", gpu.handle, ctypes.byref(count), entries)
    if code:
        return words_of(code)
    listed = {
        int.from_bytes(entries.raw[24 * place : 24 * place + 4], "little"): int.from_bytes(
            entries.raw[24 * place + 8 : 24 * place + 16], "little"
        )
        for place in range(count.value)
    }
    size = listed.get(pid)
    return f"the load's pid {'is' if size is not None else 'is not'} in the list of {len(listed)}" + (
        f", {size / (1 << 20):.0f} MiB" if size else ""
    )
