/* Which actor a thread belongs to, as Python has said; and whether that still holds.
 *
 * A thread id may be used again, a process may execute something else: so with each entry goes a
 * pidfd of the thread (Linux ≥ 6.9), which signals into the void once the thread is gone, and
 * /proc/TID/mem, whose address space has ended once the process has executed another program. Both
 * questions together cost some 2 µs; reading /proc/TID/stat costs 18. A child of vfork(2), as shells
 * make them, has its parent's address space until it executes something: such a one is not known.
 */
#include "lane.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { KNOWN = 256, PIDFD_THREAD_FLAG = O_EXCL };

struct known {
    uint32_t tid, actor;
    int pidfd, mem;
    int64_t until;
};
static struct known known[KNOWN]; /* by tid, one in each place: the last that was told */
static pthread_mutex_t known_lock = PTHREAD_MUTEX_INITIALIZER;

static void drop(struct known *k)
{
    if (k->tid == 0)
        return;
    close(k->pidfd);
    close(k->mem);
    k->tid = 0;
}

/* True also where that can't be told. */
static bool shares_memory(uint32_t tid)
{
    char path[40], text[1024];
    int parent = 0;
    snprintf(path, sizeof path, "/proc/%u/stat", tid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return true;
    ssize_t size = read(fd, text, sizeof text - 1);
    close(fd);
    text[size > 0 ? size : 0] = 0;
    const char *rest = strrchr(text, ')'); /* the name may hold anything */
    if (rest == NULL || sscanf(rest, ") %*c %d", &parent) != 1)
        return true;
    if (parent == 0)
        return false; /* not to be seen from here: the first of its namespace */
    long order = syscall(SYS_kcmp, tid, parent, KCMP_VM, 0, 0);
    return order == 0 || (order < 0 && errno != ESRCH);
}

bool thread_know(uint32_t tid, uint32_t actor, int64_t for_ns)
{
    char path[40];
    if (tid == 0 || shares_memory(tid))
        return false;
    int pidfd = (int)syscall(SYS_pidfd_open, tid, PIDFD_THREAD_FLAG);
    if (pidfd < 0)
        return false;
    snprintf(path, sizeof path, "/proc/%u/mem", tid);
    int mem = open(path, O_RDONLY | O_CLOEXEC);
    if (mem < 0) {
        close(pidfd);
        return false;
    }
    struct known *k = &known[tid % KNOWN];
    pthread_mutex_lock(&known_lock);
    drop(k);
    k->tid = tid, k->actor = actor, k->pidfd = pidfd, k->mem = mem;
    k->until = monotonic_ns() + for_ns;
    pthread_mutex_unlock(&known_lock);
    return true;
}

uint32_t thread_actor(uint32_t tid)
{
    struct known *k = &known[tid % KNOWN];
    uint32_t actor = 0;
    char byte;
    if (tid == 0)
        return 0;
    pthread_mutex_lock(&known_lock);
    if (k->tid == tid) {
        bool there = syscall(SYS_pidfd_send_signal, k->pidfd, 0, NULL, 0) == 0 || errno == EPERM;
        /* Nothing is mapped at address 0: EIO while the address space lives, end of file after. */
        if (there && pread(k->mem, &byte, 1, 0) != 0 && monotonic_ns() < k->until)
            actor = k->actor;
        else
            drop(k);
    }
    pthread_mutex_unlock(&known_lock);
    return actor;
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
