/* link_fields.c — the fields of nvmlDeviceGetFieldValues that are about NVLinks.
 *
 * A table tells how each counter of a link is scaled, which generation of NVLink has it, and whether UINT_MAX as scope asks
 * for the sum over links. Two kinds of ids stand beside it: one per link (..._L0 to ..._L11), and the speeds.
 */
#include "fields.h"

#define KIB_SHIFT 10       /* the throughput counters count KiB (nvml.h) */
#define ALL_LINKS UINT_MAX /* scope: the sum over the card's links */
#define NAMED_LINKS 12u    /* families ..._L0 to ..._L11: ids 0-5 stand together, 6-11 elsewhere */
#define FIRST_NAMED_BLOCK 6u

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
#define LINK_NUMBER(id, member)                                                                                        \
    {id, U32, NVML_VALUE_TYPE_UNSIGNED_INT, 0, 0, EVERY, offsetof(struct link_state, member)}
#define BLACKWELL_SLOT(id) blackwell_errors[(id) - NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS]
#define BLACKWELL_ERROR(id) LINK_COUNTER(id, BLACKWELL_SLOT(id), 0, FROM_BLACKWELL)
/* A bit error rate is an encoded number: no sum over links. */
#define BLACKWELL_RATE(id)                                                                                             \
    {id, U64, NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, 0, 0, FROM_BLACKWELL, offsetof(struct link_state, BLACKWELL_SLOT(id))}

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
    BLACKWELL_RATE(NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_BER),
    BLACKWELL_ERROR(NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS),
    BLACKWELL_RATE(NVML_FI_DEV_NVLINK_COUNT_SYMBOL_BER),
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
                sum += load_member(&card->links[link], field->offset, (enum width)field->width);
        } else {
            nvmlReturn_t missing = link_of(state, card, value->scopeId);
            if (missing != NVML_SUCCESS) return missing;
            /* A counter of a link that is down is an error in the driver (resource manager), not a zero. */
            if (field->summable && card->links[value->scopeId].state == NVML_NVLINK_STATE_INACTIVE)
                return NVML_ERROR_NOT_SUPPORTED;
            sum = load_member(&card->links[value->scopeId], field->offset, (enum width)field->width);
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

nvmlReturn_t read_link_field(const struct state *state, const struct card_state *card, nvmlFieldValue_t *value)
{
    nvmlReturn_t result = speed_field(state, card, value);

    if (result == NVML_ERROR_NOT_FOUND) result = link_field(state, card, value);
    if (result == NVML_ERROR_NOT_FOUND) result = named_error_field(card, value);
    return result;
}
