/* What goes to Python: whole requests, and looks. */
#include "lane.h"

#include <errno.h>
#include <malloc.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
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
    return event >= 0;
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

void *buffer_take(void)
{
    void *mem = NULL;
    pthread_mutex_lock(&queue_lock);
    if (pooled)
        mem = pool[--pooled];
    pthread_mutex_unlock(&queue_lock);
    return mem ? mem : malloc(lane.buffer_size);
}

void buffer_give(void *mem)
{
    pthread_mutex_lock(&queue_lock);
    if (mem && pooled < POOL) {
        pool[pooled++] = mem;
        mem = NULL;
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
    atomic_fetch_add_explicit(&lane.forwarded, 1, memory_order_relaxed);
}

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

/* ---- looks ----
 *
 * Python takes them before it decides anything, so a look counts for the version that there is when
 * it is taken; and one that is still to be taken need not be told twice. */

static struct look looks[LOOKS];
static atomic_uint head, tail; /* head: next to write; both only moved with the table's lock held */

bool look_is_pending(unsigned number) { return number - atomic_load(&tail) < atomic_load(&head) - atomic_load(&tail); }

bool look_add(struct node *node, uint32_t actor)
{
    if (node->look_actor == actor && look_is_pending(node->look_number))
        return true;
    unsigned pending = looks_pending(), number = atomic_load(&head);
    if (pending == LOOKS)
        return false;
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    looks[number % LOOKS] = (struct look){.node = node, .actor = actor, .time = t.tv_sec * 1000000000LL + t.tv_nsec};
    node_hold(node);
    node->look_actor = actor, node->look_number = number;
    atomic_store(&head, number + 1);
    if (pending == LOOKS / 2) /* nothing else may come for a while: let Python have a look */
        queue_wake();
    return true;
}

bool looks_take(struct look *look)
{
    if (atomic_load(&head) == atomic_load(&tail))
        return false;
    *look = looks[atomic_load(&tail) % LOOKS];
    atomic_fetch_add(&tail, 1);
    return true;
}

unsigned looks_pending(void) { return atomic_load(&head) - atomic_load(&tail); }

unsigned news_pending(void) { return looks_pending() + changes_pending(); }

/* ---- names whose absence somebody may look at: a set of hashes, which may say yes for nothing ---- */

static uint64_t *misses;
static unsigned miss_count;
static bool all_misses;

static uint64_t miss_hash(uint64_t parent, const char *text, size_t length)
{
    uint64_t h = parent * 0x9e3779b97f4a7c15ULL + 1;
    for (size_t i = 0; i < length; i++)
        h = (h ^ (unsigned char)text[i]) * 0x100000001b3ULL;
    h ^= h >> 29;
    return h ? h : 1;
}

void miss_watch(uint64_t parent, const char *text, size_t length)
{
    if (all_misses)
        return;
    if (misses == NULL)
        misses = calloc(2 * MAX_MISSES, sizeof *misses);
    if (misses == NULL || miss_count >= MAX_MISSES) {
        all_misses = true;
        return;
    }
    uint64_t h = miss_hash(parent, text, length);
    unsigned at = h % (2 * MAX_MISSES);
    while (misses[at] && misses[at] != h)
        at = (at + 1) % (2 * MAX_MISSES);
    if (misses[at] == 0)
        misses[at] = h, miss_count++;
}

bool miss_watched(uint64_t parent, const char *text, size_t length)
{
    if (all_misses)
        return true;
    if (misses == NULL)
        return false;
    uint64_t h = miss_hash(parent, text, length);
    unsigned at = h % (2 * MAX_MISSES);
    while (misses[at] && misses[at] != h)
        at = (at + 1) % (2 * MAX_MISSES);
    return misses[at] == h;
}
