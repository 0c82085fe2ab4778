"""What NVIDIA's header, its bindings and its kernel modules leave open, each as a question with what this machine answers.

An observation is a sentence; it judges nothing. Questions about one card are asked of the first.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml
from gpu_probe.nvml import Gpu, Nvml, Sample
from poise.exporter.nvml.library import FUNCTION_NOT_FOUND, SUCCESS, words_of

ALL_LINKS = 0xFFFFFFFF
_MEBI = 1 << 20
#: How long counters are watched for whether they move.
WATCH_SECONDS = 1.0
#: A program that only counts its CUDA devices.
_COUNT_DEVICES = """
import ctypes
library = ctypes.CDLL("libcuda.so.1")
count = ctypes.c_int(-1)
print(library.cuInit(0), library.cuDeviceGetCount(ctypes.byref(count)), count.value)
"""


@dataclass(frozen=True, slots=True)
class Question:
    """`ask` gives the observation, on the first card."""

    name: str
    text: str
    ask: Callable[[Nvml, Gpu], str]


def _code(code: int) -> str:
    return "ok" if code == SUCCESS else words_of(code)


def _memory(nvml: Nvml, gpu: Gpu) -> str:
    info = (ctypes.c_uint64 * 5)(pynvml.nvmlMemory_v2)
    code = nvml.call("nvmlDeviceGetMemoryInfo_v2", gpu.handle, info)
    if code:
        return words_of(code)
    total, reserved, free, used = list(info)[1:]
    old = (ctypes.c_uint64 * 3)()
    nvml.call("nvmlDeviceGetMemoryInfo", gpu.handle, old)
    parts = used + free + reserved
    text = f"total − (used + free + reserved) = {(total - parts) / _MEBI:.1f} MiB, total − (used + free) = {(total - used - free) / _MEBI:.1f} MiB"
    verdict = (
        "used is without reserved"
        if abs(total - parts) < _MEBI
        else "used contains reserved"
        if abs(total - used - free) < _MEBI
        else "neither sum is exact"
    )
    return f"{text}: {verdict}; reserved {reserved / _MEBI:.0f} MiB, version 1 says used {(old[2] - used) / _MEBI:+.0f} MiB"


def _memory_temperature(nvml: Nvml, gpu: Gpu) -> str:
    return f"field 82: {nvml.field(gpu, 82).text()}"


def _recovery(nvml: Nvml, gpu: Gpu) -> str:
    return f"field 230: {nvml.field(gpu, 230).text()}"


def _clock_events(nvml: Nvml, gpu: Gpu) -> str:
    wanted = [(field, 0) for field in (*range(74, 82), *range(251, 272))]
    before = {field.field: field for field in nvml.fields(gpu, wanted)}
    time.sleep(WATCH_SECONDS)
    after = {field.field: field for field in nvml.fields(gpu, wanted)}
    answering = [number for number, field in after.items() if field.code == SUCCESS]
    moved = [
        f"{number} (+{((after[number].value or 0) - (before[number].value or 0)) / 1e9:.3f} s)"
        for number in answering
        if after[number].value != before[number].value
    ]
    policies = []
    for policy in range(12):
        times = (ctypes.c_uint64 * 2)()
        if nvml.call("nvmlDeviceGetViolationStatus", gpu.handle, ctypes.c_int(policy), times) == SUCCESS:
            policies.append(f"{policy}: {times[1] / 1e9:.3f} s")
    code, mask = nvml.number("nvmlDeviceGetCurrentClocksEventReasons", gpu.handle, kind=ctypes.c_ulonglong)
    values = ", ".join(f"{number}: {(after[number].value or 0) / 1e9:.3f} s" for number in answering if after[number].value)
    return (
        f"answer: {_ranges(answering)}; not zero, read as ns: {values or 'none'}; moved in {WATCH_SECONDS:g} s: {', '.join(moved) or 'none'}; "
        f"mask {mask:#x} ({_code(code)}); nvmlDeviceGetViolationStatus: {', '.join(policies) or 'no policy'}"
    )


def _ranges(numbers: list[int]) -> str:
    parts: list[str] = []
    for number in numbers:
        if parts and int(parts[-1].rpartition("–")[2]) == number - 1:
            parts[-1] = f"{parts[-1].partition('–')[0]}–{number}"
        else:
            parts.append(str(number))
    return ", ".join(parts) or "none"


def _power(nvml: Nvml, gpu: Gpu) -> str:
    code, plain = nvml.number("nvmlDeviceGetPowerUsage", gpu.handle)
    scopes = {0: "card", 1: "module"}
    parts = [
        f"{name} {words}: {nvml.field(gpu, field, scope).text()} mW"
        for field, name in ((185, "average"), (186, "instant"))
        for scope, words in scopes.items()
    ]
    return f"nvmlDeviceGetPowerUsage: {plain} mW ({_code(code)}); {'; '.join(parts)}; energy field 83: {nvml.field(gpu, 83).text()} mJ, 191 module: {nvml.field(gpu, 191, 1).text()}"


def _pcie(nvml: Nvml, gpu: Gpu) -> str:
    before, begun = nvml.fields(gpu, [(197, 0), (198, 0)]), time.monotonic()
    time.sleep(WATCH_SECONDS)
    after, elapsed = nvml.fields(gpu, [(197, 0), (198, 0)]), time.monotonic() - begun
    parts = []
    for name, old, new in zip(("TX 197", "RX 198"), before, after, strict=True):
        if old.code or new.code or old.value is None or new.value is None:
            parts.append(f"{name}: {new.text()}")
        else:
            parts.append(
                f"{name}: type {new.kind}, {new.value:.0f}, {(new.value - old.value) / elapsed / 1e6:+.3f} MB/s, above 32 bits: {new.value >= 1 << 32}"
            )
    answering = [
        field.field for field in nvml.fields(gpu, [(field, 0) for field in (94, 95, 169, *range(173, 184))]) if field.code == SUCCESS
    ]
    return f"{'; '.join(parts)}; error counters that answer: {_ranges(answering)}"


def _c2c(nvml: Nvml, gpu: Gpu) -> str:
    count = nvml.field(gpu, 170)
    links = int(count.value or 0)
    parts = [f"{field}@{scope}: {nvml.field(gpu, field, scope).text()}" for field in (171, 172) for scope in range(min(links, 4))]
    return f"links (field 170): {count.text()}" + (f"; {', '.join(parts)}" if parts else "")


def _nvlink_fields(nvml: Nvml, gpu: Gpu) -> str:
    count = nvml.field(gpu, 91)
    links = int(count.value or 0)
    if not links:
        return f"links (field 91): {count.text()}"
    scopes = [0, links - 1, links]
    parts = [
        f"{number}: " + ", ".join(f"@{scope} {nvml.field(gpu, number, scope).text()}" for scope in scopes)
        for number in (164, 165, 166, 296)
    ]
    state = [nvml.number("nvmlDeviceGetNvLinkState", gpu.handle, ctypes.c_uint(link))[1] for link in range(links)]
    code, version = nvml.number("nvmlDeviceGetNvLinkVersion", gpu.handle, ctypes.c_uint(0))
    beyond = nvml.number("nvmlDeviceGetNvLinkState", gpu.handle, ctypes.c_uint(links))[0]
    return (
        f"links (91): {links}, to switches (147): {nvml.field(gpu, 147).text()}, common speed (90): {nvml.field(gpu, 90).text()}; {'; '.join(parts)}; "
        f"active by call: {sum(state)} of {links}; version {version} ({_code(code)}); a link too many: {_code(beyond)}"
    )


def _nvlink_bytes(nvml: Nvml, gpu: Gpu) -> str:
    links = int(nvml.field(gpu, 91).value or 0)
    if not links:
        return "no links"
    parts = []
    for number in (138, 139, 140, 141, 201, 202, 203, 204):
        each = nvml.fields(gpu, [(number, link) for link in range(links)])
        total = nvml.field(gpu, number, ALL_LINKS)
        given = [field.value or 0 for field in each if field.code == SUCCESS]
        parts.append(f"{number}: {len(given)} links, their sum {sum(given):g}, UINT_MAX {total.text()} (type {total.kind})")
    return "; ".join(parts)


def _nvlink_errors(nvml: Nvml, gpu: Gpu) -> str:
    if not int(nvml.field(gpu, 91).value or 0):
        return "no links"
    answering = [
        field.field
        for field in nvml.fields(gpu, [(number, 0) for number in (161, 162, 163, *range(205, 223), *range(235, 251), *range(289, 296))])
        if field.code == SUCCESS
    ]
    counters = [
        _code(
            nvml.number("nvmlDeviceGetNvLinkErrorCounter", gpu.handle, ctypes.c_uint(0), ctypes.c_int(counter), kind=ctypes.c_ulonglong)[0]
        )
        for counter in range(5)
    ]
    fields = [nvml.field(gpu, number).value for number in (161, 162, 163)]
    called = [
        nvml.number("nvmlDeviceGetNvLinkErrorCounter", gpu.handle, ctypes.c_uint(0), ctypes.c_int(counter), kind=ctypes.c_ulonglong)[1]
        for counter in range(3)
    ]
    return f"fields that answer at link 0: {_ranges(answering)}; calls: {', '.join(counters)}; 161 to 163 {fields}, calls 0 to 2 {called}"


def _ecc(nvml: Nvml, gpu: Gpu) -> str:
    mode = (ctypes.c_uint(), ctypes.c_uint())
    code = nvml.call("nvmlDeviceGetEccMode", gpu.handle, ctypes.byref(mode[0]), ctypes.byref(mode[1]))
    places = ("L1", "L2", "DRAM", "registers", "texture", "shared", "CBU", "SRAM")
    answering = [
        place
        for number, place in enumerate(places)
        if nvml.number(
            "nvmlDeviceGetMemoryErrorCounter", gpu.handle, ctypes.c_int(1), ctypes.c_int(0), ctypes.c_int(number), kind=ctypes.c_ulonglong
        )[0]
        == SUCCESS
    ]
    fields = [field.field for field in nvml.fields(gpu, [(number, 0) for number in range(3, 29)]) if field.code == SUCCESS]
    sram = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    sram.version = pynvml.nvmlEccSramErrorStatus_v1
    status = nvml.call("nvmlDeviceGetSramEccErrorStatus", gpu.handle, ctypes.byref(sram))
    return f"mode {mode[0].value} ({_code(code)}); places that answer: {', '.join(answering) or 'none'}; fields: {_ranges(fields)}; SRAM status as uid {os.getuid()}: {_code(status)}"


def _gpm(nvml: Nvml, gpu: Gpu) -> str:
    support = (ctypes.c_uint * 2)(pynvml.NVML_GPM_SUPPORT_VERSION, 0)
    code = nvml.call("nvmlGpmQueryDeviceSupport", gpu.handle, support)
    samples = [Sample(), Sample()]
    made = [nvml.call("nvmlGpmSampleAlloc", ctypes.byref(sample)) for sample in samples]
    if any(made):
        return f"support {support[1]} ({_code(code)}); samples: {_code(max(made))}"
    first = nvml.call("nvmlGpmSampleGet", gpu.handle, samples[0])
    time.sleep(0.2)
    second = nvml.call("nvmlGpmSampleGet", gpu.handle, samples[1])
    answered: list[int] = []
    if not first and not second:
        answered = [
            metric
            for metric in (*range(1, 22), *range(30, 62), *range(100, 105), *range(160, 170), *range(248, 262))
            if _gpm_metric(nvml, samples, metric) == SUCCESS
        ]
    for sample in samples:
        nvml.call("nvmlGpmSampleFree", sample)
    restrict = _driver_parameter("RmProfilingAdminOnly")
    return f"support {support[1]} ({_code(code)}); sample as uid {os.getuid()}: {_code(first)}; metrics that answer: {_ranges(answered)}; RmProfilingAdminOnly: {restrict}"


def _gpm_metric(nvml: Nvml, samples: list[Any], metric: int) -> int:
    request = pynvml.c_nvmlGpmMetricsGet_t()
    request.version, request.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, 1
    request.sample1, request.sample2 = samples
    request.metrics[0].metricId = metric
    return nvml.call("nvmlGpmMetricsGet", ctypes.byref(request)) or int(request.metrics[0].nvmlReturn)


def _driver_parameter(name: str) -> str:
    try:
        lines = Path("/proc/driver/nvidia/params").read_text().splitlines()
    except OSError as error:
        return f"unknown ({error.strerror})"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(f"{name}:")), "not told")


def _events(nvml: Nvml, gpu: Gpu) -> str:
    code, mask = nvml.number("nvmlDeviceGetSupportedEventTypes", gpu.handle, kind=ctypes.c_ulonglong)
    events, data = ctypes.c_void_p(), ctypes.create_string_buffer(32)
    made = nvml.call("nvmlEventSetCreate", ctypes.byref(events))
    if made:
        return f"supported {mask:#x} ({_code(code)}); set: {_code(made)}"
    wanted = ctypes.c_ulonglong(mask & 0x8)
    registered = nvml.call("nvmlDeviceRegisterEvents", gpu.handle, wanted, events)
    begun = time.monotonic()
    nothing = nvml.call("nvmlEventSetWait_v2", events, data, ctypes.c_uint(0))
    at_once = time.monotonic() - begun
    waited: list[tuple[int, float]] = []

    def wait() -> None:
        begun = time.monotonic()
        waited.append((nvml.call("nvmlEventSetWait_v2", events, data, ctypes.c_uint(500)), time.monotonic() - begun))

    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    time.sleep(0.1)
    begun = time.monotonic()
    again = nvml.call("nvmlDeviceRegisterEvents", nvml.gpus[-1].handle, wanted, events)
    blocked = time.monotonic() - begun
    waiter.join()
    nvml.call("nvmlEventSetFree", events)
    return (
        f"supported {mask:#x} ({_code(code)}); register XID: {_code(registered)}; wait 0 ms: {_code(nothing)} in {at_once * 1e3:.1f} ms; "
        f"wait 500 ms: {_code(waited[0][0])} in {waited[0][1] * 1e3:.0f} ms; register while another thread waits: {_code(again)} in {blocked * 1e3:.1f} ms"
    )


def _kernel_log(nvml: Nvml, gpu: Gpu) -> str:
    try:
        os.close(os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK))
    except OSError as error:
        return f"/dev/kmsg: {error.strerror}"
    return "/dev/kmsg can be read"


def _processes(nvml: Nvml, gpu: Gpu) -> str:
    parts = []
    for name in ("Compute", "Graphics", "MPSCompute"):
        entries, count = ctypes.create_string_buffer(24 * 256), ctypes.c_uint(256)
        code = nvml.call(f"nvmlDeviceGet{name}RunningProcesses_v3", gpu.handle, ctypes.byref(count), entries)
        pids = (
            [int.from_bytes(entries.raw[24 * place : 24 * place + 4], "little") for place in range(count.value)] if code == SUCCESS else []
        )
        unknown = sum(entries.raw[24 * place + 8 : 24 * place + 16] == b"\xff" * 8 for place in range(len(pids)))
        here = sum(Path(f"/proc/{pid}").exists() for pid in pids)
        parts.append(f"{name.lower()}: {_code(code)}, {len(pids)} processes, {here} of them in our /proc, {unknown} without a size")
    status = Path("/proc/self/status").read_text()
    namespaces = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [])
    return f"{'; '.join(parts)}; we have {len(namespaces)} pids (namespaces), driver {nvml.driver.info.driver}"


def _temperatures(nvml: Nvml, gpu: Gpu) -> str:
    sensors = []
    for sensor in (0, 1):
        request = (ctypes.c_int * 3)(pynvml.nvmlTemperature_v1, sensor, 0)
        code = nvml.call("nvmlDeviceGetTemperatureV", gpu.handle, request)
        sensors.append(f"sensor {sensor}: {request[2]} °C" if code == SUCCESS else f"sensor {sensor}: {words_of(code)}")
    margin = (ctypes.c_int * 2)(pynvml.nvmlMarginTemperature_v1, 0)
    code = nvml.call("nvmlDeviceGetMarginTemperature", gpu.handle, margin)
    thresholds = [nvml.number("nvmlDeviceGetTemperatureThreshold", gpu.handle, ctypes.c_int(number)) for number in range(4)]
    told = ", ".join(str(value) if not code else _code(code) for code, value in thresholds)
    limits = ", ".join(f"{number}: {nvml.field(gpu, number).text()}" for number in range(193, 197))
    return f"{'; '.join(sensors)}; margin {margin[1] if code == SUCCESS else words_of(code)}; thresholds {told}; T.Limit fields {limits}"


def _field_types(nvml: Nvml, gpu: Gpu) -> str:
    kinds: dict[int, list[int]] = {}
    for field in nvml.fields(gpu, [(number, 0) for number in range(1, 321)]):
        if field.code == SUCCESS:
            kinds.setdefault(field.kind, []).append(field.field)
    return "; ".join(f"type {kind}: {_ranges(numbers)}" for kind, numbers in sorted(kinds.items()))


def _confidential(nvml: Nvml, gpu: Gpu) -> str:
    state = (ctypes.c_uint * 3)()
    code = nvml.call("nvmlSystemGetConfComputeState", state)
    return f"environment, feature, debug tools: {list(state)}" if code == SUCCESS else words_of(code)


def _repair(nvml: Nvml, gpu: Gpu) -> str:
    rows = [ctypes.c_uint() for _ in range(4)]
    code = nvml.call("nvmlDeviceGetRemappedRows", gpu.handle, *[ctypes.byref(row) for row in rows])
    fields = ", ".join(f"{number}: {nvml.field(gpu, number).text()}" for number in (29, 30, 31, 142, 143, 144, 145))
    return f"nvmlDeviceGetRemappedRows: {[row.value for row in rows]} ({_code(code)}); fields {fields}"


def _versions_of_structs(nvml: Nvml, gpu: Gpu) -> str:
    parts = []
    for name, made, version in (
        ("FabricInfoV v2", pynvml.c_nvmlGpuFabricInfo_v2_t, pynvml.nvmlGpuFabricInfo_v2),
        ("FabricInfoV v3", pynvml.c_nvmlGpuFabricInfo_v3_t, pynvml.nvmlGpuFabricInfo_v3),
    ):
        info = made()
        info.version = version
        code = nvml.call("nvmlDeviceGetGpuFabricInfoV", gpu.handle, ctypes.byref(info))
        parts.append(f"{name}: {_code(code)}" + (f", state {info.state}, status {info.status}" if code == SUCCESS else ""))
    return "; ".join(parts)


def _symbols(nvml: Nvml, gpu: Gpu) -> str:
    wanted = (
        "nvmlInitWithFlags",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceGetMarginTemperature",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetGpuFabricInfoV",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlEventSetWait_v2",
        "nvmlEventSetWait_v3",
        "nvmlGpmMetricsGet",
        "nvmlDeviceGetSramEccErrorStatus",
        "nvmlDeviceGetPlatformInfo",
        "nvmlDeviceGetRepairStatus",
    )
    missing = [name for name in wanted if not nvml.driver.library.has(name)]
    return f"missing: {', '.join(missing) or 'none'} (a missing one counts as {words_of(FUNCTION_NOT_FOUND)})"


def _order(nvml: Nvml, gpu: Gpu) -> str:
    minors = [nvml.number("nvmlDeviceGetMinorNumber", card.handle)[1] for card in nvml.gpus]
    buses = [card.bus_id for card in nvml.gpus]
    return f"minors {minors}; by PCI address: {buses == sorted(buses)}; NUMA nodes by NVML: {[nvml.number('nvmlDeviceGetNumaNodeId', card.handle, kind=ctypes.c_int) for card in nvml.gpus]}"


def _visible_devices(nvml: Nvml, gpu: Gpu) -> str:
    answers = []
    for value in ("0,0", "0,99,0", gpu.uuid[:12]):
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": value}
        done = subprocess.run(
            [sys.executable, "-c", _COUNT_DEVICES], env=environment, capture_output=True, text=True, timeout=30, check=False
        )
        words = done.stdout.split()
        shown = value if value[:1].isdigit() else "the first card's UUID cut to 12 characters"
        answers.append(f"{shown}: " + (f"cuInit {words[0]}, {words[2]} devices" if len(words) == 3 else "no libcuda.so.1"))
    return "; ".join(answers)


QUESTIONS = (
    Question("symbols", "Which of the symbols that Poise asks for does this library have?", _symbols),
    Question("memory", "Does `used` of nvmlMemory_v2 contain the reserved part?", _memory),
    Question("memory_temperature", "Does this card tell its memory's temperature (field 82)?", _memory_temperature),
    Question("temperatures", "Which sensors, margins and thresholds are there; are T.Limit fields offsets?", _temperatures),
    Question("recovery_action", "Does field 230 (recovery action) answer on this driver?", _recovery),
    Question("remapped_rows", "Which of rows and pages answer, by call and by field?", _repair),
    Question("clock_events", "Which ids of clock-event counters answer on this driver, and are they ns?", _clock_events),
    Question("power", "Do fields 185 and 186 differ from nvmlDeviceGetPowerUsage; is there a module scope?", _power),
    Question("pcie", "Are PCIe byte counters (197, 198) 32 bits wide; which PCIe error counters answer?", _pcie),
    Question("c2c", "Do C2C fields take the link as scope?", _c2c),
    Question("nvlink_state", "What do state, speed, version and data rate of links say, and a link too many?", _nvlink_fields),
    Question("nvlink_bytes", "Which byte counters answer by link and as a sum (UINT_MAX), and do they agree?", _nvlink_bytes),
    Question("nvlink_errors", "Which error counters answer; are fields 161 to 163 calls 0 to 2?", _nvlink_errors),
    Question("ecc", "Which places of ECC errors are meaningful; does the SRAM status need root?", _ecc),
    Question("gpm", "Is GPM allowed for this user, and which metrics answer?", _gpm),
    Question("fabric", "Which struct versions of the fabric's state does this driver know?", _versions_of_structs),
    Question("processes", "Whose pids does the process list give, and does it know sizes?", _processes),
    Question("events", "Which events are supported; does a wait end in time; does registering wait for a waiter?", _events),
    Question("kernel_log", "May this user read the kernel log?", _kernel_log),
    Question("confidential_computing", "Is confidential computing on (it hides counters)?", _confidential),
    Question("order", "Is NVML's order that of PCI addresses, and are minors that order?", _order),
    Question(
        "visible_devices", "How many cards does CUDA see for a duplicate, a hole and a cut UUID in CUDA_VISIBLE_DEVICES?", _visible_devices
    ),
    Question("field_types", "Which type does each field have?", _field_types),
)
