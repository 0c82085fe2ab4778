/* fields.c — nvmlDeviceGetFieldValues: one call, many numbers.
 *
 * Most fields are a member of the card, told by a table: id, member, type. Those of NVLinks are in link_fields.c. What no
 * table has may have been given as a raw field. The call succeeds even when every field failed; each field carries its own
 * return code.
 */
#include "fields.h"

#define PCIE_COUNTER_MASK 0xffffffffull /* the driver's PCIe byte counters are 32 bits wide and wrap */
#define SCOPE_MODULE 1u         /* power and energy of GPU and CPU together */

/* Where the clock event counters stand: they moved twice (facts of nvml.h 12.8, 12.9 and 13.1). */
#define REASON_FIELDS_EARLY 251u /* drivers 575 up to 580.65 */

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

/* ---- reading ---- */

void put_unsigned(nvmlFieldValue_t *value, uint32_t number)
{
    value->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
    value->value.ullVal = 0;
    value->value.uiVal = number;
}

void put_counter(nvmlFieldValue_t *value, uint64_t number)
{
    value->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
    value->value.ullVal = number;
}

uint64_t load_member(const void *base, uint32_t offset, enum width width)
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
        value->value.ullVal = load_member(card, field->offset, (enum width)field->width);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
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

    int is_retired = id == NVML_FI_DEV_RETIRED_SBE || id == NVML_FI_DEV_RETIRED_DBE || id == NVML_FI_DEV_RETIRED_PENDING ||
                     id == NVML_FI_DEV_RETIRED_PENDING_SBE || id == NVML_FI_DEV_RETIRED_PENDING_DBE;
    int is_remapped = id >= NVML_FI_DEV_REMAPPED_COR && id <= NVML_FI_DEV_REMAPPED_FAILURE;

    if (is_ecc && !card->ecc_current) return NVML_ERROR_NOT_SUPPORTED;
    if (is_retired) return retires_pages(card);
    if (is_remapped) return remaps_rows(card);
    if (is_limit && !card->limit_offset_given) return NVML_ERROR_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

static nvmlReturn_t read_field(const struct state *state, const struct card_state *card, nvmlFieldValue_t *value)
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
    if ((result = read_link_field(state, card, value)) != NVML_ERROR_NOT_FOUND) return result;
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
