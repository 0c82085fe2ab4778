/* text.c — copying texts into callers' buffers, clocks, sleeping and delaying. */
#include <errno.h>
#include <stdio.h>
#include <time.h>

#include "library.h"

/* `text` need not be terminated within `text_size`: it may be read while it is written. */
nvmlReturn_t copy_text(char *target, unsigned int size, const char *text, size_t text_size)
{
    size_t length = strnlen(text, text_size);

    if (target == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    if (length + 1 > size) return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(target, text, length);
    target[length] = '\0';
    return NVML_SUCCESS;
}

static uint64_t clock_us(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

uint64_t realtime_us(void) { return clock_us(CLOCK_REALTIME); }
uint64_t monotonic_us(void) { return clock_us(CLOCK_MONOTONIC); }

void sleep_us(uint64_t microseconds)
{
    struct timespec left = {(time_t)(microseconds / 1000000u), (long)(microseconds % 1000000u) * 1000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) continue;
}

/* The kernel wakes a sleeper some 60 us late, which is more than most calls of a driver take. */
#define SHORT_DELAY_US 1000u

void delay_us(uint64_t microseconds)
{
    struct timespec begun, now;

    if (microseconds >= SHORT_DELAY_US) {
        sleep_us(microseconds);
        return;
    }
    clock_gettime(CLOCK_MONOTONIC, &begun);
    do {
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((uint64_t)((now.tv_sec - begun.tv_sec) * 1000000000ll + now.tv_nsec - begun.tv_nsec) < microseconds * 1000u);
}
