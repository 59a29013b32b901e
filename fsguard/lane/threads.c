/* Which actor a thread belongs to, as Python has said; and whether that still holds.
 *
 * A thread id may be used again, a process may execute something else: so with each entry goes a
 * descriptor of /proc/TID/stat, which names the thread and no later one of that number, with the two
 * numbers that tell: when the thread began, and where its environment lies, which every exec moves.
 * Reading it takes some 6 µs, and no lock of the process's address space: another thread may hold
 * that while it waits for us (mmap over a dirty mapping of one of our files).
 */
#include "lane.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { KNOWN = 256 };

struct stamp {
    unsigned long long start, image;
};
struct known {
    uint32_t tid;
    struct who who;
    int stat;
    struct stamp stamp;
    int64_t until;
};
static struct known known[KNOWN]; /* by tid, one in each place: the last that was told */
static pthread_mutex_t known_lock = PTHREAD_MUTEX_INITIALIZER;

static void drop(struct known *k)
{
    if (k->tid == 0)
        return;
    close(k->stat);
    k->tid = 0;
}

/* Fields 22 (starttime) and 50 (env_start) of proc(5). */
static bool read_stamp(int fd, struct stamp *stamp)
{
    char text[1024];
    ssize_t size = pread(fd, text, sizeof text - 1, 0);
    if (size <= 0)
        return false; /* ESRCH: it has ended */
    text[size] = 0;
    char *at = strrchr(text, ')'); /* the name may hold anything */
    memset(stamp, 0, sizeof *stamp);
    for (int field = 2; at && field < 50; field++) {
        at = strchr(at + 1, ' ');
        if (at && field + 1 == 22)
            stamp->start = strtoull(at + 1, NULL, 10);
        if (at && field + 1 == 50)
            stamp->image = strtoull(at + 1, NULL, 10);
    }
    return stamp->start != 0;
}

bool thread_know(uint32_t tid, struct who who, int64_t for_ns)
{
    char path[40];
    struct stamp stamp;
    if (tid == 0)
        return false;
    snprintf(path, sizeof path, "/proc/%u/stat", tid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    if (!read_stamp(fd, &stamp)) {
        close(fd);
        return false;
    }
    struct known *k = &known[tid % KNOWN];
    pthread_mutex_lock(&known_lock);
    drop(k);
    *k = (struct known){.tid = tid, .who = who, .stat = fd, .stamp = stamp, .until = monotonic_ns() + for_ns};
    pthread_mutex_unlock(&known_lock);
    return true;
}

struct who thread_who(uint32_t tid)
{
    struct known *k = &known[tid % KNOWN];
    struct stamp now;
    struct who who = {0};
    if (tid == 0)
        return who;
    pthread_mutex_lock(&known_lock);
    if (k->tid == tid) {
        if (monotonic_ns() < k->until && read_stamp(k->stat, &now) && now.start == k->stamp.start
            && now.image == k->stamp.image)
            who = k->who;
        else
            drop(k);
    }
    pthread_mutex_unlock(&known_lock);
    return who;
}

bool thread_reads_link(uint32_t tid)
{
    char path[40], text[32];
    snprintf(path, sizeof path, "/proc/%u/syscall", tid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    if (size <= 0 || text[0] < '0' || text[0] > '9')
        return false;
    text[size] = 0;
    long number = strtol(text, NULL, 10);
#ifdef SYS_readlink
    if (number == SYS_readlink)
        return true;
#endif
    return number == SYS_readlinkat;
}

void threads_forget(bool expired_only)
{
    int64_t now = expired_only ? monotonic_ns() : INT64_MAX;
    pthread_mutex_lock(&known_lock);
    for (unsigned i = 0; i < KNOWN; i++)
        if (known[i].until <= now)
            drop(&known[i]);
    pthread_mutex_unlock(&known_lock);
}
