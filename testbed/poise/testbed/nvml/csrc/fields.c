/* fields.c — nvmlDeviceGetFieldValues: one call, many numbers.
 *
 * Most fields are a member of the card or of a link, told by tables: id, member, type, and for links how the counter is
 * scaled and whether UINT_MAX as scope asks for the sum over links. What no table has may have been given as a raw field.
 * The call succeeds even when every field failed; each field carries its own return code.
 */
#include "library.h"

#define KIB_SHIFT 10            /* the throughput counters count KiB (nvml.h) */
#define ALL_LINKS UINT_MAX      /* scope: the sum over the card's links */
#define PCIE_COUNTER_MASK 0xffffffffull /* the driver's PCIe byte counters are 32 bits wide and wrap */
#define SCOPE_MODULE 1u         /* power and energy of GPU and CPU together */
#define NAMED_LINKS 12u         /* families ..._L0 to ..._L11: ids 0-5 stand together, 6-11 elsewhere */
#define FIRST_NAMED_BLOCK 6u

/* Where the clock event counters stand: they moved twice (facts of nvml.h 12.8, 12.9 and 13.1). */
#define REASON_FIELDS_EARLY 251u /* drivers 575 up to 580.65 */

enum width { U32, U64, I32 };

struct card_field {
    uint16_t id;
    uint8_t width;
    uint8_t type;
    uint32_t offset;
};

#define COUNTER(id, member) {id, U64, NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, offsetof(struct card_state, member)}
#define NUMBER(id, member) {id, U32, NVML_VALUE_TYPE_UNSIGNED_INT, offsetof(struct card_state, member)}
#define SIGNED(id, member) {id, I32, NVML_VALUE_TYPE_SIGNED_INT, offsetof(struct card_state, member)}

static const struct card_field CARD_FIELDS[] = {
    NUMBER(NVML_FI_DEV_ECC_CURRENT, ecc_current),
    NUMBER(NVML_FI_DEV_ECC_PENDING, ecc_pending),
    COUNTER(NVML_FI_DEV_ECC_SBE_VOL_TOTAL, ecc_errors[0][0]),
    COUNTER(NVML_FI_DEV_ECC_DBE_VOL_TOTAL, ecc_errors[1][0]),
    COUNTER(NVML_FI_DEV_ECC_SBE_AGG_TOTAL, ecc_errors[0][1]),
    COUNTER(NVML_FI_DEV_ECC_DBE_AGG_TOTAL, ecc_errors[1][1]),
    COUNTER(NVML_FI_DEV_ECC_SBE_VOL_L1, ecc_errors_by_place[0][0][NVML_MEMORY_LOCATION_L1_CACHE]),
    COUNTER(NVML_FI_DEV_ECC_DBE_VOL_L1, ecc_errors_by_place[1][0][NVML_MEMORY_LOCATION_L1_CACHE]),
    COUNTER(NVML_FI_DEV_ECC_SBE_VOL_L2, ecc_errors_by_place[0][0][NVML_MEMORY_LOCATION_L2_CACHE]),
    COUNTER(NVML_FI_DEV_ECC_DBE_VOL_L2, ecc_errors_by_place[1][0][NVML_MEMORY_LOCATION_L2_CACHE]),
    COUNTER(NVML_FI_DEV_ECC_SBE_VOL_DEV, ecc_errors_by_place[0][0][NVML_MEMORY_LOCATION_DRAM]),
    COUNTER(NVML_FI_DEV_ECC_DBE_VOL_DEV, ecc_errors_by_place[1][0][NVML_MEMORY_LOCATION_DRAM]),
    COUNTER(NVML_FI_DEV_ECC_SBE_VOL_REG, ecc_errors_by_place[0][0][NVML_MEMORY_LOCATION_REGISTER_FILE]),
    COUNTER(NVML_FI_DEV_ECC_DBE_VOL_REG, ecc_errors_by_place[1][0][NVML_MEMORY_LOCATION_REGISTER_FILE]),
    COUNTER(NVML_FI_DEV_ECC_SBE_VOL_TEX, ecc_errors_by_place[0][0][NVML_MEMORY_LOCATION_TEXTURE_MEMORY]),
    COUNTER(NVML_FI_DEV_ECC_DBE_VOL_TEX, ecc_errors_by_place[1][0][NVML_MEMORY_LOCATION_TEXTURE_MEMORY]),
    COUNTER(NVML_FI_DEV_ECC_DBE_VOL_CBU, ecc_errors_by_place[1][0][NVML_MEMORY_LOCATION_CBU]),
    COUNTER(NVML_FI_DEV_ECC_SBE_AGG_L1, ecc_errors_by_place[0][1][NVML_MEMORY_LOCATION_L1_CACHE]),
    COUNTER(NVML_FI_DEV_ECC_DBE_AGG_L1, ecc_errors_by_place[1][1][NVML_MEMORY_LOCATION_L1_CACHE]),
    COUNTER(NVML_FI_DEV_ECC_SBE_AGG_L2, ecc_errors_by_place[0][1][NVML_MEMORY_LOCATION_L2_CACHE]),
    COUNTER(NVML_FI_DEV_ECC_DBE_AGG_L2, ecc_errors_by_place[1][1][NVML_MEMORY_LOCATION_L2_CACHE]),
    COUNTER(NVML_FI_DEV_ECC_SBE_AGG_DEV, ecc_errors_by_place[0][1][NVML_MEMORY_LOCATION_DRAM]),
    COUNTER(NVML_FI_DEV_ECC_DBE_AGG_DEV, ecc_errors_by_place[1][1][NVML_MEMORY_LOCATION_DRAM]),
    COUNTER(NVML_FI_DEV_ECC_SBE_AGG_REG, ecc_errors_by_place[0][1][NVML_MEMORY_LOCATION_REGISTER_FILE]),
    COUNTER(NVML_FI_DEV_ECC_DBE_AGG_REG, ecc_errors_by_place[1][1][NVML_MEMORY_LOCATION_REGISTER_FILE]),
    COUNTER(NVML_FI_DEV_ECC_SBE_AGG_TEX, ecc_errors_by_place[0][1][NVML_MEMORY_LOCATION_TEXTURE_MEMORY]),
    COUNTER(NVML_FI_DEV_ECC_DBE_AGG_TEX, ecc_errors_by_place[1][1][NVML_MEMORY_LOCATION_TEXTURE_MEMORY]),
    COUNTER(NVML_FI_DEV_ECC_DBE_AGG_CBU, ecc_errors_by_place[1][1][NVML_MEMORY_LOCATION_CBU]),
    NUMBER(NVML_FI_DEV_RETIRED_SBE, retired_pages[0]),
    NUMBER(NVML_FI_DEV_RETIRED_DBE, retired_pages[1]),
    NUMBER(NVML_FI_DEV_RETIRED_PENDING_SBE, retired_pending[0]),
    NUMBER(NVML_FI_DEV_RETIRED_PENDING_DBE, retired_pending[1]),
    COUNTER(NVML_FI_DEV_PERF_POLICY_POWER, policy_ns[0]),
    COUNTER(NVML_FI_DEV_PERF_POLICY_THERMAL, policy_ns[1]),
    COUNTER(NVML_FI_DEV_PERF_POLICY_SYNC_BOOST, policy_ns[2]),
    COUNTER(NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT, policy_ns[3]),
    COUNTER(NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION, policy_ns[4]),
    COUNTER(NVML_FI_DEV_PERF_POLICY_RELIABILITY, policy_ns[5]),
    COUNTER(NVML_FI_DEV_PERF_POLICY_TOTAL_APP_CLOCKS, policy_ns[6]),
    COUNTER(NVML_FI_DEV_PERF_POLICY_TOTAL_BASE_CLOCKS, policy_ns[7]),
    NUMBER(NVML_FI_DEV_MEMORY_TEMP, temperature_memory),
    COUNTER(NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, energy_mj),
    NUMBER(NVML_FI_DEV_NVLINK_LINK_COUNT, link_count),
    NUMBER(NVML_FI_DEV_PCIE_REPLAY_COUNTER, pcie_replays),
    NUMBER(NVML_FI_DEV_PCIE_REPLAY_ROLLOVER_COUNTER, pcie_replay_rollovers),
    NUMBER(NVML_FI_DEV_REMAPPED_COR, remapped_correctable),
    NUMBER(NVML_FI_DEV_REMAPPED_UNC, remapped_uncorrectable),
    NUMBER(NVML_FI_DEV_REMAPPED_PENDING, remap_pending),
    NUMBER(NVML_FI_DEV_REMAPPED_FAILURE, remap_failed),
    COUNTER(NVML_FI_DEV_PCIE_L0_TO_RECOVERY_COUNTER, pcie_errors[0]),
    COUNTER(NVML_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS, pcie_errors[1]),
    COUNTER(NVML_FI_DEV_PCIE_COUNT_NAKS_RECEIVED, pcie_errors[2]),
    COUNTER(NVML_FI_DEV_PCIE_COUNT_RECEIVER_ERROR, pcie_errors[3]),
    COUNTER(NVML_FI_DEV_PCIE_COUNT_BAD_TLP, pcie_errors[4]),
    COUNTER(NVML_FI_DEV_PCIE_COUNT_NAKS_SENT, pcie_errors[5]),
    COUNTER(NVML_FI_DEV_PCIE_COUNT_BAD_DLLP, pcie_errors[6]),
    COUNTER(NVML_FI_DEV_PCIE_COUNT_NON_FATAL_ERROR, pcie_errors[7]),
    COUNTER(NVML_FI_DEV_PCIE_COUNT_FATAL_ERROR, pcie_errors[8]),
    COUNTER(NVML_FI_DEV_PCIE_COUNT_UNSUPPORTED_REQ, pcie_errors[9]),
    COUNTER(NVML_FI_DEV_PCIE_COUNT_LCRC_ERROR, pcie_errors[10]),
    COUNTER(NVML_FI_DEV_PCIE_COUNT_LANE_ERROR, pcie_errors[11]),
    NUMBER(NVML_FI_DEV_POWER_MIN_LIMIT, limit_min_mw),
    NUMBER(NVML_FI_DEV_POWER_MAX_LIMIT, limit_max_mw),
    NUMBER(NVML_FI_DEV_POWER_DEFAULT_LIMIT, limit_default_mw),
    NUMBER(NVML_FI_DEV_POWER_CURRENT_LIMIT, limit_enforced_mw),
    NUMBER(NVML_FI_DEV_POWER_REQUESTED_LIMIT, limit_requested_mw),
    SIGNED(NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT, limit_offset[0]),
    SIGNED(NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT, limit_offset[1]),
    SIGNED(NVML_FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT, limit_offset[2]),
    SIGNED(NVML_FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT, limit_offset[3]),
    NUMBER(NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, recovery_action),
};

enum era { EVERY, TO_HOPPER, FROM_BLACKWELL }; /* NVLink 5 counts other things than its predecessors */

struct link_field {
    uint16_t id;
    uint8_t width;
    uint8_t type;
    uint8_t shift;    /* right shift to the field's unit */
    uint8_t summable; /* scope UINT_MAX is the sum over links */
    uint8_t era;
    uint32_t offset;
};

#define LINK_COUNTER(id, member, shift, era)                                                                           \
    {id, U64, NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, shift, 1, era, offsetof(struct link_state, member)}
#define LINK_NUMBER(id, member) {id, U32, NVML_VALUE_TYPE_UNSIGNED_INT, 0, 0, EVERY, offsetof(struct link_state, member)}
#define BLACKWELL_ERROR(id)                                                                                            \
    LINK_COUNTER(id, blackwell_errors[(id) - NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS], 0, FROM_BLACKWELL)

static const struct link_field LINK_FIELDS[] = {
    LINK_COUNTER(NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, payload_tx_bytes, KIB_SHIFT, EVERY),
    LINK_COUNTER(NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, payload_rx_bytes, KIB_SHIFT, EVERY),
    LINK_COUNTER(NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_TX, raw_tx_bytes, KIB_SHIFT, EVERY),
    LINK_COUNTER(NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_RX, raw_rx_bytes, KIB_SHIFT, EVERY),
    LINK_NUMBER(NVML_FI_DEV_NVLINK_REMOTE_NVLINK_ID, remote_link),
    LINK_COUNTER(NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, errors[NVML_NVLINK_ERROR_DL_REPLAY], 0, TO_HOPPER),
    LINK_COUNTER(NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY, errors[NVML_NVLINK_ERROR_DL_RECOVERY], 0, TO_HOPPER),
    LINK_COUNTER(NVML_FI_DEV_NVLINK_ERROR_DL_CRC, errors[NVML_NVLINK_ERROR_DL_CRC_FLIT], 0, TO_HOPPER),
    LINK_NUMBER(NVML_FI_DEV_NVLINK_GET_STATE, state),
    LINK_NUMBER(NVML_FI_DEV_NVLINK_GET_VERSION, version),
    LINK_NUMBER(NVML_FI_DEV_NVLINK_GET_POWER_STATE, power_state),
    LINK_COUNTER(NVML_FI_DEV_NVLINK_COUNT_XMIT_PACKETS, tx_packets, 0, FROM_BLACKWELL),
    LINK_COUNTER(NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES, raw_tx_bytes, 0, FROM_BLACKWELL),
    LINK_COUNTER(NVML_FI_DEV_NVLINK_COUNT_RCV_PACKETS, rx_packets, 0, FROM_BLACKWELL),
    LINK_COUNTER(NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES, raw_rx_bytes, 0, FROM_BLACKWELL),
    BLACKWELL_ERROR(NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS),
    BLACKWELL_ERROR(NVML_FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS),
    BLACKWELL_ERROR(NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS),
    BLACKWELL_ERROR(NVML_FI_DEV_NVLINK_COUNT_RCV_REMOTE_ERRORS),
    BLACKWELL_ERROR(NVML_FI_DEV_NVLINK_COUNT_RCV_GENERAL_ERRORS),
    BLACKWELL_ERROR(NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS),
    BLACKWELL_ERROR(NVML_FI_DEV_NVLINK_COUNT_XMIT_DISCARDS),
    BLACKWELL_ERROR(NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS),
    BLACKWELL_ERROR(NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS),
    BLACKWELL_ERROR(NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS),
    BLACKWELL_ERROR(NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS),
    BLACKWELL_ERROR(NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_BER),
    BLACKWELL_ERROR(NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS),
    BLACKWELL_ERROR(NVML_FI_DEV_NVLINK_COUNT_SYMBOL_BER),
};

/* Families with one id per link, for links 0 to 11, and one for the total. */
struct named_family {
    uint16_t first;  /* ..._L0 to ..._L5 */
    uint16_t second; /* ..._L6 to ..._L11 */
    uint16_t total;  /* 0: none */
    uint8_t counter; /* nvmlNvLinkErrorCounter_t */
};

static const struct named_family NAMED_FAMILIES[] = {
    {NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L0, NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L6,
     NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, NVML_NVLINK_ERROR_DL_CRC_FLIT},
    {NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_L0, NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_L6,
     NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL, NVML_NVLINK_ERROR_DL_CRC_DATA},
    {NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L0, NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L6,
     NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, NVML_NVLINK_ERROR_DL_REPLAY},
    {NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L0, NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L6,
     NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, NVML_NVLINK_ERROR_DL_RECOVERY},
    {NVML_FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_L0, NVML_FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_L6,
     NVML_FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_TOTAL, NVML_NVLINK_ERROR_DL_ECC_DATA},
};

/* ---- reading ---- */

static void put_unsigned(nvmlFieldValue_t *value, uint32_t number)
{
    value->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
    value->value.ullVal = 0;
    value->value.uiVal = number;
}

static void put_counter(nvmlFieldValue_t *value, uint64_t number)
{
    value->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
    value->value.ullVal = number;
}

static uint64_t load(const void *base, uint32_t offset, enum width width)
{
    const char *place = (const char *)base + offset;
    uint32_t narrow;
    uint64_t wide;

    if (width == U64) {
        memcpy(&wide, place, sizeof wide);
        return wide;
    }
    memcpy(&narrow, place, sizeof narrow);
    return narrow; /* a signed number keeps its 32 bits: the union's siVal reads them */
}

static nvmlReturn_t card_field(const struct card_state *card, nvmlFieldValue_t *value)
{
    for (size_t i = 0; i < sizeof CARD_FIELDS / sizeof *CARD_FIELDS; i++) {
        const struct card_field *field = &CARD_FIELDS[i];
        if (field->id != value->fieldId) continue;
        value->valueType = (nvmlValueType_t)field->type;
        value->value.ullVal = load(card, field->offset, (enum width)field->width);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

static nvmlReturn_t link_field(const struct state *state, const struct card_state *card, nvmlFieldValue_t *value)
{
    for (size_t i = 0; i < sizeof LINK_FIELDS / sizeof *LINK_FIELDS; i++) {
        const struct link_field *field = &LINK_FIELDS[i];
        uint64_t sum = 0;

        if (field->id != value->fieldId) continue;
        if (card->link_count == 0) return NVML_ERROR_NOT_SUPPORTED;
        if (field->era == TO_HOPPER && card->architecture > NVML_DEVICE_ARCH_HOPPER) return NVML_ERROR_NOT_SUPPORTED;
        if (field->era == FROM_BLACKWELL && card->architecture < NVML_DEVICE_ARCH_BLACKWELL)
            return NVML_ERROR_NOT_SUPPORTED;
        value->valueType = (nvmlValueType_t)field->type;
        if (value->scopeId == ALL_LINKS && field->summable) {
            for (uint32_t link = 0; link < card->link_count; link++)
                sum += load(&card->links[link], field->offset, (enum width)field->width);
        } else {
            nvmlReturn_t missing = link_of(state, card, value->scopeId);
            if (missing != NVML_SUCCESS) return missing;
            /* A counter of a link that is down is an error in the driver (resource manager), not a zero. */
            if (field->summable && card->links[value->scopeId].state == NVML_NVLINK_STATE_INACTIVE)
                return NVML_ERROR_NOT_SUPPORTED;
            sum = load(&card->links[value->scopeId], field->offset, (enum width)field->width);
        }
        value->value.ullVal = sum >> field->shift;
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

/* Position of `id` among the twelve ids that start at `first` (six) and `second` (six), or -1. */
static int named_link(uint32_t id, uint32_t first, uint32_t second)
{
    if (id >= first && id < first + FIRST_NAMED_BLOCK) return (int)(id - first);
    if (id >= second && id < second + (NAMED_LINKS - FIRST_NAMED_BLOCK)) return (int)(id - second + FIRST_NAMED_BLOCK);
    return -1;
}

static nvmlReturn_t named_error_field(const struct card_state *card, nvmlFieldValue_t *value)
{
    for (size_t i = 0; i < sizeof NAMED_FAMILIES / sizeof *NAMED_FAMILIES; i++) {
        const struct named_family *family = &NAMED_FAMILIES[i];
        int link = named_link(value->fieldId, family->first, family->second);
        uint64_t sum = 0;

        if (link < 0 && value->fieldId != family->total) continue;
        if (card->architecture > NVML_DEVICE_ARCH_HOPPER || card->link_count == 0) return NVML_ERROR_NOT_SUPPORTED;
        if (link >= 0 && (uint32_t)link >= card->link_count) return NVML_ERROR_NOT_SUPPORTED;
        for (uint32_t each = 0; each < card->link_count; each++)
            if (link < 0 || each == (uint32_t)link) sum += card->links[each].errors[family->counter];
        put_counter(value, sum);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

/* Speed is told for active links only: per link by scope (164), per link by id (84 ...), and once for all (90). */
static nvmlReturn_t speed_field(const struct state *state, const struct card_state *card, nvmlFieldValue_t *value)
{
    int link = named_link(value->fieldId, NVML_FI_DEV_NVLINK_SPEED_MBPS_L0, NVML_FI_DEV_NVLINK_SPEED_MBPS_L6);

    if (value->fieldId == NVML_FI_DEV_NVLINK_GET_SPEED) {
        nvmlReturn_t missing = card->link_count == 0 ? NVML_ERROR_NOT_SUPPORTED : link_of(state, card, value->scopeId);
        if (missing != NVML_SUCCESS) return missing;
        link = (int)value->scopeId;
    } else if (value->fieldId == NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON) {
        for (link = 0; (uint32_t)link < card->link_count; link++)
            if (card->links[link].state != NVML_NVLINK_STATE_INACTIVE) break;
    } else if (link < 0) {
        return NVML_ERROR_NOT_FOUND;
    }
    if ((uint32_t)link >= card->link_count) return NVML_ERROR_NOT_SUPPORTED;
    put_unsigned(value, card->links[link].state == NVML_NVLINK_STATE_INACTIVE ? 0 : card->links[link].speed_mbps);
    return NVML_SUCCESS;
}

/* The three newest clock event counters, at the place where this driver has them. */
static nvmlReturn_t reason_field(const struct state *state, const struct card_state *card, nvmlFieldValue_t *value)
{
    uint32_t first = NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN;

    if (!driver_at_least(state, 575, 0)) return NVML_ERROR_NOT_FOUND;
    if (!driver_at_least(state, 580, 82)) first = REASON_FIELDS_EARLY;
    if (value->fieldId < first || value->fieldId >= first + 3) return NVML_ERROR_NOT_FOUND;
    put_counter(value, card->reason_ns[value->fieldId - first]);
    return NVML_SUCCESS;
}

/* Fields that need a rule of their own. */
static nvmlReturn_t special_field(const struct card_state *card, nvmlFieldValue_t *value)
{
    uint32_t switched = 0;

    switch (value->fieldId) {
    case NVML_FI_DEV_RETIRED_PENDING:
        put_unsigned(value, card->retired_pending[0] || card->retired_pending[1]);
        return NVML_SUCCESS;
    case NVML_FI_DEV_NVSWITCH_CONNECTED_LINK_COUNT:
        for (uint32_t link = 0; link < card->link_count; link++)
            switched += card->links[link].remote_type == NVML_NVLINK_DEVICE_TYPE_SWITCH;
        put_unsigned(value, switched);
        return NVML_SUCCESS;
    case NVML_FI_DEV_PCIE_COUNT_TX_BYTES:
        put_counter(value, card->pcie_tx_bytes & PCIE_COUNTER_MASK);
        return NVML_SUCCESS;
    case NVML_FI_DEV_PCIE_COUNT_RX_BYTES:
        put_counter(value, card->pcie_rx_bytes & PCIE_COUNTER_MASK);
        return NVML_SUCCESS;
    case NVML_FI_DEV_POWER_AVERAGE:
    case NVML_FI_DEV_POWER_INSTANT:
        if (value->scopeId == SCOPE_MODULE && card->module_power_mw == 0) return NVML_ERROR_NOT_SUPPORTED;
        put_unsigned(value, value->scopeId == SCOPE_MODULE                 ? card->module_power_mw
                            : value->fieldId == NVML_FI_DEV_POWER_AVERAGE ? card->power_mw
                                                                          : card->power_instant_mw);
        return NVML_SUCCESS;
    case NVML_FI_DEV_ENERGY:
        if (value->scopeId == SCOPE_MODULE && card->module_power_mw == 0) return NVML_ERROR_NOT_SUPPORTED;
        put_counter(value, value->scopeId == SCOPE_MODULE ? card->module_energy_mj : card->energy_mj);
        return NVML_SUCCESS;
    default: return NVML_ERROR_NOT_FOUND;
    }
}

static nvmlReturn_t raw_field(const struct card_state *card, nvmlFieldValue_t *value)
{
    const struct raw_field *raw = &card->raw_fields[value->fieldId];

    if (!raw->given) return NVML_ERROR_NOT_SUPPORTED;
    value->valueType = (nvmlValueType_t)raw->value_type;
    value->value.ullVal = raw->bits;
    return NVML_SUCCESS;
}

/* What the card's own modes forbid, whatever the table says. */
static nvmlReturn_t forbidden(const struct card_state *card, uint32_t id)
{
    int is_ecc = id >= NVML_FI_DEV_ECC_SBE_VOL_TOTAL && id <= NVML_FI_DEV_ECC_DBE_AGG_CBU;
    int is_limit = id >= NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT && id <= NVML_FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT;

    if (is_ecc && !card->ecc_current) return NVML_ERROR_NOT_SUPPORTED;
    if (is_limit && !card->limit_offset_given) return NVML_ERROR_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

nvmlReturn_t read_field(const struct state *state, const struct card_state *card, nvmlFieldValue_t *value)
{
    nvmlReturn_t result;

    value->value.ullVal = 0;
    if (value->fieldId == 0 || value->fieldId >= driver_field_limit(state) || value->fieldId >= MAX_FIELDS)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (card->field_refusal[value->fieldId] != NVML_SUCCESS) return (nvmlReturn_t)card->field_refusal[value->fieldId];
    if ((result = forbidden(card, value->fieldId)) != NVML_SUCCESS) return result;
    if ((result = reason_field(state, card, value)) != NVML_ERROR_NOT_FOUND) return result;
    if ((result = card_field(card, value)) != NVML_ERROR_NOT_FOUND) return result;
    if ((result = special_field(card, value)) != NVML_ERROR_NOT_FOUND) return result;
    if ((result = speed_field(state, card, value)) != NVML_ERROR_NOT_FOUND) return result;
    if ((result = link_field(state, card, value)) != NVML_ERROR_NOT_FOUND) return result;
    if ((result = named_error_field(card, value)) != NVML_ERROR_NOT_FOUND) return result;
    return raw_field(card, value);
}

EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    ENTER(nvmlDeviceGetFieldValues, device, values);
    if (count <= 0) return NVML_ERROR_INVALID_ARGUMENT;
    uint64_t started_us = realtime_us();
    CONSISTENT(card)
    {
        for (int i = 0; i < count; i++) values[i].nvmlReturn = read_field(session_state(), card, &values[i]);
    }
    uint64_t cost_us = realtime_us() - started_us;
    for (int i = 0; i < count; i++) {
        values[i].timestamp = (long long)started_us;
        values[i].latencyUsec = (long long)cost_us / count;
    }
    return NVML_SUCCESS;
}
