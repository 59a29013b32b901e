/* Requests that may change something, from before they do until they were answered.
 *
 * A request that a process had read and not answered when it died comes again, with AGAIN in its
 * number. What is written down here tells the next process that it may have been done already, and
 * by what to see that. One slot for each thread that serves; those of the dead stay until their
 * requests are answered, by whichever process.
 */
#include "lane.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef STATX_BTIME
#include <linux/stat.h>
#endif

static bool taken[STARTED]; /* by a thread of this process; with the lock */
static _Thread_local struct started *mine, *resumed; /* resumed: another process has begun it */

/* Timestamps of files come from a clock that moves once in a tick. */
enum { TICK_NS = 10000000 };

int64_t realtime_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static struct started *find_past(uint64_t unique)
{
    for (unsigned i = 0; i < STARTED; i++)
        if (shared->started[i].past && atomic_load(&shared->started[i].unique) == unique)
            return &shared->started[i];
    return NULL;
}

static struct started *slot_of_mine(void)
{
    if (mine)
        return mine;
    struct started *oldest = NULL;
    unsigned at = STARTED;
    lock();
    for (unsigned i = 0; i < STARTED && at == STARTED; i++) {
        struct started *s = &shared->started[i];
        if (taken[i])
            continue;
        if (atomic_load(&s->unique) == 0)
            at = i;
        else if (oldest == NULL || s->began < oldest->began)
            oldest = s;
    }
    if (at == STARTED && oldest) /* it was answered: so many are never under way */
        at = (unsigned)(oldest - shared->started);
    if (at < STARTED) {
        taken[at] = true;
        mine = &shared->started[at];
        atomic_store(&mine->unique, 0);
        mine->past = false;
    }
    unlock();
    return mine;
}

const struct started *journal_begin(uint64_t unique, uint32_t opcode, uint64_t ino, uint64_t size,
                                    uint64_t node)
{
    resumed = unique & AGAIN ? find_past(unique & ~AGAIN) : NULL;
    struct started *s = resumed ? NULL : slot_of_mine();
    if (s) {
        atomic_store_explicit(&s->unique, 0, memory_order_release);
        atomic_signal_fence(memory_order_seq_cst);
        s->opcode = opcode, s->ino = ino, s->size = size, s->node = node, s->began = realtime_ns();
        atomic_store_explicit(&s->unique, unique & ~AGAIN, memory_order_release);
    }
    die(BEGUN);
    return resumed;
}

void journal_end(void)
{
    die(ANSWERED);
    if (mine)
        atomic_store_explicit(&mine->unique, 0, memory_order_release);
    if (resumed)
        atomic_store_explicit(&resumed->unique, 0, memory_order_release);
    resumed = NULL;
}

void journal_leave(void)
{
    if (mine == NULL)
        return;
    lock();
    atomic_store(&mine->unique, 0);
    taken[mine - shared->started] = false;
    unlock();
    mine = NULL;
}

const struct started *journal_past(uint64_t unique) { return unique & AGAIN ? find_past(unique & ~AGAIN) : NULL; }

uint64_t journal_current(void) { return mine ? atomic_load(&mine->unique) : 0; }

void journal_all_past(void)
{
    for (unsigned i = 0; i < STARTED; i++)
        if (atomic_load(&shared->started[i].unique))
            shared->started[i].past = true;
}

bool journal_made(uint64_t unique, int dir, const char *name, uint32_t kind)
{
    struct statx st;
    const struct started *s = journal_past(unique);
    if (s == NULL || statx(dir, name, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS | STATX_BTIME, &st) < 0
        || (st.stx_mode & S_IFMT) != kind)
        return false;
    const struct statx_timestamp *t = st.stx_mask & STATX_BTIME ? &st.stx_btime : &st.stx_ctime;
    return t->tv_sec * 1000000000LL + t->tv_nsec + TICK_NS >= s->began;
}

/* ---- for tests ---- */

unsigned die_point;
static atomic_int die_left;

void die_at(unsigned point, int nth)
{
    atomic_store(&die_left, nth);
    die_point = point;
}

void die_here(void)
{
    if (atomic_fetch_sub(&die_left, 1) == 1) {
        kill(getpid(), SIGKILL);
        for (;;)
            pause();
    }
}
