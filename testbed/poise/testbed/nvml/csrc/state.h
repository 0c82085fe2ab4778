/* state.h — the layout of the mapped file through which Python drives the simulated library, in whichever process it is.
 *
 * One writer side (state.py mirrors this layout with ctypes, node.py writes it), many readers (this library). Only three
 * things are written here by the library: call counters, and the `hits`, `waiting` and `remaining` of a rule.
 *
 * Consistency. Every number is naturally aligned and at most 64 bits, so a single value is never torn on x86-64 or
 * AArch64. What must fit together (used and total memory, tx and rx of a link, a process list, a sample ring, a text) is
 * guarded by the card's `sequence`: the writer makes it odd, writes, makes it even; a reader copies, and copies again when
 * the sequence was odd or has moved (CONSISTENT in library.h). Writers exclude each other with flock on the file and hold it
 * for as long as a sequence is odd. An odd sequence without a lock is the work of a writer that was killed half-way: the
 * next reader or writer ends that change.
 *
 * The writer is Python and cannot fence its stores: that they are seen in their order is x86-64's guarantee. AArch64 gives
 * none, there a reader could in theory take an early part of a change for the whole.
 *
 * Units are in the names. A test compares the offset of every member with the ctypes mirror.
 */
#ifndef POISE_STATE_H
#define POISE_STATE_H

#include <stdint.h>

#define STATE_MAGIC 0x31564e4553494f50ull /* "POISENV1", little-endian */
#define STATE_LAYOUT 1u                   /* raised with every change of this file */

#define MAX_CARDS 16u
#define MAX_LINKS 36u      /* NVML_NVLINK_MAX_LINKS */
#define MAX_PROCESSES 128u /* per card */
#define MAX_RULES 64u
#define MAX_EVENTS 256u
#define SAMPLE_KINDS 10u   /* nvmlSamplingType_t */
#define SAMPLES_KEPT 120u  /* per kind: 20 s at the driver's six samples a second */
#define MAX_FIELDS 512u
#define MAX_GPM_METRICS 512u
#define MAX_FUNCTIONS 512u
#define MAX_MIG_DEVICES 8u

#define ANY_FUNCTION 0xffffffffu
#define ANY_CARD (-2)
#define NO_CARD (-1) /* a call about the node, not about a card */

/* ---- per link ---- */
struct link_state {
    uint32_t state;       /* NVML_NVLINK_STATE_* */
    uint32_t version;     /* nvmlNvlinkVersion_t */
    uint32_t speed_mbps;  /* MB/s per direction */
    uint32_t remote_type; /* nvmlIntNvLinkDeviceType_t */
    uint32_t remote_link;
    uint32_t power_state; /* NVML_NVLINK_POWER_STATE_* */
    char remote_bus_id[32];
    uint64_t payload_tx_bytes;
    uint64_t payload_rx_bytes;
    uint64_t raw_tx_bytes; /* payload and protocol */
    uint64_t raw_rx_bytes;
    uint64_t tx_packets;
    uint64_t rx_packets;
    uint64_t errors[5];            /* nvmlNvLinkErrorCounter_t, up to Hopper */
    uint64_t blackwell_errors[17]; /* field ids 206 to 222 in order */
};

/* ---- per process on a card ---- */
struct process_state {
    uint32_t pid;
    uint32_t kind; /* 0 compute, 1 graphics, 2 MPS compute */
    uint32_t gpu_instance;
    uint32_t compute_instance;
    uint64_t used_memory_bytes; /* all ones: not available */
    uint32_t sm_percent;
    uint32_t memory_percent;
    uint32_t encoder_percent;
    uint32_t decoder_percent;
    uint32_t jpeg_percent;
    uint32_t ofa_percent;
    uint64_t utilization_at_us; /* since 1970; 0: no utilization sample */
};

/* ---- sample ring ---- */
struct sample {
    uint64_t at_us; /* since 1970 */
    uint64_t value; /* percent, mW or MHz, by kind */
};

struct sample_ring {
    uint64_t written; /* samples ever written; the newest is entries[(written - 1) % SAMPLES_KEPT] */
    struct sample entries[SAMPLES_KEPT];
};

/* ---- GPU performance monitoring: a metric's time integral, so that two samples give the average between them ---- */
struct gpm_metric {
    uint64_t given; /* 0: this card does not have the metric */
    double value;
    double integral; /* value x seconds, up to since_s */
    double since_s;  /* CLOCK_MONOTONIC */
};

/* ---- a field that no other member of the card stands behind ---- */
struct raw_field {
    uint32_t given;
    uint32_t value_type; /* nvmlValueType_t */
    uint64_t bits;
};

struct mig_device {
    uint32_t given;
    uint32_t gpu_instance;
    uint32_t compute_instance;
    uint32_t multiprocessors;
    uint64_t memory_total_bytes;
    uint64_t memory_used_bytes;
    char uuid[96];
};

struct card_state {
    uint64_t sequence;

    /* presence */
    uint32_t present;   /* 0: not enumerated by the next nvmlInit */
    uint32_t condition; /* nvmlReturn_t of every call about the card: 0, GPU_IS_LOST, RESET_REQUIRED, ... */

    /* identity */
    char name[96];
    char uuid[96];
    char serial[32];
    char part_number[80];
    char vbios[32];
    uint32_t minor;
    uint32_t module_id;
    uint32_t pci_domain;
    uint32_t pci_bus;
    uint32_t pci_device;
    uint32_t pci_device_id;
    uint32_t pci_subsystem_id;
    uint32_t brand;
    uint32_t architecture;
    uint32_t compute_major;
    uint32_t compute_minor;
    uint32_t numa_node;
    uint32_t cores;
    uint32_t memory_bus_bits;

    /* utilization, percent */
    uint32_t gpu_percent;
    uint32_t memory_percent;
    uint32_t encoder_percent;
    uint32_t decoder_percent;
    uint32_t jpeg_percent;
    uint32_t ofa_percent;

    /* memory */
    uint64_t memory_total_bytes;
    uint64_t memory_reserved_bytes;
    uint64_t memory_used_bytes; /* without the reserved part */
    uint64_t bar1_total_bytes;
    uint64_t bar1_used_bytes;

    /* power and energy */
    uint32_t power_mw; /* what nvmlDeviceGetPowerUsage and field 185 say */
    uint32_t power_instant_mw;
    uint32_t module_power_mw;
    uint32_t limit_min_mw;
    uint32_t limit_max_mw;
    uint32_t limit_default_mw;
    uint32_t limit_requested_mw;
    uint32_t limit_enforced_mw;
    uint64_t energy_mj;
    uint64_t module_energy_mj;

    /* temperature, degrees Celsius */
    int32_t temperature;
    int32_t temperature_hotspot;
    int32_t temperature_memory;
    int32_t temperature_margin;    /* to the nearest slowdown */
    uint32_t threshold[8];         /* nvmlTemperatureThresholds_t; 0: not supported */
    int32_t limit_offset[4];       /* fields 193 to 196, relative to T.Limit */
    uint32_t limit_offset_given;   /* 0: fields 193 to 196 not supported (before Ada) */
    uint32_t fan_count;
    uint32_t fan_percent;

    /* clocks */
    uint32_t clock_mhz[4]; /* nvmlClockType_t */
    uint32_t clock_max_mhz[4];
    uint32_t clock_application_mhz[4];
    uint32_t performance_state;
    uint64_t event_reasons;
    uint64_t event_reasons_supported;
    uint64_t policy_ns[8]; /* fields 74 to 81 in order; policies 0 to 5, 10, 11 */
    uint64_t reason_ns[3]; /* SW thermal, HW thermal, HW power brake */

    /* PCIe */
    uint32_t pcie_generation;
    uint32_t pcie_generation_max;      /* of GPU and slot together */
    uint32_t pcie_generation_max_gpu;
    uint32_t pcie_width;
    uint32_t pcie_width_max;
    uint32_t pcie_replays;
    uint32_t pcie_replay_rollovers;
    uint32_t pcie_tx_kb_per_s;
    uint32_t pcie_rx_kb_per_s;
    uint64_t pcie_tx_bytes; /* fields 197, 198 give the low 32 bits */
    uint64_t pcie_rx_bytes;
    uint64_t pcie_errors[12]; /* fields 169 and 173 to 183 in order */

    /* ECC, row remapping, page retirement */
    uint32_t ecc_current;
    uint32_t ecc_pending;
    uint64_t ecc_errors[2][2];               /* [corrected, uncorrected][volatile, aggregate] */
    uint64_t ecc_errors_by_place[2][2][8];   /* ... [nvmlMemoryLocation_t] */
    uint32_t sram_threshold_exceeded;
    uint32_t remapped_correctable;
    uint32_t remapped_uncorrectable;
    uint32_t remap_pending;
    uint32_t remap_failed;
    uint32_t remap_histogram[5]; /* banks with max, high, partial, low, none left */
    uint32_t retired_pages[2];   /* single-bit, double-bit */
    uint32_t retired_pending[2];

    /* modes */
    uint32_t mig_current;
    uint32_t mig_pending;
    uint32_t mig_max_devices;
    uint32_t persistence;
    uint32_t compute_mode;
    uint32_t recovery_action;
    uint64_t supported_events;

    /* fabric */
    uint32_t fabric_state;
    uint32_t fabric_status;
    uint32_t fabric_clique;
    uint32_t fabric_health_mask;
    uint32_t fabric_health_summary;
    uint8_t fabric_cluster[16];

    /* NVLink */
    uint32_t link_count;
    struct link_state links[MAX_LINKS];

    uint32_t gpm_supported;
    struct gpm_metric gpm[MAX_GPM_METRICS];

    uint32_t process_count;
    struct process_state processes[MAX_PROCESSES];

    struct sample_ring samples[SAMPLE_KINDS];

    struct mig_device mig_devices[MAX_MIG_DEVICES];

    struct raw_field raw_fields[MAX_FIELDS];
    uint32_t field_refusal[MAX_FIELDS];       /* nvmlReturn_t per field id */
    uint32_t function_refusal[MAX_FUNCTIONS]; /* nvmlReturn_t per function number */
};

/* ---- what is done to calls on purpose ---- */
struct rule {
    uint64_t token;    /* 0: empty; written last, so that a rule is complete when it is seen */
    uint32_t function; /* function number or ANY_FUNCTION */
    int32_t card;      /* position in cards[], NO_CARD or ANY_CARD */
    uint32_t error;    /* nvmlReturn_t, 0: let the call go on */
    uint32_t delay_us;
    uint32_t hang;     /* 1: hold the call until the rule goes or this becomes 0 */
    int32_t remaining; /* calls still affected; below 0: without end */
    uint64_t hits;
    uint64_t waiting; /* calls held at this moment */
};

struct event {
    uint64_t type; /* nvmlEventType*, one bit */
    uint64_t data; /* the XID */
    uint64_t at_us;
    int32_t card;
    uint32_t gpu_instance;
    uint32_t compute_instance;
    uint32_t reserved;
};

struct state {
    /* header: checked by both sides before anything else is read */
    uint64_t magic;
    uint32_t layout;
    uint32_t function_count;
    uint64_t size; /* sizeof(struct state) */

    /* driver */
    uint32_t driver_major; /* 580 */
    uint32_t driver_minor; /* 95 */
    uint32_t cuda_version; /* 13000 */
    uint32_t init_error;   /* nvmlReturn_t of nvmlInit */
    uint64_t driver_loads; /* raised by each (re)load: sessions from before are dead */
    uint32_t dead_session_error; /* what a call in such a session answers */
    uint32_t card_count;   /* used entries of cards[] */
    char driver_version[80];
    char nvml_version[80];

    uint64_t rule_count; /* rules in use: 0 lets the gate skip them */
    struct rule rules[MAX_RULES];

    uint64_t events_written;
    struct event events[MAX_EVENTS];

    uint8_t topology[MAX_CARDS][MAX_CARDS];   /* nvmlGpuTopologyLevel_t */
    uint8_t p2p[MAX_CARDS][MAX_CARDS][5];     /* nvmlGpuP2PStatus_t by nvmlGpuP2PCapsIndex_t */

    uint64_t calls[MAX_FUNCTIONS][MAX_CARDS + 1]; /* [..][MAX_CARDS]: calls about no card */

    struct card_state cards[MAX_CARDS];
};

#endif
