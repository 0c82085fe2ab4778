"""The library's own header, its functions and its names, held against NVIDIA's nvml.h and against pynvml.

nvml.h comes with the PyPI package nvidia-nvml-dev; what it says is read by a C compiler, not by us.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Iterator
from enum import IntEnum, IntFlag
from importlib.metadata import files
from pathlib import Path
from typing import Any

import pynvml
import pytest
from poise.testbed.nvml import codes, library
from poise.testbed.nvml.state import SOURCES, functions

COMPILERS = tuple(name for name in ("gcc", "clang") if shutil.which(name))

STRUCT = re.compile(r"^typedef (?:struct|union) \{\n(.*?)^\} (\w+);", re.MULTILINE | re.DOTALL)
ENUM = re.compile(r"^typedef enum \{\n(.*?)^\} (\w+);", re.MULTILINE | re.DOTALL)
DEFINE = re.compile(r"^#define (\w+) +(?!NVML_STRUCT_VERSION)\S", re.MULTILINE)
VERSION = re.compile(r"^#define (\w+) NVML_STRUCT_VERSION", re.MULTILINE)
MEMBER = re.compile(r"^    [\w ]+?[ *](\w+)(?:\[\w+\])?;", re.MULTILINE)


@pytest.fixture(scope="module")
def header() -> Path:
    for file in files("nvidia-nvml-dev") or ():
        if file.name == "nvml.h":
            return Path(str(file.locate()))
    raise AssertionError("the package nvidia-nvml-dev has no nvml.h")


@pytest.fixture(scope="module")
def ours() -> str:
    return "".join((SOURCES / f"nvml_{part}.h").read_text(encoding="utf-8") for part in ("enums", "fields", "abi"))


def constants(text: str) -> list[str]:
    names = [name for name in DEFINE.findall(text) if not name.startswith("POISE_")]
    for body, _ in ENUM.findall(text):
        names += re.findall(r"^    (\w+)", body, re.MULTILINE)
    return names


def structs(text: str) -> dict[str, list[str]]:
    """Name to members. Of a nested struct the name alone: its members are covered by the size."""
    return {name: MEMBER.findall(re.sub(r"struct \{[^}]*\}", "void *", body)) for body, name in STRUCT.findall(text)}


def evaluate(compiler: str, include: str, expressions: list[str], folder: Path, *options: str) -> list[int]:
    """Values of C expressions with a header included."""
    lines = "".join(f'    printf("%lld\\n", (long long)({expression}));\n' for expression in expressions)
    source = folder / "evaluate.c"
    source.write_text(f"{include}\n#include <stddef.h>\n#include <stdio.h>\nint main(void)\n{{\n{lines}}}\n")
    program = folder / "evaluate"
    subprocess.run([compiler, *options, "-o", str(program), str(source)], check=True, capture_output=True, text=True)
    printed = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    return [int(line) for line in printed.split()]


def test_every_constant_size_offset_and_version_is_nvml_hs(header: Path, ours: str, tmp_path: Path) -> None:
    expressions = constants(ours) + VERSION.findall(ours)
    for name, members in structs(ours).items():
        expressions += [f"sizeof({name})", *(f"offsetof({name}, {member})" for member in members)]
    assert len(expressions) > 600
    mine = evaluate("cc", '#include "nvml_abi.h"', expressions, tmp_path, f"-I{SOURCES}")
    real = evaluate("cc", "#include <nvml.h>", expressions, tmp_path, f"-I{header.parent}")
    assert dict(zip(expressions, mine, strict=True)) == dict(zip(expressions, real, strict=True))


def test_every_function_is_declared_as_nvml_h_declares_it(header: Path, tmp_path: Path) -> None:
    """The library compiles with nvml.h in the place of its own header, so every prototype agrees."""
    sources = [str(source) for source in sorted(SOURCES.glob("*.c")) if source.name != "unsupported.c"]
    flags = [flag for flag in library.COMPILE_FLAGS if flag not in ("-r", "-nostdlib")]
    done = subprocess.run(
        ["cc", *flags, "-fsyntax-only", "-DPOISE_CHECK_AGAINST_NVML_H", f"-I{header.parent}", *sources],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("compiler", COMPILERS)
def test_the_library_compiles_without_a_warning(compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", compiler)
    assert library.build(tmp_path).exists()


def test_every_function_of_nvml_h_is_exported(header: Path) -> None:
    text = header.read_text(encoding="utf-8")
    declared = set(re.findall(r"\b(?:nvmlReturn_t|const char\s*\*)\s+DECLDIR\s+(nvml\w+)\s*\(", text))
    declared |= set(re.findall(r"DECLDIR\s+(nvmlErrorString)\s*\(", text))
    handle = ctypes.CDLL(str(library.build()))
    assert len(declared) > 430
    assert sorted(name for name in declared if not hasattr(handle, name)) == []
    assert sorted(declared - set(functions())) == []


def test_every_wrapper_of_pynvml_finds_its_symbol() -> None:
    handle = ctypes.CDLL(str(library.build()))
    text = Path(pynvml.__file__).read_text(encoding="utf-8")
    wanted = set(re.findall(r'_nvmlGetFunctionPointer\("(nvml\w+)"\)', text))
    assert len(wanted) > 350
    # Names that pynvml asks for and no nvml.h declares: its own slips and functions that NVIDIA keeps to itself.
    missing = {name for name in wanted if not hasattr(handle, name)}
    declared = {name for name in missing if name in functions()}
    assert declared == set()
    assert len(missing) < 20


def test_pynvml_agrees_on_constants_and_struct_sizes(ours: str, tmp_path: Path) -> None:
    names = [name for name in constants(ours) if isinstance(getattr(pynvml, name, None), int)]
    values = evaluate("cc", '#include "nvml_abi.h"', names, tmp_path, f"-I{SOURCES}")
    assert len(names) > 400
    # Three deprecated spellings of a count differ by design of pynvml: it counts what it wraps.
    differing = {name for name, value in zip(names, values, strict=True) if getattr(pynvml, name) != value}
    assert differing <= {"NVML_BRAND_COUNT", "NVML_P2P_CAPS_INDEX_UNKNOWN"}

    shared = [(name, getattr(pynvml, f"c_{name}")) for name in structs(ours) if hasattr(pynvml, f"c_{name}")]
    sizes = evaluate("cc", '#include "nvml_abi.h"', [f"sizeof({name})" for name, _ in shared], tmp_path, f"-I{SOURCES}")
    assert len(shared) > 20
    assert {name: size for (name, _), size in zip(shared, sizes, strict=True)} == {name: ctypes.sizeof(mirror) for name, mirror in shared}


def test_pynvml_agrees_on_struct_versions(ours: str, tmp_path: Path) -> None:
    names = [name for name in VERSION.findall(ours) if isinstance(getattr(pynvml, name, None), int)]
    values = evaluate("cc", '#include "nvml_abi.h"', names, tmp_path, f"-I{SOURCES}")
    assert {name: getattr(pynvml, name) for name in names} == dict(zip(names, values, strict=True))
    assert "nvmlMemory_v2" in names


# ---- our names for the numbers ----

PREFIXES: dict[type[IntEnum] | type[IntFlag], tuple[str, dict[str, str]]] = {
    codes.Architecture: ("NVML_DEVICE_ARCH_", {}),
    codes.Brand: ("NVML_BRAND_", {}),
    codes.Clock: ("NVML_CLOCK_", {"MEMORY": "MEM"}),
    codes.TopologyLevel: (
        "NVML_TOPOLOGY_",
        {"PIX": "SINGLE", "PXB": "MULTIPLE", "PHB": "HOSTBRIDGE", "NODE": "NODE", "SYS": "SYSTEM"},
    ),
    codes.LinkState: ("NVML_NVLINK_STATE_", {}),
    codes.RemoteType: ("NVML_NVLINK_DEVICE_TYPE_", {}),
    codes.LinkVersion: ("NVML_NVLINK_VERSION_", {member.name: member.name[1:] for member in codes.LinkVersion}),
    codes.LinkError: ("NVML_NVLINK_ERROR_DL_", {}),
    codes.Gpm: ("NVML_GPM_METRIC_", {}),
    codes.Threshold: ("NVML_TEMPERATURE_THRESHOLD_", {"MEMORY_MAX": "MEM_MAX"}),
    codes.MemoryPlace: ("NVML_MEMORY_LOCATION_", {}),
    codes.RecoveryAction: ("NVML_GPU_RECOVERY_ACTION_", {}),
    codes.FabricState: ("NVML_GPU_FABRIC_STATE_", {}),
    codes.P2PStatus: ("NVML_P2P_STATUS_", {}),
    codes.P2PCapability: ("NVML_P2P_CAPS_INDEX_", {}),
    codes.SampleKind: (
        "NVML_",
        {
            "TOTAL_POWER": "TOTAL_POWER_SAMPLES",
            "GPU_UTILIZATION": "GPU_UTILIZATION_SAMPLES",
            "MEMORY_UTILIZATION": "MEMORY_UTILIZATION_SAMPLES",
            "ENCODER_UTILIZATION": "ENC_UTILIZATION_SAMPLES",
            "DECODER_UTILIZATION": "DEC_UTILIZATION_SAMPLES",
            "PROCESSOR_CLOCK": "PROCESSOR_CLK_SAMPLES",
            "MEMORY_CLOCK": "MEMORY_CLK_SAMPLES",
            "MODULE_POWER": "MODULE_POWER_SAMPLES",
            "JPEG_UTILIZATION": "JPG_UTILIZATION_SAMPLES",
            "OFA_UTILIZATION": "OFA_UTILIZATION_SAMPLES",
        },
    ),
    codes.EventReason: (
        "nvmlClocks",
        {
            "GPU_IDLE": "EventReasonGpuIdle",
            "APPLICATIONS_CLOCKS": "EventReasonApplicationsClocksSetting",
            "SW_POWER_CAP": "EventReasonSwPowerCap",
            "HW_SLOWDOWN": "ThrottleReasonHwSlowdown",
            "SYNC_BOOST": "EventReasonSyncBoost",
            "SW_THERMAL_SLOWDOWN": "EventReasonSwThermalSlowdown",
            "HW_THERMAL_SLOWDOWN": "ThrottleReasonHwThermalSlowdown",
            "HW_POWER_BRAKE": "ThrottleReasonHwPowerBrakeSlowdown",
            "DISPLAY_CLOCK": "EventReasonDisplayClockSetting",
            "BOARD_LIMIT": "EventReasonBoardLimit",
            "RELIABILITY": "EventReasonReliability",
        },
    ),
    codes.EventType: (
        "nvmlEvent",
        {
            "SINGLE_BIT_ECC_ERROR": "TypeSingleBitEccError",
            "DOUBLE_BIT_ECC_ERROR": "TypeDoubleBitEccError",
            "P_STATE": "TypePState",
            "XID_CRITICAL_ERROR": "TypeXidCriticalError",
            "CLOCK": "TypeClock",
            "POWER_SOURCE_CHANGE": "TypePowerSourceChange",
            "MIG_CONFIG_CHANGE": "MigConfigChange",
            "SINGLE_BIT_ECC_ERROR_STORM": "TypeSingleBitEccErrorStorm",
            "DRAM_RETIREMENT_EVENT": "TypeDramRetirementEvent",
            "DRAM_RETIREMENT_FAILURE": "TypeDramRetirementFailure",
            "NON_FATAL_POISON_ERROR": "TypeNonFatalPoisonError",
            "FATAL_POISON_ERROR": "TypeFatalPoisonError",
            "GPU_UNAVAILABLE_ERROR": "TypeGpuUnavailableError",
            "GPU_RECOVERY_ACTION": "TypeGpuRecoveryAction",
        },
    ),
    codes.BlackwellLinkError: (
        "NVML_FI_DEV_NVLINK_COUNT_",
        {
            "MALFORMED_PACKET": "MALFORMED_PACKET_ERRORS",
            "BUFFER_OVERRUN": "BUFFER_OVERRUN_ERRORS",
            "RECEIVE": "RCV_ERRORS",
            "RECEIVE_REMOTE": "RCV_REMOTE_ERRORS",
            "RECEIVE_GENERAL": "RCV_GENERAL_ERRORS",
            "LOCAL_LINK_INTEGRITY": "LOCAL_LINK_INTEGRITY_ERRORS",
            "TRANSMIT_DISCARD": "XMIT_DISCARDS",
            "RECOVERY_SUCCESSFUL": "LINK_RECOVERY_SUCCESSFUL_EVENTS",
            "RECOVERY_FAILED": "LINK_RECOVERY_FAILED_EVENTS",
            "RECOVERY": "LINK_RECOVERY_EVENTS",
            "EFFECTIVE": "EFFECTIVE_ERRORS",
            "EFFECTIVE_BER": "EFFECTIVE_BER",
            "SYMBOL": "SYMBOL_ERRORS",
            "SYMBOL_BER": "SYMBOL_BER",
        },
    ),
}


def named_numbers() -> Iterator[tuple[str, int]]:
    for code in codes.ReturnCode:
        yield ("NVML_SUCCESS" if code == 0 else f"NVML_ERROR_{code.name}"), code.value
    for kind, (prefix, names) in PREFIXES.items():
        member: Any
        for member in kind:
            yield prefix + names.get(member.name, member.name), member.value


def test_our_names_stand_for_nvml_hs_numbers(header: Path, tmp_path: Path) -> None:
    expected = dict(named_numbers())
    values = evaluate("cc", "#include <nvml.h>", list(expected), tmp_path, f"-I{header.parent}")
    assert expected == dict(zip(expected, values, strict=True))


# ---- units ----

# What nvml.h says near a declaration, and what the library takes that to mean.
UNITS = {
    "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX ": r"in KiB",
    "NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_RX ": r"\+ protocol overhead in KiB",
    "NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION ": r"in mJ since the driver was last reloaded",
    "NVML_FI_DEV_ENERGY ": r"in mJ",
    "NVML_FI_DEV_NVLINK_GET_SPEED ": r"Speed in MBps",
    "NVML_FI_DEV_POWER_CURRENT_LIMIT ": r"in milliwatts",
    "NVML_FI_DEV_PCIE_COUNT_TX_BYTES ": r"transmit bytes\. Value can be wrapped",
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN ": r"in ns",
    "unsigned long long violationTime;": r"in Nanoseconds",
}


@pytest.mark.parametrize("declaration", UNITS)
def test_nvml_h_says_the_unit_that_the_library_uses(declaration: str, header: Path) -> None:
    lines = header.read_text(encoding="utf-8").splitlines()
    found = [line for line in lines if declaration in re.sub(r" +", " ", line)]
    assert [line for line in found if re.search(UNITS[declaration], line)], found


@pytest.mark.parametrize(
    ("function", "unit"),
    [
        ("nvmlDeviceGetPowerUsage", "milliwatts"),
        ("nvmlDeviceGetTotalEnergyConsumption", "millijoules"),
        ("nvmlDeviceGetPcieThroughput", "KB/s"),
        ("nvmlDeviceGetPcieThroughput", "20ms"),
        ("nvmlDeviceGetClockInfo", "MHz"),
        ("nvmlDeviceGetTemperatureThreshold", "degrees C"),
    ],
)
def test_nvml_h_says_the_unit_of_a_function(function: str, unit: str, header: Path) -> None:
    text = header.read_text(encoding="utf-8")
    end = re.search(rf"DECLDIR {function}\(", text)
    assert end is not None
    comment = text[text.rindex("/**", 0, end.start()) : end.start()]
    assert unit in comment
