"""Names for NVML's numbers that a caller of the simulated node says: return codes, clocks, reasons, metrics, levels.

Values are those of nvml.h; tests/unit/testbed/nvml/test_abi.py holds them against it through csrc/nvml_abi.h and pynvml.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag


class ReturnCode(IntEnum):
    """nvmlReturn_t."""

    SUCCESS = 0
    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    ALREADY_INITIALIZED = 5
    NOT_FOUND = 6
    INSUFFICIENT_SIZE = 7
    INSUFFICIENT_POWER = 8
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    IRQ_ISSUE = 11
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    CORRUPTED_INFOROM = 14
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    OPERATING_SYSTEM = 17
    LIB_RM_VERSION_MISMATCH = 18
    IN_USE = 19
    MEMORY = 20
    NO_DATA = 21
    INSUFFICIENT_RESOURCES = 23
    ARGUMENT_VERSION_MISMATCH = 25
    NOT_READY = 27
    GPU_NOT_FOUND = 28
    UNKNOWN = 999


class Architecture(IntEnum):
    """NVML_DEVICE_ARCH_*."""

    PASCAL = 4
    VOLTA = 5
    TURING = 6
    AMPERE = 7
    ADA = 8
    HOPPER = 9
    BLACKWELL = 10
    RUBIN = 13


class Brand(IntEnum):
    """nvmlBrandType_t."""

    TESLA = 2
    GEFORCE = 5
    NVIDIA_RTX = 13
    NVIDIA = 14


class Clock(IntEnum):
    """nvmlClockType_t."""

    GRAPHICS = 0
    SM = 1
    MEMORY = 2
    VIDEO = 3


class EventReason(IntFlag):
    """nvmlClocksEventReason*: why clocks are lower than they could be."""

    GPU_IDLE = 0x1
    APPLICATIONS_CLOCKS = 0x2
    SW_POWER_CAP = 0x4
    HW_SLOWDOWN = 0x8
    SYNC_BOOST = 0x10
    SW_THERMAL_SLOWDOWN = 0x20
    HW_THERMAL_SLOWDOWN = 0x40
    HW_POWER_BRAKE = 0x80
    DISPLAY_CLOCK = 0x100
    BOARD_LIMIT = 0x200
    RELIABILITY = 0x400


class EventType(IntFlag):
    """nvmlEventType*."""

    SINGLE_BIT_ECC_ERROR = 0x1
    DOUBLE_BIT_ECC_ERROR = 0x2
    P_STATE = 0x4
    XID_CRITICAL_ERROR = 0x8
    CLOCK = 0x10
    POWER_SOURCE_CHANGE = 0x80
    MIG_CONFIG_CHANGE = 0x100
    SINGLE_BIT_ECC_ERROR_STORM = 0x200
    DRAM_RETIREMENT_EVENT = 0x400
    DRAM_RETIREMENT_FAILURE = 0x800
    NON_FATAL_POISON_ERROR = 0x1000
    FATAL_POISON_ERROR = 0x2000
    GPU_UNAVAILABLE_ERROR = 0x4000
    GPU_RECOVERY_ACTION = 0x8000


class SampleKind(IntEnum):
    """nvmlSamplingType_t, with the unit of its values."""

    TOTAL_POWER = 0  # mW
    GPU_UTILIZATION = 1  # percent
    MEMORY_UTILIZATION = 2
    ENCODER_UTILIZATION = 3
    DECODER_UTILIZATION = 4
    PROCESSOR_CLOCK = 5  # MHz
    MEMORY_CLOCK = 6
    MODULE_POWER = 7  # mW
    JPEG_UTILIZATION = 8
    OFA_UTILIZATION = 9


class TopologyLevel(IntEnum):
    """nvmlGpuTopologyLevel_t, in nvidia-smi's words: PIX, PXB, PHB, NODE, SYS."""

    INTERNAL = 0
    PIX = 10
    PXB = 20
    PHB = 30
    NODE = 40
    SYS = 50


class P2PStatus(IntEnum):
    """nvmlGpuP2PStatus_t."""

    OK = 0
    CHIPSET_NOT_SUPPORTED = 1
    GPU_NOT_SUPPORTED = 2
    IOH_TOPOLOGY_NOT_SUPPORTED = 3
    DISABLED_BY_REGKEY = 4
    NOT_SUPPORTED = 5
    UNKNOWN = 6


class P2PCapability(IntEnum):
    """nvmlGpuP2PCapsIndex_t."""

    READ = 0
    WRITE = 1
    NVLINK = 2
    ATOMICS = 3
    PCI = 4


class LinkState(IntEnum):
    """NVML_NVLINK_STATE_*."""

    INACTIVE = 0
    ACTIVE = 1
    SLEEP = 2
    ACTIVE_TRAFFIC_DISABLED = 3


class LinkVersion(IntEnum):
    """nvmlNvlinkVersion_t: an enumeration, not the version itself."""

    V1_0 = 1
    V2_0 = 2
    V2_2 = 3
    V3_0 = 4
    V3_1 = 5
    V4_0 = 6
    V5_0 = 7
    V6_0 = 8


class RemoteType(IntEnum):
    """nvmlIntNvLinkDeviceType_t."""

    GPU = 0
    IBMNPU = 1
    SWITCH = 2
    UNKNOWN = 255


class LinkError(IntEnum):
    """nvmlNvLinkErrorCounter_t: what NVLink counts up to Hopper."""

    REPLAY = 0
    RECOVERY = 1
    CRC_FLIT = 2
    CRC_DATA = 3
    ECC_DATA = 4


class BlackwellLinkError(IntEnum):
    """Field ids (NVML_FI_DEV_NVLINK_COUNT_*) of what NVLink 5 counts, and of its two bit error rates."""

    MALFORMED_PACKET = 206
    BUFFER_OVERRUN = 207
    RECEIVE = 208
    RECEIVE_REMOTE = 209
    RECEIVE_GENERAL = 210
    LOCAL_LINK_INTEGRITY = 211
    TRANSMIT_DISCARD = 212
    RECOVERY_SUCCESSFUL = 213
    RECOVERY_FAILED = 214
    RECOVERY = 215
    EFFECTIVE = 219
    EFFECTIVE_BER = 220
    SYMBOL = 221
    SYMBOL_BER = 222


class Policy(IntEnum):
    """nvmlPerfPolicyType_t in the order of field ids 74 to 81: time counters in ns."""

    POWER = 0
    THERMAL = 1
    SYNC_BOOST = 2
    BOARD_LIMIT = 3
    LOW_UTILIZATION = 4
    RELIABILITY = 5
    TOTAL_APP_CLOCKS = 6
    TOTAL_BASE_CLOCKS = 7


class ReasonTime(IntEnum):
    """NVML_FI_DEV_CLOCKS_EVENT_REASON_*: three more time counters in ns, newer drivers only."""

    SW_THERMAL_SLOWDOWN = 0
    HW_THERMAL_SLOWDOWN = 1
    HW_POWER_BRAKE = 2


class Threshold(IntEnum):
    """nvmlTemperatureThresholds_t."""

    SHUTDOWN = 0
    SLOWDOWN = 1
    MEMORY_MAX = 2
    GPU_MAX = 3


class Gpm(IntEnum):
    """NVML_GPM_METRIC_*: percent, or MiB/s for what is called _PER_SEC."""

    GRAPHICS_UTIL = 1
    SM_UTIL = 2
    SM_OCCUPANCY = 3
    INTEGER_UTIL = 4
    ANY_TENSOR_UTIL = 5
    DFMA_TENSOR_UTIL = 6
    HMMA_TENSOR_UTIL = 7
    DMMA_TENSOR_UTIL = 8
    IMMA_TENSOR_UTIL = 9
    DRAM_BW_UTIL = 10
    FP64_UTIL = 11
    FP32_UTIL = 12
    FP16_UTIL = 13
    PCIE_TX_PER_SEC = 20
    PCIE_RX_PER_SEC = 21
    NVLINK_TOTAL_RX_PER_SEC = 60
    NVLINK_TOTAL_TX_PER_SEC = 61


class MemoryPlace(IntEnum):
    """nvmlMemoryLocation_t."""

    L1_CACHE = 0
    L2_CACHE = 1
    DRAM = 2
    REGISTER_FILE = 3
    TEXTURE_MEMORY = 4
    TEXTURE_SHM = 5
    CBU = 6
    SRAM = 7


class RecoveryAction(IntEnum):
    """nvmlDeviceGpuRecoveryAction_t."""

    NONE = 0
    GPU_RESET = 1
    NODE_REBOOT = 2
    DRAIN_P2P = 3
    DRAIN_AND_RESET = 4


class FabricState(IntEnum):
    """NVML_GPU_FABRIC_STATE_*."""

    NOT_SUPPORTED = 0
    NOT_STARTED = 1
    IN_PROGRESS = 2
    COMPLETED = 3


class ProcessKind(IntEnum):
    """Which of the three process lists a process is in."""

    COMPUTE = 0
    GRAPHICS = 1
    MPS = 2
