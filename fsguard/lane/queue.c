/* What goes to Python: whole requests. (What it is told of afterwards: records.c) */
#include "lane.h"

#include <errno.h>
#include <malloc.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* ---- requests: first in, first out; the event descriptor is readable while there are any ---- */

struct item {
    struct item *next;
    void *mem;
    size_t size;
};

static pthread_mutex_t queue_lock = PTHREAD_MUTEX_INITIALIZER;
static struct item *first, *last, *spare;
static int event = -1;
static bool raised;
static atomic_uint queued;

enum { POOL = 16, WAIT_NS = 60000, WAIT_LEAST_NS = 2000 };
static void *pool[POOL];
static unsigned pooled;

bool queue_start(void)
{
    event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    lane.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return event >= 0 && lane.wake_fd >= 0;
}

int queue_eventfd(void) { return event; }

static void raise_event(void)
{
    uint64_t one = 1;
    if (!raised && write(event, &one, sizeof one) == sizeof one)
        raised = true;
}

static void lower_event(void)
{
    uint64_t count;
    if (raised && read(event, &count, sizeof count) == sizeof count)
        raised = false;
}

void queue_wake(void)
{
    pthread_mutex_lock(&queue_lock);
    raise_event();
    pthread_mutex_unlock(&queue_lock);
}

/* A request that the kernel can't copy to us in one go, because a page is missing and we are being killed,
 * fails with EIO (Linux 6.18, fuse_dev_do_read). So the pages are there before. (Memory of malloc's: libfuse
 * frees it.) */
enum { PAGE = 4096, AT_LEAST = 4 * PAGE, FULL = 8 };
static unsigned buffers; /* with queue_lock held */

static void *buffer_new(bool full)
{
    size_t size = (lane.buffer_size + PAGE - 1) / PAGE * PAGE, most = full ? size : AT_LEAST;
    void *mem;
    if (posix_memalign(&mem, PAGE, size) != 0)
        return NULL;
    if (madvise(mem, most, MADV_POPULATE_WRITE) < 0) /* Linux 5.14 */
        memset(mem, 0, most);
    return mem;
}

void *buffer_take(void)
{
    void *mem = NULL;
    bool full = false;
    pthread_mutex_lock(&queue_lock);
    if (pooled)
        mem = pool[--pooled];
    else
        full = buffers++ < FULL;
    pthread_mutex_unlock(&queue_lock);
    return mem ? mem : buffer_new(full);
}

void buffer_give(void *mem)
{
    pthread_mutex_lock(&queue_lock);
    if (mem && pooled < POOL) {
        pool[pooled++] = mem;
        mem = NULL;
    } else if (mem) {
        buffers--;
    }
    pthread_mutex_unlock(&queue_lock);
    free(mem);
}

void queue_push(void *mem, size_t size)
{
    pthread_mutex_lock(&queue_lock);
    struct item *item = spare;
    if (item)
        spare = item->next;
    else
        while ((item = malloc(sizeof *item)) == NULL)
            ; /* a request must not be lost: its caller would wait for ever */
    item->next = NULL, item->mem = mem, item->size = size;
    if (last)
        last->next = item;
    else
        first = item;
    last = item;
    atomic_fetch_add(&queued, 1);
    raise_event();
    pthread_mutex_unlock(&queue_lock);
    atomic_fetch_add_explicit(&shared->forwarded, 1, memory_order_relaxed);
}

unsigned queue_length(void) { return atomic_load(&queued); }

void queue_end(void)
{
    pthread_mutex_lock(&queue_lock);
    atomic_store(&lane.over, true);
    raise_event();
    pthread_mutex_unlock(&queue_lock);
    watch_end();
}

int queue_receive(struct buf *buf)
{
    pthread_mutex_lock(&queue_lock);
    struct item *item = first;
    if (item == NULL) {
        bool over = atomic_load(&lane.over);
        if (!over)
            lower_event();
        pthread_mutex_unlock(&queue_lock);
        return over ? 0 : -EINTR; /* pyfuse3 asks again after EINTR, and ends at 0 */
    }
    first = item->next;
    if (first == NULL) {
        last = NULL;
        if (!atomic_load(&lane.over))
            lower_event();
    }
    atomic_fetch_sub(&queued, 1);
    void *mem = item->mem;
    buf->size = item->size;
    item->next = spare, spare = item;
    pthread_mutex_unlock(&queue_lock);
    if (malloc_usable_size(buf->mem) >= lane.buffer_size)
        buffer_give(buf->mem); /* of the request before */
    else
        free(buf->mem); /* libfuse's own, in which FUSE_INIT came */
    buf->mem = mem;
    buf->flags = 0;
    return (int)buf->size;
}

/* As the leader does before it sleeps (serve.c): whoever makes one call after the other is back soon. */
bool queue_wait(void)
{
    static int64_t look_ns = WAIT_NS;
    int64_t end = monotonic_ns() + look_ns;
    do {
        if (atomic_load(&queued) || atomic_load(&lane.over)) {
            look_ns = look_ns * 2 < WAIT_NS ? look_ns * 2 : WAIT_NS;
            return true;
        }
        sched_yield();
    } while (monotonic_ns() < end);
    look_ns = look_ns / 2 > WAIT_LEAST_NS ? look_ns / 2 : WAIT_LEAST_NS;
    return false;
}
