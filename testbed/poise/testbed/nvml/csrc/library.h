/* library.h — what every file of the library needs: the session, the gate, consistent reading.
 *
 * A public function begins with ENTER or ENTER_NODE (which may leave it with an error), reads the card, and writes its
 * result. Nothing here knows what a value means.
 */
#ifndef POISE_LIBRARY_H
#define POISE_LIBRARY_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef POISE_CHECK_AGAINST_NVML_H /* the ABI test compiles the library against NVIDIA's own header */
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>
#else
#include "nvml_abi.h"
#endif
#include "state.h"

#define EXPORT __attribute__((visibility("default")))

/* ---- function numbers ---- */
enum function_number {
#define FUNCTION(name, since) FN_##name,
#include "functions.def"
#undef FUNCTION
    FUNCTION_COUNT
};

/* ---- session.c: which state file, which cards, which handles ---- */
struct state *session_state(void); /* NULL before the first nvmlInit */
int session_open_state(void);      /* a new descriptor of the mapped file, or -1 when it is no longer there */
nvmlReturn_t session_check(void);  /* UNINITIALIZED, or what a session of an unloaded driver gets */
uint32_t session_card_count(void);
int session_card(uint32_t index);          /* NVML index to position in cards[], or -1 */
int session_index(int card);               /* the reverse */
nvmlDevice_t session_handle(int card);
nvmlDevice_t session_mig_handle(int card, uint32_t mig);
int session_card_of(nvmlDevice_t device);  /* position in cards[], or -1 for what is no handle of this session */
int session_mig_of(nvmlDevice_t device);   /* position in mig_devices[], or -1 for a whole card */

/* ---- gate.c: counting, injected behaviour, lost cards, refusals ---- */
nvmlReturn_t gate_node(enum function_number function);
nvmlReturn_t gate_memory(enum function_number function); /* for what only frees: a driver that went takes nothing with it */
nvmlReturn_t gate_card(enum function_number function, int card);
nvmlReturn_t gate_device(enum function_number function, nvmlDevice_t device, struct card_state **card);
/* The injected part alone: for nvmlInit, which runs before there is a session. */
nvmlReturn_t gate_injected(struct state *state, enum function_number function, int card);

#define ENTER_NODE(name)                                                                                               \
    do {                                                                                                               \
        nvmlReturn_t refused_ = gate_node(FN_##name);                                                                  \
        if (refused_ != NVML_SUCCESS) return refused_;                                                                 \
    } while (0)

/* Declares `card`, the state of the device. A function that writes a result names it as `result`: NULL is an error. */
#define ENTER(name, device, result)                                                                                    \
    struct card_state *card = NULL;                                                                                    \
    do {                                                                                                               \
        nvmlReturn_t refused_ = gate_device(FN_##name, (device), &card);                                               \
        if (refused_ != NVML_SUCCESS) return refused_;                                                                 \
        if ((result) == NULL) return NVML_ERROR_INVALID_ARGUMENT;                                                      \
    } while (0)

/* ---- reading.c: consistent reading (see state.h) ---- */
struct read_attempt {
    uint64_t *sequence;
    uint64_t before;         /* the sequence when the last copy began */
    uint64_t give_up_at_us;  /* monotonic; 0: nobody was met writing yet */
    uint32_t spins;
    uint32_t copied;
};
struct read_attempt read_start(uint64_t *sequence);
int read_again(struct read_attempt *attempt);

/* Runs its block until the card did not change meanwhile: everything that the block copies fits together. */
#define CONSISTENT(card)                                                                                               \
    for (struct read_attempt attempt_ = read_start(&(card)->sequence); read_again(&attempt_);)

/* ---- driver.c: what a driver branch knows ---- */
uint32_t driver_field_limit(const struct state *state);    /* ids from here on do not exist */
uint32_t driver_gpm_limit(const struct state *state);
uint32_t driver_link_limit(const struct state *state);     /* NVML_NVLINK_MAX_LINKS of its time */
int driver_at_least(const struct state *state, uint32_t major, uint32_t minor);

/* ---- small helpers, text.c ---- */
nvmlReturn_t copy_text(char *target, unsigned int size, const char *text, size_t text_size);
uint64_t realtime_us(void);
uint64_t monotonic_us(void);
void sleep_us(uint64_t microseconds);
void delay_us(uint64_t microseconds); /* exact: a short delay keeps the core, as a call into the kernel does */

/* ---- shared between topics ---- */
void fill_pci_info(nvmlPciInfo_t *info, const struct card_state *card);  /* identity.c */
nvmlReturn_t link_of(const struct state *state, const struct card_state *card, unsigned int link); /* nvlink.c */
nvmlReturn_t remaps_rows(const struct card_state *card);   /* ecc.c: SUCCESS or why there is no such thing on the card */
nvmlReturn_t retires_pages(const struct card_state *card); /* ecc.c */

#endif
