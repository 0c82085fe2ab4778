"""What each NVML call costs on this machine: median and 99th percentile in microseconds, and what a whole tick of Poise takes."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pynvml
from gpu_probe.nvml import Gpu, Nvml, Sample
from poise.exporter.nvml import registry
from poise.exporter.nvml.card import Card, CardMemory, Peer
from poise.exporter.nvml.library import words_of
from poise.exporter.nvml.reader import CardReader, Run

CALLS = 200
#: A call that is slow is made less often.
SECONDS_PER_CALL = 0.25
TICKS = 30
ALL_LINKS = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds over `calls` calls of the first card; `code` is the nvmlReturn_t of the last."""

    name: str
    code: int
    calls: int
    median: float
    p99: float

    def row(self) -> str:
        return f"{self.name:<58} {self.calls:>5} {self.median:>11.1f} {self.p99:>11.1f}  {'' if not self.code else words_of(self.code)}"


def timed(name: str, call: Callable[[], int]) -> Cost:
    took: list[float] = []
    code = 0
    end = time.perf_counter() + SECONDS_PER_CALL
    while len(took) < CALLS and (len(took) < 3 or time.perf_counter() < end):
        begun = time.perf_counter()
        code = call()
        took.append((time.perf_counter() - begun) * 1e6)
    took.sort()
    return Cost(name, code, len(took), statistics.median(took), took[min(len(took) - 1, int(len(took) * 0.99))])


def _numbers(count: int) -> list[Any]:
    return [ctypes.byref(ctypes.c_ulonglong()) for _ in range(count)]


def _fields(nvml: Nvml, gpu: Gpu, wanted: list[tuple[int, int]]) -> Callable[[], int]:
    """One prepared array, as the exporter uses it."""
    array = (pynvml.c_nvmlFieldValue_t * len(wanted))()
    for entry, (field, scope) in zip(array, wanted, strict=True):
        entry.fieldId, entry.scopeId = field, scope
    function = nvml.driver.library.function("nvmlDeviceGetFieldValues")
    reference, count = ctypes.byref(array), ctypes.c_int(len(wanted))
    return lambda: int(function(gpu.handle, count, reference))


def calls(nvml: Nvml) -> Iterator[Cost]:
    """Every call that Poise makes on a card, and some that it makes only when asked."""
    gpu = nvml.gpus[0]
    library, handle = nvml.driver.library, gpu.handle

    def plain(name: str, *arguments: Any) -> Cost:
        function = library.function(name)
        return timed(name, lambda: int(function(handle, *arguments)))

    count = ctypes.c_uint()
    get_count = library.function("nvmlDeviceGetCount_v2")
    yield timed("nvmlDeviceGetCount_v2", lambda: int(get_count(ctypes.byref(count))))
    memory = ctypes.create_string_buffer(40)
    ctypes.c_uint.from_buffer(memory).value = pynvml.nvmlMemory_v2
    yield plain("nvmlDeviceGetUtilizationRates", ctypes.byref((ctypes.c_uint * 2)()))
    yield plain("nvmlDeviceGetMemoryInfo_v2", memory)
    for name in ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetTotalEnergyConsumption"):
        yield plain(name, *_numbers(1))
    temperature = (ctypes.c_int * 3)(pynvml.nvmlTemperature_v1, 0, 0)
    yield plain("nvmlDeviceGetTemperatureV", ctypes.byref(temperature))
    yield plain("nvmlDeviceGetMarginTemperature", ctypes.byref((ctypes.c_int * 2)(pynvml.nvmlMarginTemperature_v1, 0)))
    yield plain("nvmlDeviceGetClockInfo", ctypes.c_int(1), *_numbers(1))
    yield plain("nvmlDeviceGetPerformanceState", *_numbers(1))
    yield plain("nvmlDeviceGetCurrentClocksEventReasons", *_numbers(1))
    yield plain("nvmlDeviceGetViolationStatus", ctypes.c_int(0), ctypes.create_string_buffer(16))
    samples, kind, number = ctypes.create_string_buffer(16 * 256), ctypes.c_int(), ctypes.c_uint(256)

    def ring() -> int:
        number.value = 256
        function = library.function("nvmlDeviceGetSamples")
        return int(function(handle, ctypes.c_int(1), ctypes.c_ulonglong(0), ctypes.byref(kind), ctypes.byref(number), samples))

    yield timed("nvmlDeviceGetSamples(GPU_UTILIZATION)", ring)
    for name in (
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetGraphicsRunningProcesses_v3",
        "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    ):
        entries, capacity = ctypes.create_string_buffer(24 * 64), ctypes.c_uint(64)

        def listed(name: str = name, entries: Any = entries, capacity: Any = capacity) -> int:
            capacity.value = 64
            return int(library.function(name)(handle, ctypes.byref(capacity), entries))

        yield timed(name, listed)
    yield plain("nvmlDeviceGetEncoderUtilization", *_numbers(2))
    yield plain("nvmlDeviceGetBAR1MemoryInfo", ctypes.create_string_buffer(24))
    yield plain("nvmlDeviceGetMigMode", *_numbers(2))
    yield plain("nvmlDeviceGetPersistenceMode", *_numbers(1))
    yield plain("nvmlDeviceGetPcieReplayCounter", *_numbers(1))
    yield plain("nvmlDeviceGetCurrPcieLinkGeneration", *_numbers(1))
    yield plain("nvmlDeviceGetPcieThroughput", ctypes.c_int(0), *_numbers(1))
    yield plain("nvmlDeviceGetTotalEccErrors", ctypes.c_int(1), ctypes.c_int(0), *_numbers(1))
    yield plain("nvmlDeviceGetMemoryErrorCounter", ctypes.c_int(1), ctypes.c_int(0), ctypes.c_int(2), *_numbers(1))
    yield plain("nvmlDeviceGetRemappedRows", *_numbers(4))
    yield plain("nvmlDeviceGetNvLinkState", ctypes.c_uint(0), *_numbers(1))
    yield plain("nvmlDeviceGetNvLinkErrorCounter", ctypes.c_uint(0), ctypes.c_int(0), *_numbers(1))
    fabric = pynvml.c_nvmlGpuFabricInfo_v2_t()
    fabric.version = pynvml.nvmlGpuFabricInfo_v2
    yield plain("nvmlDeviceGetGpuFabricInfoV", ctypes.byref(fabric))
    if len(nvml.gpus) > 1:
        yield plain("nvmlDeviceGetTopologyCommonAncestor", nvml.gpus[1].handle, *_numbers(1))
        yield plain("nvmlDeviceGetP2PStatus", nvml.gpus[1].handle, ctypes.c_int(0), *_numbers(1))
    links = int(nvml.field(gpu, pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT).value or 0)
    traffic = [(field, link) for field in (138, 139) for link in range(links)] + [(138, ALL_LINKS), (139, ALL_LINKS)]
    errors = [(field, link) for field in (161, 162, 163) for link in range(links)]
    slow = [(field, 0) for field in (74, 76, 82, 83, 91, 142, 143, 144, 145, 185, 186, 230, 269, 270, 271)]
    for name, wanted in (
        ("one field (power)", [(185, 0)]),
        (f"{len(slow)} fields of the card", slow),
        (f"{len(traffic)} fields, NVLink bytes", traffic),
        (f"{len(errors)} fields, NVLink errors", errors),
        (f"{len(slow) + len(traffic)} fields, all of a tick", slow + traffic),
    ):
        if wanted:
            yield timed(f"nvmlDeviceGetFieldValues: {name}", _fields(nvml, gpu, wanted))
    yield from _gpm(nvml, gpu)
    yield from _events(nvml)


def _gpm(nvml: Nvml, gpu: Gpu) -> Iterator[Cost]:
    """Two samples, at more than a tenth of a second apart, and what they give."""
    library = nvml.driver.library
    samples = [Sample(), Sample()]
    if any(library.function("nvmlGpmSampleAlloc")(ctypes.byref(sample)) for sample in samples):
        return
    take = library.function("nvmlGpmSampleGet")
    if take(gpu.handle, samples[0]) == 0:
        time.sleep(0.2)
    yield timed("nvmlGpmSampleGet", lambda: int(take(gpu.handle, samples[1])))
    request = pynvml.c_nvmlGpmMetricsGet_t()
    request.version, request.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, 6
    request.sample1, request.sample2 = samples
    for place, metric in enumerate((2, 3, 5, 10, 20, 21)):
        request.metrics[place].metricId = metric
    compare = library.function("nvmlGpmMetricsGet")
    yield timed("nvmlGpmMetricsGet, 6 metrics", lambda: int(compare(ctypes.byref(request))))
    for sample in samples:
        library.function("nvmlGpmSampleFree")(sample)


def _events(nvml: Nvml) -> Iterator[Cost]:
    library = nvml.driver.library
    events, data = ctypes.c_void_p(), ctypes.create_string_buffer(32)
    if library.function("nvmlEventSetCreate")(ctypes.byref(events)):
        return
    wait = library.function("nvmlEventSetWait_v2")
    yield timed("nvmlEventSetWait_v2(0 ms), nothing registered", lambda: int(wait(events, data, ctypes.c_uint(0))))
    library.function("nvmlEventSetFree")(events)


# ------------------------------------------------------------------------------------------------------------- a tick of Poise
def readers(nvml: Nvml) -> list[tuple[CardReader, dict[str, Run]]]:
    """The exporter's own readers of all cards, with every collector that is on by default."""
    made = []
    for gpu in nvml.gpus:
        peers = tuple(Peer(other.index, other.uuid, other.bus_id, other.handle) for other in nvml.gpus if other is not gpu)
        card = Card(
            nvml.driver.library,
            gpu.handle,
            index=gpu.index,
            uuid=gpu.uuid,
            name=gpu.name,
            interval=1.0,
            driver_version=nvml.driver.version,
            memory=CardMemory(),
            peers=lambda peers=peers: peers,
        )
        runs: dict[str, Run] = {}
        made.append((CardReader(card, registry.enabled({}), runs, wall=time.time, monotonic=time.monotonic), runs))
    return made


def ticks(nvml: Nvml) -> dict[str, Any]:
    """Milliseconds of ticks over all cards one after the other, the first apart, and of each collector on the first card."""
    made = readers(nvml)
    took: list[float] = []
    longest: dict[str, float] = {}
    for _ in range(TICKS):
        begun = time.perf_counter()
        for reader, _ in made:
            reader.tick()
        took.append((time.perf_counter() - begun) * 1e3)
        for name, run in made[0][1].items():
            longest[name] = max(longest.get(name, 0.0), run.duration * 1e3)
        time.sleep(0.15)
    for reader, _ in made:
        reader.card.close()
    return {
        "cards": len(made),
        "first_ms": took[0],
        "median_ms": statistics.median(took[1:]),
        "longest_ms": max(took[1:]),
        "longest_run_ms_by_collector": dict(sorted(longest.items(), key=lambda item: -item[1])),
        "errors": {name: run.error for name, run in made[0][1].items() if run.error},
    }
