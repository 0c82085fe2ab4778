/* nvml_abi.h — the part of NVML's binary interface that the simulated library speaks.
 *
 * Names, values and layouts are those of NVIDIA's nvml.h (API version 13, CUDA 13.5), written down here so that a C
 * compiler is all that a build needs. tests/unit/testbed/test_nvml_abi.py compiles this header and nvml.h side by side and
 * compares every constant, struct size and member offset, and compiles the whole library against nvml.h instead of this.
 * It knows nothing of the mapped state and holds no behaviour.
 */
#ifndef POISE_NVML_ABI_H
#define POISE_NVML_ABI_H

#define NVML_STRUCT_VERSION(data, version) (unsigned int)(sizeof(nvml##data##_v##version##_t) | (version << 24U))

typedef struct nvmlDevice_st *nvmlDevice_t;
typedef struct nvmlEventSet_st *nvmlEventSet_t;
typedef struct nvmlGpmSample_st *nvmlGpmSample_t;
typedef unsigned int nvmlDeviceArchitecture_t;
typedef unsigned int nvmlBusType_t;
typedef unsigned int nvmlPowerSource_t;
typedef unsigned int nvmlAffinityScope_t;
typedef unsigned char nvmlGpuFabricState_t;

/* ---- return codes ---------------------------------------------------------------------------------------------- */
typedef enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_ALREADY_INITIALIZED = 5,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_INSUFFICIENT_POWER = 8,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_IRQ_ISSUE = 11,
    NVML_ERROR_LIBRARY_NOT_FOUND = 12,
    NVML_ERROR_FUNCTION_NOT_FOUND = 13,
    NVML_ERROR_CORRUPTED_INFOROM = 14,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_RESET_REQUIRED = 16,
    NVML_ERROR_OPERATING_SYSTEM = 17,
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
    NVML_ERROR_IN_USE = 19,
    NVML_ERROR_MEMORY = 20,
    NVML_ERROR_NO_DATA = 21,
    NVML_ERROR_VGPU_ECC_NOT_SUPPORTED = 22,
    NVML_ERROR_INSUFFICIENT_RESOURCES = 23,
    NVML_ERROR_FREQ_NOT_SUPPORTED = 24,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_DEPRECATED = 26,
    NVML_ERROR_NOT_READY = 27,
    NVML_ERROR_GPU_NOT_FOUND = 28,
    NVML_ERROR_INVALID_STATE = 29,
    NVML_ERROR_RESET_TYPE_NOT_SUPPORTED = 30,
    NVML_ERROR_UNKNOWN = 999
} nvmlReturn_t;


/* ---- sizes and limits ------------------------------------------------------------------------------------------ */
#define NVML_DEVICE_PCI_BUS_ID_BUFFER_SIZE     32
#define NVML_DEVICE_PCI_BUS_ID_BUFFER_V2_SIZE  16
#define NVML_DEVICE_UUID_V2_BUFFER_SIZE        96
#define NVML_DEVICE_UUID_BINARY_LEN            16
#define NVML_DEVICE_NAME_V2_BUFFER_SIZE        96
#define NVML_DEVICE_SERIAL_BUFFER_SIZE         30
#define NVML_DEVICE_PART_NUMBER_BUFFER_SIZE    80
#define NVML_DEVICE_VBIOS_VERSION_BUFFER_SIZE  32
#define NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE 80
#define NVML_NVLINK_MAX_LINKS                  36
#define NVML_GPU_FABRIC_UUID_LEN               16
#define NVML_GPU_FABRIC_CLIQUE_MAX             64

#define NVML_VALUE_NOT_AVAILABLE (-1)

/* ---- enumerations ---------------------------------------------------------------------------------------------- */
#define NVML_DEVICE_ARCH_KEPLER    2
#define NVML_DEVICE_ARCH_MAXWELL   3
#define NVML_DEVICE_ARCH_PASCAL    4
#define NVML_DEVICE_ARCH_VOLTA     5
#define NVML_DEVICE_ARCH_TURING    6
#define NVML_DEVICE_ARCH_AMPERE    7
#define NVML_DEVICE_ARCH_ADA       8
#define NVML_DEVICE_ARCH_HOPPER    9
#define NVML_DEVICE_ARCH_BLACKWELL 10
#define NVML_DEVICE_ARCH_RUBIN     13

#define NVML_BUS_TYPE_PCIE                        2
#define NVML_POWER_SOURCE_AC                      0x00000000
#define NVML_NVLINK_STATE_INACTIVE                0x0
#define NVML_NVLINK_STATE_ACTIVE                  0x1
#define NVML_NVLINK_STATE_SLEEP                   0x2
#define NVML_NVLINK_STATE_ACTIVE_TRAFFIC_DISABLED 0x3
#define NVML_NVLINK_POWER_STATE_HIGH_SPEED        0x0
#define NVML_NVLINK_POWER_STATE_LOW               0x1

typedef enum {
    NVML_FEATURE_DISABLED = 0,
    NVML_FEATURE_ENABLED = 1
} nvmlEnableState_t;

typedef enum {
    NVML_BRAND_UNKNOWN = 0,
    NVML_BRAND_QUADRO = 1,
    NVML_BRAND_TESLA = 2,
    NVML_BRAND_NVS = 3,
    NVML_BRAND_GRID = 4,
    NVML_BRAND_GEFORCE = 5,
    NVML_BRAND_TITAN = 6,
    NVML_BRAND_NVIDIA_VAPPS = 7,
    NVML_BRAND_NVIDIA_VPC = 8,
    NVML_BRAND_NVIDIA_VCS = 9,
    NVML_BRAND_NVIDIA_VWS = 10,
    NVML_BRAND_NVIDIA_CLOUD_GAMING = 11,
    NVML_BRAND_NVIDIA_VGAMING = NVML_BRAND_NVIDIA_CLOUD_GAMING,
    NVML_BRAND_QUADRO_RTX = 12,
    NVML_BRAND_NVIDIA_RTX = 13,
    NVML_BRAND_NVIDIA = 14,
    NVML_BRAND_GEFORCE_RTX = 15,
    NVML_BRAND_TITAN_RTX = 16,
    NVML_BRAND_NVIDIA_DLA = 17,
    NVML_BRAND_NVIDIA_NPU = 19,
    NVML_BRAND_NVIDIA_VGAMEDEV = 18,
    NVML_BRAND_COUNT = 20,
} nvmlBrandType_t;

typedef enum {
    NVML_VALUE_TYPE_DOUBLE = 0,
    NVML_VALUE_TYPE_UNSIGNED_INT = 1,
    NVML_VALUE_TYPE_UNSIGNED_LONG = 2,
    NVML_VALUE_TYPE_UNSIGNED_LONG_LONG = 3,
    NVML_VALUE_TYPE_SIGNED_LONG_LONG = 4,
    NVML_VALUE_TYPE_SIGNED_INT = 5,
    NVML_VALUE_TYPE_UNSIGNED_SHORT = 6,
    NVML_VALUE_TYPE_COUNT
} nvmlValueType_t;

typedef enum {
    NVML_TOTAL_POWER_SAMPLES = 0,
    NVML_GPU_UTILIZATION_SAMPLES = 1,
    NVML_MEMORY_UTILIZATION_SAMPLES = 2,
    NVML_ENC_UTILIZATION_SAMPLES = 3,
    NVML_DEC_UTILIZATION_SAMPLES = 4,
    NVML_PROCESSOR_CLK_SAMPLES = 5,
    NVML_MEMORY_CLK_SAMPLES = 6,
    NVML_MODULE_POWER_SAMPLES = 7,
    NVML_JPG_UTILIZATION_SAMPLES = 8,
    NVML_OFA_UTILIZATION_SAMPLES = 9,
    NVML_SAMPLINGTYPE_COUNT
} nvmlSamplingType_t;

typedef enum {
    NVML_PERF_POLICY_POWER = 0,
    NVML_PERF_POLICY_THERMAL = 1,
    NVML_PERF_POLICY_SYNC_BOOST = 2,
    NVML_PERF_POLICY_BOARD_LIMIT = 3,
    NVML_PERF_POLICY_LOW_UTILIZATION = 4,
    NVML_PERF_POLICY_RELIABILITY = 5,
    NVML_PERF_POLICY_TOTAL_APP_CLOCKS = 10,
    NVML_PERF_POLICY_TOTAL_BASE_CLOCKS = 11,
    NVML_PERF_POLICY_COUNT
} nvmlPerfPolicyType_t;

typedef enum {
    NVML_TEMPERATURE_GPU = 0,
    NVML_TEMPERATURE_GPU_MAX = 1,
    NVML_TEMPERATURE_COUNT
} nvmlTemperatureSensors_t;

typedef enum {
    NVML_TEMPERATURE_THRESHOLD_SHUTDOWN = 0,
    NVML_TEMPERATURE_THRESHOLD_SLOWDOWN = 1,
    NVML_TEMPERATURE_THRESHOLD_MEM_MAX = 2,
    NVML_TEMPERATURE_THRESHOLD_GPU_MAX = 3,
    NVML_TEMPERATURE_THRESHOLD_ACOUSTIC_MIN = 4,
    NVML_TEMPERATURE_THRESHOLD_ACOUSTIC_CURR = 5,
    NVML_TEMPERATURE_THRESHOLD_ACOUSTIC_MAX = 6,
    NVML_TEMPERATURE_THRESHOLD_GPS_CURR = 7,
    NVML_TEMPERATURE_THRESHOLD_COUNT
} nvmlTemperatureThresholds_t;

typedef enum {
    NVML_CLOCK_GRAPHICS = 0,
    NVML_CLOCK_SM = 1,
    NVML_CLOCK_MEM = 2,
    NVML_CLOCK_VIDEO = 3,
    NVML_CLOCK_COUNT
} nvmlClockType_t;

typedef enum {
    NVML_CLOCK_ID_CURRENT = 0,
    NVML_CLOCK_ID_APP_CLOCK_TARGET = 1,
    NVML_CLOCK_ID_APP_CLOCK_DEFAULT = 2,
    NVML_CLOCK_ID_CUSTOMER_BOOST_MAX = 3,
    NVML_CLOCK_ID_COUNT
} nvmlClockId_t;

typedef enum {
    NVML_PSTATE_0 = 0,
    NVML_PSTATE_1 = 1,
    NVML_PSTATE_2 = 2,
    NVML_PSTATE_3 = 3,
    NVML_PSTATE_4 = 4,
    NVML_PSTATE_5 = 5,
    NVML_PSTATE_6 = 6,
    NVML_PSTATE_7 = 7,
    NVML_PSTATE_8 = 8,
    NVML_PSTATE_9 = 9,
    NVML_PSTATE_10 = 10,
    NVML_PSTATE_11 = 11,
    NVML_PSTATE_12 = 12,
    NVML_PSTATE_13 = 13,
    NVML_PSTATE_14 = 14,
    NVML_PSTATE_15 = 15,
    NVML_PSTATE_UNKNOWN = 32
} nvmlPstates_t;

typedef enum {
    NVML_PCIE_UTIL_TX_BYTES = 0,
    NVML_PCIE_UTIL_RX_BYTES = 1,
    NVML_PCIE_UTIL_COUNT
} nvmlPcieUtilCounter_t;

typedef enum {
    NVML_MEMORY_ERROR_TYPE_CORRECTED = 0,
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1,
    NVML_MEMORY_ERROR_TYPE_COUNT
} nvmlMemoryErrorType_t;

typedef enum {
    NVML_VOLATILE_ECC = 0,
    NVML_AGGREGATE_ECC = 1,
    NVML_ECC_COUNTER_TYPE_COUNT
} nvmlEccCounterType_t;

typedef enum {
    NVML_MEMORY_LOCATION_L1_CACHE = 0,
    NVML_MEMORY_LOCATION_L2_CACHE = 1,
    NVML_MEMORY_LOCATION_DRAM = 2,
    NVML_MEMORY_LOCATION_DEVICE_MEMORY = 2,
    NVML_MEMORY_LOCATION_REGISTER_FILE = 3,
    NVML_MEMORY_LOCATION_TEXTURE_MEMORY = 4,
    NVML_MEMORY_LOCATION_TEXTURE_SHM = 5,
    NVML_MEMORY_LOCATION_CBU = 6,
    NVML_MEMORY_LOCATION_SRAM = 7,
    NVML_MEMORY_LOCATION_COUNT
} nvmlMemoryLocation_t;

typedef enum {
    NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS = 0,
    NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR = 1,
    NVML_PAGE_RETIREMENT_CAUSE_COUNT
} nvmlPageRetirementCause_t;

typedef enum {
    NVML_COMPUTEMODE_DEFAULT = 0,
    NVML_COMPUTEMODE_EXCLUSIVE_THREAD = 1,
    NVML_COMPUTEMODE_PROHIBITED = 2,
    NVML_COMPUTEMODE_EXCLUSIVE_PROCESS = 3,
    NVML_COMPUTEMODE_COUNT
} nvmlComputeMode_t;

typedef enum {
    NVML_NVLINK_ERROR_DL_REPLAY = 0,
    NVML_NVLINK_ERROR_DL_RECOVERY = 1,
    NVML_NVLINK_ERROR_DL_CRC_FLIT = 2,
    NVML_NVLINK_ERROR_DL_CRC_DATA = 3,
    NVML_NVLINK_ERROR_DL_ECC_DATA = 4,
    NVML_NVLINK_ERROR_COUNT
} nvmlNvLinkErrorCounter_t;

typedef enum {
    NVML_NVLINK_CAP_P2P_SUPPORTED = 0,
    NVML_NVLINK_CAP_SYSMEM_ACCESS = 1,
    NVML_NVLINK_CAP_P2P_ATOMICS = 2,
    NVML_NVLINK_CAP_SYSMEM_ATOMICS= 3,
    NVML_NVLINK_CAP_SLI_BRIDGE = 4,
    NVML_NVLINK_CAP_VALID = 5,
    NVML_NVLINK_CAP_COUNT
} nvmlNvLinkCapability_t;

typedef enum {
    NVML_NVLINK_DEVICE_TYPE_GPU = 0x00,
    NVML_NVLINK_DEVICE_TYPE_IBMNPU = 0x01,
    NVML_NVLINK_DEVICE_TYPE_SWITCH = 0x02,
    NVML_NVLINK_DEVICE_TYPE_UNKNOWN = 0xFF
} nvmlIntNvLinkDeviceType_t;

typedef enum {
    NVML_NVLINK_VERSION_INVALID = 0,
    NVML_NVLINK_VERSION_1_0 = 1,
    NVML_NVLINK_VERSION_2_0 = 2,
    NVML_NVLINK_VERSION_2_2 = 3,
    NVML_NVLINK_VERSION_3_0 = 4,
    NVML_NVLINK_VERSION_3_1 = 5,
    NVML_NVLINK_VERSION_4_0 = 6,
    NVML_NVLINK_VERSION_5_0 = 7,
    NVML_NVLINK_VERSION_6_0 = 8,
} nvmlNvlinkVersion_t;

typedef enum {
    NVML_TOPOLOGY_INTERNAL = 0,
    NVML_TOPOLOGY_SINGLE = 10,
    NVML_TOPOLOGY_MULTIPLE = 20,
    NVML_TOPOLOGY_HOSTBRIDGE = 30,
    NVML_TOPOLOGY_NODE = 40,
    NVML_TOPOLOGY_SYSTEM = 50
} nvmlGpuTopologyLevel_t;

typedef enum {
    NVML_P2P_STATUS_OK = 0,
    NVML_P2P_STATUS_CHIPSET_NOT_SUPPORED,
    NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED = NVML_P2P_STATUS_CHIPSET_NOT_SUPPORED,
    NVML_P2P_STATUS_GPU_NOT_SUPPORTED,
    NVML_P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED,
    NVML_P2P_STATUS_DISABLED_BY_REGKEY,
    NVML_P2P_STATUS_NOT_SUPPORTED,
    NVML_P2P_STATUS_UNKNOWN
} nvmlGpuP2PStatus_t;

typedef enum {
    NVML_P2P_CAPS_INDEX_READ = 0,
    NVML_P2P_CAPS_INDEX_WRITE = 1,
    NVML_P2P_CAPS_INDEX_NVLINK = 2,
    NVML_P2P_CAPS_INDEX_ATOMICS = 3,
    NVML_P2P_CAPS_INDEX_PCI = 4,
    NVML_P2P_CAPS_INDEX_PROP = NVML_P2P_CAPS_INDEX_PCI,
    NVML_P2P_CAPS_INDEX_UNKNOWN = 5,
} nvmlGpuP2PCapsIndex_t;

typedef enum {
    NVML_GPU_RECOVERY_ACTION_NONE = 0,
    NVML_GPU_RECOVERY_ACTION_GPU_RESET = 1,
    NVML_GPU_RECOVERY_ACTION_NODE_REBOOT = 2,
    NVML_GPU_RECOVERY_ACTION_DRAIN_P2P = 3,
    NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET = 4,
    NVML_GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN = 5,
    NVML_GPU_RECOVERY_ACTION_BUS_RESET = 6,
    NVML_GPU_RECOVERY_ACTION_SYSTEM_REBOOT = 7,
} nvmlDeviceGpuRecoveryAction_t;


/* Clock event reasons, a bit mask. Three of them kept the older "Throttle" in their name. */
#define nvmlClocksEventReasonGpuIdle                   0x0000000000000001LL
#define nvmlClocksEventReasonApplicationsClocksSetting 0x0000000000000002LL
#define nvmlClocksEventReasonSwPowerCap                0x0000000000000004LL
#define nvmlClocksThrottleReasonHwSlowdown             0x0000000000000008LL
#define nvmlClocksEventReasonSyncBoost                 0x0000000000000010LL
#define nvmlClocksEventReasonSwThermalSlowdown         0x0000000000000020LL
#define nvmlClocksThrottleReasonHwThermalSlowdown      0x0000000000000040LL
#define nvmlClocksThrottleReasonHwPowerBrakeSlowdown   0x0000000000000080LL
#define nvmlClocksEventReasonDisplayClockSetting       0x0000000000000100LL
#define nvmlClocksEventReasonBoardLimit                0x0000000000000200LL
#define nvmlClocksEventReasonReliability               0x0000000000000400LL

/* Event types, a bit mask. */
#define nvmlEventTypeSingleBitEccError      0x0000000000000001LL
#define nvmlEventTypeDoubleBitEccError      0x0000000000000002LL
#define nvmlEventTypePState                 0x0000000000000004LL
#define nvmlEventTypeXidCriticalError       0x0000000000000008LL
#define nvmlEventTypeClock                  0x0000000000000010LL
#define nvmlEventTypePowerSourceChange      0x0000000000000080LL
#define nvmlEventMigConfigChange            0x0000000000000100LL
#define nvmlEventTypeSingleBitEccErrorStorm 0x0000000000000200LL
#define nvmlEventTypeDramRetirementEvent    0x0000000000000400LL
#define nvmlEventTypeDramRetirementFailure  0x0000000000000800LL
#define nvmlEventTypeNonFatalPoisonError    0x0000000000001000LL
#define nvmlEventTypeFatalPoisonError       0x0000000000002000LL
#define nvmlEventTypeGpuUnavailableError    0x0000000000004000LL
#define nvmlEventTypeGpuRecoveryAction      0x0000000000008000LL

/* ---- field ids ------------------------------------------------------------------------------------------------- */
#define NVML_FI_DEV_ECC_CURRENT                                  1
#define NVML_FI_DEV_ECC_PENDING                                  2
#define NVML_FI_DEV_ECC_SBE_VOL_TOTAL                            3
#define NVML_FI_DEV_ECC_DBE_VOL_TOTAL                            4
#define NVML_FI_DEV_ECC_SBE_AGG_TOTAL                            5
#define NVML_FI_DEV_ECC_DBE_AGG_TOTAL                            6
#define NVML_FI_DEV_ECC_SBE_VOL_L1                               7
#define NVML_FI_DEV_ECC_DBE_VOL_L1                               8
#define NVML_FI_DEV_ECC_SBE_VOL_L2                               9
#define NVML_FI_DEV_ECC_DBE_VOL_L2                               10
#define NVML_FI_DEV_ECC_SBE_VOL_DEV                              11
#define NVML_FI_DEV_ECC_DBE_VOL_DEV                              12
#define NVML_FI_DEV_ECC_SBE_VOL_REG                              13
#define NVML_FI_DEV_ECC_DBE_VOL_REG                              14
#define NVML_FI_DEV_ECC_SBE_VOL_TEX                              15
#define NVML_FI_DEV_ECC_DBE_VOL_TEX                              16
#define NVML_FI_DEV_ECC_DBE_VOL_CBU                              17
#define NVML_FI_DEV_ECC_SBE_AGG_L1                               18
#define NVML_FI_DEV_ECC_DBE_AGG_L1                               19
#define NVML_FI_DEV_ECC_SBE_AGG_L2                               20
#define NVML_FI_DEV_ECC_DBE_AGG_L2                               21
#define NVML_FI_DEV_ECC_SBE_AGG_DEV                              22
#define NVML_FI_DEV_ECC_DBE_AGG_DEV                              23
#define NVML_FI_DEV_ECC_SBE_AGG_REG                              24
#define NVML_FI_DEV_ECC_DBE_AGG_REG                              25
#define NVML_FI_DEV_ECC_SBE_AGG_TEX                              26
#define NVML_FI_DEV_ECC_DBE_AGG_TEX                              27
#define NVML_FI_DEV_ECC_DBE_AGG_CBU                              28
#define NVML_FI_DEV_RETIRED_SBE                                  29
#define NVML_FI_DEV_RETIRED_DBE                                  30
#define NVML_FI_DEV_RETIRED_PENDING                              31
#define NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L0               32
#define NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL            38
#define NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_L0               39
#define NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL            45
#define NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L0                 46
#define NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL              52
#define NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L0               53
#define NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL            59
#define NVML_FI_DEV_PERF_POLICY_POWER                            74
#define NVML_FI_DEV_PERF_POLICY_THERMAL                          75
#define NVML_FI_DEV_PERF_POLICY_SYNC_BOOST                       76
#define NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT                      77
#define NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION                  78
#define NVML_FI_DEV_PERF_POLICY_RELIABILITY                      79
#define NVML_FI_DEV_PERF_POLICY_TOTAL_APP_CLOCKS                 80
#define NVML_FI_DEV_PERF_POLICY_TOTAL_BASE_CLOCKS                81
#define NVML_FI_DEV_MEMORY_TEMP                                  82
#define NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION                     83
#define NVML_FI_DEV_NVLINK_SPEED_MBPS_L0                         84
#define NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON                     90
#define NVML_FI_DEV_NVLINK_LINK_COUNT                            91
#define NVML_FI_DEV_RETIRED_PENDING_SBE                          92
#define NVML_FI_DEV_RETIRED_PENDING_DBE                          93
#define NVML_FI_DEV_PCIE_REPLAY_COUNTER                          94
#define NVML_FI_DEV_PCIE_REPLAY_ROLLOVER_COUNTER                 95
#define NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L6               96
#define NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L11              101
#define NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_L6               102
#define NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_L11              107
#define NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L6                 108
#define NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L11                113
#define NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L6               114
#define NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L11              119
#define NVML_FI_DEV_NVLINK_SPEED_MBPS_L6                         132
#define NVML_FI_DEV_NVLINK_SPEED_MBPS_L11                        137
#define NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX                    138
#define NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX                    139
#define NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_TX                     140
#define NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_RX                     141
#define NVML_FI_DEV_REMAPPED_COR                                 142
#define NVML_FI_DEV_REMAPPED_UNC                                 143
#define NVML_FI_DEV_REMAPPED_PENDING                             144
#define NVML_FI_DEV_REMAPPED_FAILURE                             145
#define NVML_FI_DEV_NVLINK_REMOTE_NVLINK_ID                      146
#define NVML_FI_DEV_NVSWITCH_CONNECTED_LINK_COUNT                147
#define NVML_FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_L0               148
#define NVML_FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_L6               154
#define NVML_FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_L11              159
#define NVML_FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_TOTAL            160
#define NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY                       161
#define NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY                     162
#define NVML_FI_DEV_NVLINK_ERROR_DL_CRC                          163
#define NVML_FI_DEV_NVLINK_GET_SPEED                             164
#define NVML_FI_DEV_NVLINK_GET_STATE                             165
#define NVML_FI_DEV_NVLINK_GET_VERSION                           166
#define NVML_FI_DEV_NVLINK_GET_POWER_STATE                       167
#define NVML_FI_DEV_NVLINK_GET_POWER_THRESHOLD                   168
#define NVML_FI_DEV_PCIE_L0_TO_RECOVERY_COUNTER                  169
#define NVML_FI_DEV_C2C_LINK_COUNT                               170
#define NVML_FI_DEV_C2C_LINK_GET_MAX_BW                          172
#define NVML_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS                173
#define NVML_FI_DEV_PCIE_COUNT_NAKS_RECEIVED                     174
#define NVML_FI_DEV_PCIE_COUNT_RECEIVER_ERROR                    175
#define NVML_FI_DEV_PCIE_COUNT_BAD_TLP                           176
#define NVML_FI_DEV_PCIE_COUNT_NAKS_SENT                         177
#define NVML_FI_DEV_PCIE_COUNT_BAD_DLLP                          178
#define NVML_FI_DEV_PCIE_COUNT_NON_FATAL_ERROR                   179
#define NVML_FI_DEV_PCIE_COUNT_FATAL_ERROR                       180
#define NVML_FI_DEV_PCIE_COUNT_UNSUPPORTED_REQ                   181
#define NVML_FI_DEV_PCIE_COUNT_LCRC_ERROR                        182
#define NVML_FI_DEV_PCIE_COUNT_LANE_ERROR                        183
#define NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED                   184
#define NVML_FI_DEV_POWER_AVERAGE                                185
#define NVML_FI_DEV_POWER_INSTANT                                186
#define NVML_FI_DEV_POWER_MIN_LIMIT                              187
#define NVML_FI_DEV_POWER_MAX_LIMIT                              188
#define NVML_FI_DEV_POWER_DEFAULT_LIMIT                          189
#define NVML_FI_DEV_POWER_CURRENT_LIMIT                          190
#define NVML_FI_DEV_ENERGY                                       191
#define NVML_FI_DEV_POWER_REQUESTED_LIMIT                        192
#define NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT                  193
#define NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT                  194
#define NVML_FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT                   195
#define NVML_FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT                   196
#define NVML_FI_DEV_PCIE_COUNT_TX_BYTES                          197
#define NVML_FI_DEV_PCIE_COUNT_RX_BYTES                          198
#define NVML_FI_DEV_IS_MIG_MODE_INDEPENDENT_MIG_QUERY_CAPABLE    199
#define NVML_FI_DEV_NVLINK_GET_POWER_THRESHOLD_MAX               200
#define NVML_FI_DEV_NVLINK_COUNT_XMIT_PACKETS                    201
#define NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES                      202
#define NVML_FI_DEV_NVLINK_COUNT_RCV_PACKETS                     203
#define NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES                       204
#define NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS         206
#define NVML_FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS           207
#define NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS                      208
#define NVML_FI_DEV_NVLINK_COUNT_RCV_REMOTE_ERRORS               209
#define NVML_FI_DEV_NVLINK_COUNT_RCV_GENERAL_ERRORS              210
#define NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS     211
#define NVML_FI_DEV_NVLINK_COUNT_XMIT_DISCARDS                   212
#define NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS 213
#define NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS     214
#define NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS            215
#define NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS                219
#define NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_BER                   220
#define NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS                   221
#define NVML_FI_DEV_NVLINK_COUNT_SYMBOL_BER                      222
#define NVML_FI_DEV_NVLINK_GET_POWER_THRESHOLD_MIN               223
#define NVML_FI_DEV_NVLINK_GET_POWER_THRESHOLD_UNITS             224
#define NVML_FI_DEV_NVLINK_GET_POWER_THRESHOLD_SUPPORTED         225
#define NVML_FI_DEV_GET_GPU_RECOVERY_ACTION                      230
#define NVML_FI_DEV_C2C_LINK_ERROR_INTR                          231
#define NVML_FI_DEV_C2C_LINK_ERROR_REPLAY                        232
#define NVML_FI_DEV_C2C_LINK_ERROR_REPLAY_B2B                    233
#define NVML_FI_DEV_C2C_LINK_POWER_STATE                         234
#define NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_0                   235
#define NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_15                  250
#define NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN        269
#define NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN        270
#define NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN  271
#define NVML_FI_DEV_NVLINK_COUNT_RAW_ERRORS_LANE0                289
#define NVML_FI_DEV_NVLINK_COUNT_RAW_ERRORS_LANE1                290
#define NVML_FI_DEV_NVLINK_COUNT_RAW_BER_LANE0_V2                291
#define NVML_FI_DEV_NVLINK_COUNT_RAW_BER_LANE1_V2                292
#define NVML_FI_DEV_NVLINK_COUNT_RAW_BER_V2                      293
#define NVML_FI_DEV_NVLINK_PLR_XMIT_BLOCKS                       294
#define NVML_FI_DEV_NVLINK_PLR_XMIT_RETRY_BLOCKS                 295
#define NVML_FI_DEV_NVLINK_GET_DATA_RATE                         296
#define NVML_FI_DEV_REMAPPED_ROWS_COR_INACTIVE                   301
#define NVML_FI_DEV_REMAPPED_ROWS_UNC_INACTIVE                   302
#define NVML_FI_DEV_GPU_TEMP                                     308

/* ---- structs --------------------------------------------------------------------------------------------------- */
typedef struct {
    char busIdLegacy[NVML_DEVICE_PCI_BUS_ID_BUFFER_V2_SIZE];
    unsigned int domain;
    unsigned int bus;
    unsigned int device;
    unsigned int pciDeviceId;
    unsigned int pciSubSystemId;
    char busId[NVML_DEVICE_PCI_BUS_ID_BUFFER_SIZE];
} nvmlPciInfo_t;

typedef struct {
    unsigned int version;
    unsigned int domain;
    unsigned int bus;
    unsigned int device;
    unsigned int pciDeviceId;
    unsigned int pciSubSystemId;
    unsigned int baseClass;
    unsigned int subClass;
    char busId[NVML_DEVICE_PCI_BUS_ID_BUFFER_SIZE];
} nvmlPciInfoExt_v1_t;

typedef struct {
    unsigned int gpu;
    unsigned int memory;
} nvmlUtilization_t;

typedef struct {
    unsigned long long total;
    unsigned long long free;
    unsigned long long used;
} nvmlMemory_t;

typedef struct {
    unsigned int version;
    unsigned long long total;
    unsigned long long reserved;
    unsigned long long free;
    unsigned long long used;
} nvmlMemory_v2_t;

#define nvmlMemory_v2 NVML_STRUCT_VERSION(Memory, 2)

typedef struct {
    unsigned long long bar1Total;
    unsigned long long bar1Free;
    unsigned long long bar1Used;
} nvmlBAR1Memory_t;

typedef union {
    double dVal;
    int siVal;
    unsigned int uiVal;
    unsigned long ulVal;
    unsigned long long ullVal;
    signed long long sllVal;
    unsigned short usVal;
} nvmlValue_t;

typedef struct {
    unsigned long long timeStamp;
    nvmlValue_t sampleValue;
} nvmlSample_t;

typedef struct {
    unsigned int fieldId;
    unsigned int scopeId;
    long long timestamp;
    long long latencyUsec;
    nvmlValueType_t valueType;
    nvmlReturn_t nvmlReturn;
    nvmlValue_t value;
} nvmlFieldValue_t;

typedef struct {
    unsigned long long referenceTime;
    unsigned long long violationTime;
} nvmlViolationTime_t;

typedef struct {
    unsigned int version;
    nvmlTemperatureSensors_t sensorType;
    int temperature;
} nvmlTemperature_v1_t;

typedef nvmlTemperature_v1_t nvmlTemperature_t;
#define nvmlTemperature_v1 NVML_STRUCT_VERSION(Temperature, 1)

typedef struct {
    unsigned int version;
    int marginTemperature;
} nvmlMarginTemperature_v1_t;

typedef nvmlMarginTemperature_v1_t nvmlMarginTemperature_t;
#define nvmlMarginTemperature_v1 NVML_STRUCT_VERSION(MarginTemperature, 1)

typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
} nvmlProcessInfo_v1_t;

typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId;
    unsigned int computeInstanceId;
} nvmlProcessInfo_v2_t;
typedef nvmlProcessInfo_v2_t nvmlProcessInfo_t;

typedef struct {
    unsigned int pid;
    unsigned long long timeStamp;
    unsigned int smUtil;
    unsigned int memUtil;
    unsigned int encUtil;
    unsigned int decUtil;
} nvmlProcessUtilizationSample_t;

typedef struct {
    unsigned long long timeStamp;
    unsigned int pid;
    unsigned int smUtil;
    unsigned int memUtil;
    unsigned int encUtil;
    unsigned int decUtil;
    unsigned int jpgUtil;
    unsigned int ofaUtil;
} nvmlProcessUtilizationInfo_v1_t;

typedef struct {
    unsigned int version;
    unsigned int processSamplesCount;
    unsigned long long lastSeenTimeStamp;
    nvmlProcessUtilizationInfo_v1_t *procUtilArray;
} nvmlProcessesUtilizationInfo_v1_t;

typedef nvmlProcessesUtilizationInfo_v1_t nvmlProcessesUtilizationInfo_t;
#define nvmlProcessesUtilizationInfo_v1 NVML_STRUCT_VERSION(ProcessesUtilizationInfo, 1)

typedef struct {
    unsigned long long l1Cache;
    unsigned long long l2Cache;
    unsigned long long deviceMemory;
    unsigned long long registerFile;
} nvmlEccErrorCounts_t;

typedef struct {
    unsigned int version;
    unsigned long long aggregateUncParity;
    unsigned long long aggregateUncSecDed;
    unsigned long long aggregateCor;
    unsigned long long volatileUncParity;
    unsigned long long volatileUncSecDed;
    unsigned long long volatileCor;
    unsigned long long aggregateUncBucketL2;
    unsigned long long aggregateUncBucketSm;
    unsigned long long aggregateUncBucketPcie;
    unsigned long long aggregateUncBucketMcu;
    unsigned long long aggregateUncBucketOther;
    unsigned int bThresholdExceeded;
} nvmlEccSramErrorStatus_v1_t;

typedef nvmlEccSramErrorStatus_v1_t nvmlEccSramErrorStatus_t;
#define nvmlEccSramErrorStatus_v1 NVML_STRUCT_VERSION(EccSramErrorStatus, 1)

typedef struct {
    unsigned int corrActiveRemaps;
    unsigned int corrInactiveRemaps;
    unsigned int uncActiveRemaps;
    unsigned int uncInactiveRemaps;
    unsigned int bPending;
    unsigned int bFailureOccurred;
} nvmlRemappedRowsInfo_v2_t;

typedef struct {
    unsigned int max;
    unsigned int high;
    unsigned int partial;
    unsigned int low;
    unsigned int none;
} nvmlRowRemapperHistogramValues_t;

typedef struct {
    unsigned int version;
    unsigned int bChannelRepairPending;
    unsigned int bTpcRepairPending;
} nvmlRepairStatus_v1_t;

typedef nvmlRepairStatus_v1_t nvmlRepairStatus_t;
#define nvmlRepairStatus_v1 NVML_STRUCT_VERSION(RepairStatus, 1)

typedef struct {
    unsigned char clusterUuid[NVML_GPU_FABRIC_UUID_LEN];
    nvmlReturn_t status;
    unsigned int cliqueId;
    nvmlGpuFabricState_t state;
} nvmlGpuFabricInfo_t;

typedef struct {
    unsigned int version;
    unsigned char clusterUuid[NVML_GPU_FABRIC_UUID_LEN];
    nvmlReturn_t status;
    unsigned int cliqueId;
    nvmlGpuFabricState_t state;
    unsigned int healthMask;
} nvmlGpuFabricInfo_v2_t;

typedef struct {
    unsigned int version;
    unsigned char clusterUuid[NVML_GPU_FABRIC_UUID_LEN];
    nvmlReturn_t status;
    unsigned int cliqueId;
    nvmlGpuFabricState_t state;
    unsigned int healthMask;
    unsigned char healthSummary;
} nvmlGpuFabricInfo_v3_t;

typedef nvmlGpuFabricInfo_v3_t nvmlGpuFabricInfoV_t;
#define nvmlGpuFabricInfo_v2 NVML_STRUCT_VERSION(GpuFabricInfo, 2)
#define nvmlGpuFabricInfo_v3 NVML_STRUCT_VERSION(GpuFabricInfo, 3)

typedef struct {
    unsigned char type;
    unsigned int id;
} nvmlGpuFabricClique_v1_t;

typedef struct {
    unsigned char clusterUuid[NVML_GPU_FABRIC_UUID_LEN];
    nvmlReturn_t status;
    nvmlGpuFabricClique_v1_t cliques[NVML_GPU_FABRIC_CLIQUE_MAX];
    unsigned int numCliques;
    nvmlGpuFabricState_t state;
    unsigned int healthMask;
    unsigned char healthSummary;
} nvmlGpuFabricInfo_v4_t;

typedef struct {
    unsigned int multiprocessorCount;
    unsigned int sharedCopyEngineCount;
    unsigned int sharedDecoderCount;
    unsigned int sharedEncoderCount;
    unsigned int sharedJpegCount;
    unsigned int sharedOfaCount;
    unsigned int gpuInstanceSliceCount;
    unsigned int computeInstanceSliceCount;
    unsigned long long memorySizeMB;
} nvmlDeviceAttributes_t;

typedef struct {
    nvmlDevice_t device;
    unsigned long long eventType;
    unsigned long long eventData;
    unsigned int gpuInstanceId;
    unsigned int computeInstanceId;
} nvmlEventData_t;

/* ---- GPU performance monitoring ---------------------------------------------------------------------------------- */
#define NVML_GPM_METRICS_GET_VERSION 1
#define NVML_GPM_SUPPORT_VERSION 1

typedef enum {
    NVML_GPM_METRIC_GRAPHICS_UTIL           = 1,
    NVML_GPM_METRIC_SM_UTIL                 = 2,
    NVML_GPM_METRIC_SM_OCCUPANCY            = 3,
    NVML_GPM_METRIC_INTEGER_UTIL            = 4,
    NVML_GPM_METRIC_ANY_TENSOR_UTIL         = 5,
    NVML_GPM_METRIC_DFMA_TENSOR_UTIL        = 6,
    NVML_GPM_METRIC_HMMA_TENSOR_UTIL        = 7,
    NVML_GPM_METRIC_DMMA_TENSOR_UTIL        = 8,
    NVML_GPM_METRIC_IMMA_TENSOR_UTIL        = 9,
    NVML_GPM_METRIC_DRAM_BW_UTIL            = 10,
    NVML_GPM_METRIC_FP64_UTIL               = 11,
    NVML_GPM_METRIC_FP32_UTIL               = 12,
    NVML_GPM_METRIC_FP16_UTIL               = 13,
    NVML_GPM_METRIC_PCIE_TX_PER_SEC         = 20,
    NVML_GPM_METRIC_PCIE_RX_PER_SEC         = 21,
    NVML_GPM_METRIC_NVDEC_0_UTIL            = 30,
    NVML_GPM_METRIC_NVJPG_0_UTIL            = 40,
    NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC = 60,
    NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC = 61,
    NVML_GPM_METRIC_NVLINK_L0_RX_PER_SEC    = 62,
    NVML_GPM_METRIC_NVLINK_L0_TX_PER_SEC    = 63,
    NVML_GPM_METRIC_NVLINK_L17_RX_PER_SEC   = 96,
    NVML_GPM_METRIC_NVLINK_L17_TX_PER_SEC   = 97,
    NVML_GPM_METRIC_NVENC_0_UTIL            = 166,
    NVML_GPM_METRIC_NVLINK_L18_RX_PER_SEC   = 212,
    NVML_GPM_METRIC_NVLINK_L18_TX_PER_SEC   = 213,
    NVML_GPM_METRIC_NVLINK_L35_RX_PER_SEC   = 246,
    NVML_GPM_METRIC_NVLINK_L35_TX_PER_SEC   = 247,
    NVML_GPM_METRIC_INTEGER_CYCLES_ACTIVE   = 257,
    NVML_GPM_METRIC_NVLINK_L0_RX            = 261,
    NVML_GPM_METRIC_NVLINK_L0_TX            = 262,
    NVML_GPM_METRIC_NVLINK_L17_RX           = 295,
    NVML_GPM_METRIC_NVLINK_L17_TX           = 296,
    NVML_GPM_METRIC_NVLINK_L18_RX           = 297,
    NVML_GPM_METRIC_NVLINK_L18_TX           = 298,
    NVML_GPM_METRIC_NVLINK_L35_RX           = 331,
    NVML_GPM_METRIC_NVLINK_L35_TX           = 332,
    NVML_GPM_METRIC_NVLINK_L36_RX           = 333,
    NVML_GPM_METRIC_NVLINK_L36_TX           = 334,
    NVML_GPM_METRIC_NVLINK_L71_RX           = 403,
    NVML_GPM_METRIC_NVLINK_L71_TX           = 404,
    NVML_GPM_METRIC_NVLINK_L36_RX_PER_SEC   = 405,
    NVML_GPM_METRIC_NVLINK_L36_TX_PER_SEC   = 406,
    NVML_GPM_METRIC_NVLINK_L71_RX_PER_SEC   = 475,
    NVML_GPM_METRIC_NVLINK_L71_TX_PER_SEC   = 476,
    NVML_GPM_METRIC_MAX                     = 477,
} nvmlGpmMetricId_t;

typedef struct {
    unsigned int metricId;
    nvmlReturn_t nvmlReturn;
    double value;
    struct
    {
    char *shortName;
    char *longName;
    char *unit;
    } metricInfo;
} nvmlGpmMetric_t;

typedef struct {
    unsigned int version;
    unsigned int numMetrics;
    nvmlGpmSample_t sample1;
    nvmlGpmSample_t sample2;
    nvmlGpmMetric_t metrics[NVML_GPM_METRIC_MAX];
} nvmlGpmMetricsGet_t;

typedef struct {
    unsigned int version;
    unsigned int isSupportedDevice;
} nvmlGpmSupport_t;

#endif
