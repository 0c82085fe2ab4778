/* session.c — the life of a session: nvmlInit, nvmlShutdown, the mapped state, and what a device handle is.
 *
 * Cards are enumerated by the first nvmlInit and keep their index until the last nvmlShutdown, as with a real driver: a
 * card that vanishes meanwhile answers GPU_IS_LOST, and the count changes for whoever initialises afterwards. Handles are
 * good for one session; one from an earlier session is an invalid argument.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "library.h"

#define SESSIONS_TOLD_APART 64u /* a handle is taken for a current one only after this many sessions */
#define HANDLES_PER_CARD (1u + MAX_MIG_DEVICES)

struct nvmlDevice_st {
    char unused; /* a handle is an address, nothing is stored behind it */
};

static struct nvmlDevice_st handles[SESSIONS_TOLD_APART][MAX_CARDS][HANDLES_PER_CARD];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct state *mapped;
static char mapped_path[PATH_MAX];
static dev_t mapped_device;
static ino_t mapped_inode;
static uint32_t references;
static uint64_t session_number;
static uint64_t driver_loads_at_init;
static uint32_t enumerated_count;
static int enumerated[MAX_CARDS];

/* Once: a program may try again and again. */
static void complain(const char *path, const char *why)
{
    static int complained;

    if (complained++) return;
    fprintf(stderr, "poise: simulated NVML: %s: %s\n", path, why);
}

/* Maps the file that POISE_NVML_STATE names. A mapping stays for good: a call that hangs may still look at it. */
static nvmlReturn_t map_state(struct state **result)
{
    const char *path = getenv("POISE_NVML_STATE");
    struct stat status;

    if (path == NULL || *path == '\0') {
        complain("POISE_NVML_STATE", "not set; a process starts on a simulated node with node.environment()");
        return NVML_ERROR_DRIVER_NOT_LOADED;
    }
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) {
        complain(path, strerror(errno));
        return errno == EACCES || errno == EPERM ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_DRIVER_NOT_LOADED;
    }
    if (fstat(file, &status) != 0 || status.st_size != (off_t)sizeof(struct state)) {
        complain(path, "not a state file of this version of the simulated library; create it again");
        close(file);
        return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    }
    if (mapped != NULL && mapped_device == status.st_dev && mapped_inode == status.st_ino) {
        close(file);
        *result = mapped;
        return NVML_SUCCESS;
    }
    struct state *state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (state == MAP_FAILED) {
        complain(path, strerror(errno));
        return NVML_ERROR_OPERATING_SYSTEM;
    }
    if (state->magic != STATE_MAGIC || state->layout != STATE_LAYOUT || state->size != sizeof *state ||
        state->function_count != FUNCTION_COUNT) {
        complain(path, "written by another version of poise; create it again");
        munmap(state, sizeof *state);
        return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    }
    snprintf(mapped_path, sizeof mapped_path, "%s", path);
    mapped_device = status.st_dev;
    mapped_inode = status.st_ino;
    *result = state;
    return NVML_SUCCESS;
}

static void enumerate(const struct state *state)
{
    enumerated_count = 0;
    for (uint32_t card = 0; card < state->card_count && card < MAX_CARDS; card++)
        if (state->cards[card].present) enumerated[enumerated_count++] = (int)card;
}

static nvmlReturn_t initialise(enum function_number function)
{
    struct state *state;
    nvmlReturn_t result;

    pthread_mutex_lock(&lock);
    result = references > 0 ? NVML_SUCCESS : map_state(&mapped);
    state = mapped;
    pthread_mutex_unlock(&lock);
    if (result != NVML_SUCCESS) return result;

    /* Outside the lock: an init that hangs must not hang the shutdown of another thread. */
    result = gate_injected(state, function, NO_CARD);
    if (result != NVML_SUCCESS) return result;

    pthread_mutex_lock(&lock);
    if (references == 0) result = (nvmlReturn_t)state->init_error;
    if (result == NVML_SUCCESS && references++ == 0) {
        mapped = state;
        session_number++;
        driver_loads_at_init = state->driver_loads;
        enumerate(state);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    return initialise(FN_nvmlInitWithFlags);
}

EXPORT nvmlReturn_t nvmlInit_v2(void) { return initialise(FN_nvmlInit_v2); }
EXPORT nvmlReturn_t nvmlInit(void) { return initialise(FN_nvmlInit); }

EXPORT nvmlReturn_t nvmlShutdown(void)
{
    nvmlReturn_t result = NVML_ERROR_UNINITIALIZED;

    if (mapped != NULL) {
        nvmlReturn_t injected = gate_injected(mapped, FN_nvmlShutdown, NO_CARD);
        if (injected != NVML_SUCCESS) return injected;
    }
    pthread_mutex_lock(&lock);
    if (references > 0) {
        references--;
        result = NVML_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

struct state *session_state(void) { return mapped; }

int session_open_state(void)
{
    struct stat status;
    int file = open(mapped_path, O_RDWR | O_CLOEXEC);

    if (file >= 0 && fstat(file, &status) == 0 && status.st_dev == mapped_device && status.st_ino == mapped_inode)
        return file;
    if (file >= 0) close(file); /* another node stands there now */
    return -1;
}

nvmlReturn_t session_check(void)
{
    if (__atomic_load_n(&references, __ATOMIC_ACQUIRE) == 0) return NVML_ERROR_UNINITIALIZED;
    if (mapped->driver_loads != driver_loads_at_init) return (nvmlReturn_t)mapped->dead_session_error;
    return NVML_SUCCESS;
}

uint32_t session_card_count(void) { return enumerated_count; }

int session_card(uint32_t index) { return index < enumerated_count ? enumerated[index] : -1; }

int session_index(int card)
{
    for (uint32_t index = 0; index < enumerated_count; index++)
        if (enumerated[index] == card) return (int)index;
    return -1;
}

static struct nvmlDevice_st *handles_now(void) { return &handles[session_number % SESSIONS_TOLD_APART][0][0]; }

nvmlDevice_t session_handle(int card) { return handles_now() + (uint32_t)card * HANDLES_PER_CARD; }

nvmlDevice_t session_mig_handle(int card, uint32_t mig) { return session_handle(card) + 1 + mig; }

static int64_t handle_position(nvmlDevice_t device)
{
    uintptr_t first = (uintptr_t)handles_now();
    uintptr_t here = (uintptr_t)device;

    if (here < first || here >= first + MAX_CARDS * HANDLES_PER_CARD * sizeof(struct nvmlDevice_st)) return -1;
    return (int64_t)(here - first);
}

int session_card_of(nvmlDevice_t device)
{
    int64_t position = handle_position(device);
    if (position < 0) return -1;
    int card = (int)(position / HANDLES_PER_CARD);
    return session_index(card) < 0 ? -1 : card;
}

int session_mig_of(nvmlDevice_t device)
{
    int64_t position = handle_position(device);
    return position < 0 ? -1 : (int)(position % HANDLES_PER_CARD) - 1;
}
