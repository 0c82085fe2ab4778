"""Every number that a card gives, read with the real pynvml: so that a test can say which of them moved."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

ALL_LINKS = 0xFFFFFFFF
LINKS_READ = 2  # links 0 and 1 stand for all
FIELD_LIMIT = 310  # NVML_FI_MAX of nvml.h 13.5

UNION_MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}


def field_number(value: Any) -> Any:
    """What a field says: its number as its type reads it, or `error 3`."""
    if value.nvmlReturn:
        return f"error {value.nvmlReturn}"
    return getattr(value.value, UNION_MEMBERS[value.valueType])


def read_card(pynvml: ModuleType, handle: Any) -> dict[str, Any]:
    """Name to number, or `error N`. Names are those of the functions, shortened; fields are `field 138 link 1`.

    PCIe throughput is not among them: it blocks for 20 ms and has a test of its own.
    """
    n = pynvml
    found: dict[str, Any] = {}

    def keep(name: str, read: Callable[[], Any]) -> None:
        try:
            found[name] = read()
        except n.NVMLError as error:
            found[name] = f"error {error.value}"

    def whole(name: str, read: Callable[[], Any], *members: str) -> None:
        try:
            got = read()
        except n.NVMLError as error:
            found.update({f"{name}.{member}": f"error {error.value}" for member in members})
            return
        for index, member in enumerate(members):
            found[f"{name}.{member}"] = got[index] if isinstance(got, (list, tuple)) else getattr(got, member)

    for name in ("Name", "UUID", "Serial", "VbiosVersion", "BoardPartNumber", "MinorNumber", "Brand", "Architecture"):
        keep(name, lambda name=name: getattr(n, f"nvmlDeviceGet{name}")(handle))
    for name in ("PowerUsage", "TotalEnergyConsumption", "EnforcedPowerLimit", "PowerManagementLimit", "FanSpeed"):
        keep(name, lambda name=name: getattr(n, f"nvmlDeviceGet{name}")(handle))
    for name in ("CurrPcieLinkGeneration", "MaxPcieLinkGeneration", "CurrPcieLinkWidth", "MaxPcieLinkWidth"):
        keep(name, lambda name=name: getattr(n, f"nvmlDeviceGet{name}")(handle))
    for name in ("PcieReplayCounter", "PerformanceState", "CurrentClocksEventReasons", "PersistenceMode", "NumFans"):
        keep(name, lambda name=name: getattr(n, f"nvmlDeviceGet{name}")(handle))
    whole("Utilization", lambda: n.nvmlDeviceGetUtilizationRates(handle), "gpu", "memory")
    for engine in ("Encoder", "Decoder", "Jpg", "Ofa"):
        keep(engine, lambda engine=engine: getattr(n, f"nvmlDeviceGet{engine}Utilization")(handle)[0])
    whole("MemoryV1", lambda: n.nvmlDeviceGetMemoryInfo(handle), "total", "used", "free")
    memory_v2 = lambda: n.nvmlDeviceGetMemoryInfo(handle, version=n.nvmlMemory_v2)  # noqa: E731  # reads as the rows below
    whole("Memory", memory_v2, "total", "reserved", "used", "free")
    whole("Bar1", lambda: n.nvmlDeviceGetBAR1MemoryInfo(handle), "bar1Total", "bar1Used", "bar1Free")
    keep("Temperature", lambda: n.nvmlDeviceGetTemperature(handle, n.NVML_TEMPERATURE_GPU))
    keep("TemperatureV", lambda: n.nvmlDeviceGetTemperatureV(handle, n.NVML_TEMPERATURE_GPU))
    keep("TemperatureHotspot", lambda: n.nvmlDeviceGetTemperatureV(handle, 1))
    keep("Margin", lambda: n.nvmlDeviceGetMarginTemperature(handle))
    for threshold in range(4):
        keep(f"Threshold {threshold}", lambda t=threshold: n.nvmlDeviceGetTemperatureThreshold(handle, t))
    for clock in range(4):
        keep(f"Clock {clock}", lambda c=clock: n.nvmlDeviceGetClockInfo(handle, c))
        keep(f"ClockMax {clock}", lambda c=clock: n.nvmlDeviceGetMaxClockInfo(handle, c))
    for policy in (0, 1, 2, 3, 4, 5, 10, 11):
        keep(f"Violation {policy}", lambda p=policy: n.nvmlDeviceGetViolationStatus(handle, p).violationTime)
    for kind in range(2):
        for counter in range(2):
            keep(f"Ecc {kind} {counter}", lambda k=kind, c=counter: n.nvmlDeviceGetTotalEccErrors(handle, k, c))
    whole("EccMode", lambda: n.nvmlDeviceGetEccMode(handle), "current", "pending")
    whole("MigMode", lambda: n.nvmlDeviceGetMigMode(handle), "current", "pending")
    whole("Rows", lambda: n.nvmlDeviceGetRemappedRows(handle), "correctable", "uncorrectable", "pending", "failed")
    for link in range(LINKS_READ):
        for name in ("State", "Version", "RemoteDeviceType"):
            keep(f"Link {link} {name}", lambda k=link, name=name: getattr(n, f"nvmlDeviceGetNvLink{name}")(handle, k))
        for counter in range(5):
            keep(f"Link {link} error {counter}", lambda k=link, c=counter: n.nvmlDeviceGetNvLinkErrorCounter(handle, k, c))
    for kind in ("Compute", "Graphics", "MPSCompute"):
        keep(f"{kind}Processes", lambda kind=kind: len(getattr(n, f"nvmlDeviceGet{kind}RunningProcesses")(handle)))
    scopes: list[tuple[str, int]] = [("", 0), (" link 1", 1), (" all", ALL_LINKS)]
    for label, scope in scopes:
        wanted = [(field, scope) for field in range(1, FIELD_LIMIT)]
        for value in n.nvmlDeviceGetFieldValues(handle, wanted):
            found[f"field {value.fieldId}{label}"] = field_number(value)
    return found


def moved(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Readings that are not what they were, with their new value."""
    return {name: value for name, value in after.items() if before[name] != value}
