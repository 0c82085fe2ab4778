/* reading.c — copying several values so that they fit together, while another process may be writing (see state.h).
 *
 * A writer holds the file's lock as long as a sequence is odd. It may be preempted meanwhile, so a reader waits; it may have
 * been killed, so a reader that waits looks whether anybody has the lock, and when nobody has, ends the change itself.
 */
#include <fcntl.h>
#include <sched.h>
#include <sys/file.h>
#include <unistd.h>

#include "library.h"

#define SPINS 100u /* a change takes microseconds: most waits end here */
#define WAIT_STEP_US 100u
#define PATIENCE_US 2000000u /* for a writer that was stopped in a change: after that the reader takes what is there */

struct read_attempt read_start(uint64_t *sequence)
{
    struct read_attempt attempt = {sequence, 0, 0, 0, 0};
    return attempt;
}

/* Nobody has the lock and the sequence is odd: its writer was killed. */
static void end_abandoned_change(uint64_t *sequence, uint64_t seen)
{
    int file = session_open_state();

    if (file < 0) return;
    if (flock(file, LOCK_EX | LOCK_NB) == 0)
        __atomic_compare_exchange_n(sequence, &seen, seen + 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
    close(file); /* and the lock goes with it */
}

static void wait_for_writer(struct read_attempt *attempt, uint64_t seen)
{
    if (attempt->spins++ < SPINS) {
        sched_yield();
        return;
    }
    end_abandoned_change(attempt->sequence, seen);
    sleep_us(WAIT_STEP_US);
}

int read_again(struct read_attempt *attempt)
{
    __atomic_thread_fence(__ATOMIC_ACQUIRE); /* the copy is complete before the sequence is looked at again */
    uint64_t now = __atomic_load_n(attempt->sequence, __ATOMIC_ACQUIRE);

    if (attempt->copied && now == attempt->before) return 0;
    if (attempt->give_up_at_us == 0) {
        if (now % 2 == 1 || attempt->copied) attempt->give_up_at_us = monotonic_us() + PATIENCE_US;
    } else if (attempt->copied && monotonic_us() >= attempt->give_up_at_us) {
        return 0;
    }
    while (now % 2 == 1 && monotonic_us() < attempt->give_up_at_us) {
        wait_for_writer(attempt, now);
        now = __atomic_load_n(attempt->sequence, __ATOMIC_ACQUIRE);
    }
    attempt->copied = 1;
    attempt->before = now;
    return 1;
}
