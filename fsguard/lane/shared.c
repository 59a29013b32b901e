/* The memory that outlives this process: nodes, names, handles, records and requests under way.
 *
 * SIGKILL may come between any two instructions of any thread, and the next process goes on from here
 * (takeover.c). So what lies here is never copied out: it is whole at every moment.
 *
 *   head    counters, the ring of records, the journal; and which class each chunk is of
 *   chunks  of slots of one size; a slot counts when its first word says what it is, which is
 *           written last when it is made, and cleared first when it is given up
 *
 * Pointers mean something to one process only. What has to be found again says so by node ids and
 * by distances from the start. Free slots are on a list of this process; the next finds them by
 * looking at all.
 */
#include "lane.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const uint32_t sizes[SLOT_CLASSES] = {96, 128, 192, 256, 352, 1152, 4352, 65536};
enum { CHUNK = 1 << 18, PAGE = 4096, LEAST_CHUNKS = 256 };
static const char magic[8] = "fsgslab1";

struct shared *shared;
bool lane_forked;

static char *chunks;       /* the first one */
static uint64_t room;      /* chunks that fit into the address space that was set aside */
static int memory = -1;    /* -1: this process's own */

struct vacant {
    _Atomic uint32_t live;
    struct vacant *next;
};
static struct vacant *vacant[SLOT_CLASSES];

static size_t head_size(void) { return (sizeof(struct shared) + PAGE - 1) & ~(size_t)(PAGE - 1); }

/* Another build's structures may lie differently. */
static uint32_t layout(void)
{
    const size_t all[] = {sizeof(struct shared), sizeof(struct node), sizeof(struct name), sizeof(struct handle),
                          sizeof(struct noted), sizeof(struct grant), sizeof(struct watch), sizeof(struct record),
                          sizeof(struct started), CHUNK, sizeof(struct path)};
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        h = (h ^ (uint32_t)all[i]) * 16777619u;
    return h;
}

/* Address space is set aside for all that may come: what there is never moves. */
static void *set_aside(int fd, uint64_t *fits)
{
    for (*fits = MAX_CHUNKS; *fits >= LEAST_CHUNKS; *fits /= 2) {
        size_t size = head_size() + *fits * CHUNK;
        void *at = fd >= 0 ? mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0)
                           : mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED)
            continue;
        madvise(at, size, MADV_DONTDUMP);
        /* A child of ours that touched the table would change ours. */
        if (fd >= 0)
            madvise(at, size, MADV_DONTFORK);
        return at;
    }
    return NULL;
}

/* Memory, and not only the promise of it: running out must be an error here, no SIGBUS later. */
static bool back(size_t offset, size_t size)
{
    char *at = (char *)shared + offset;
    int result;
    if (memory < 0)
        return mprotect(at, size, PROT_READ | PROT_WRITE) == 0;
    do
        result = fallocate(memory, 0, (off_t)offset, (off_t)size);
    while (result < 0 && errno == EINTR);
#ifdef MADV_POPULATE_WRITE
    if (result == 0)
        madvise(at, size, MADV_POPULATE_WRITE); /* all at once is cheaper than one by one */
#endif
    return result == 0;
}

static void in_child(void) { lane_forked = true; }

int shared_start(int fd)
{
    static bool registered;
    struct stat st;
    if (shared)
        return fd < 0 ? 0 : EALREADY;
    if (fd >= 0 && (fstat(fd, &st) < 0 || st.st_size != 0))
        return st.st_size ? EEXIST : errno;
    if (!registered && pthread_atfork(NULL, NULL, in_child) != 0)
        return ENOMEM;
    registered = true;
    shared = set_aside(fd, &room);
    if (shared == NULL)
        return ENOMEM;
    memory = fd;
    if (!back(0, head_size())) {
        int error = errno;
        munmap(shared, head_size() + room * CHUNK);
        shared = NULL, memory = -1;
        return error;
    }
    chunks = (char *)shared + head_size();
    shared->layout = layout();
    shared->next_id = ROOT_ID, shared->next_fh = LANE_FH;
    shared->own_epoch = 1;
    shared->watch_fd = -1;
    shared->pid = getpid();
    atomic_thread_fence(memory_order_release);
    memcpy(shared->magic, magic, sizeof magic);
    return 0;
}

int shared_descriptor(void) { return memory; }

/* ---- slots ---- */

static bool add_chunk(unsigned class)
{
    uint32_t number = atomic_load(&shared->chunks);
    if (number >= room || !back(head_size() + (size_t)number * CHUNK, CHUNK))
        return false;
    shared->class_of[number] = (uint8_t)(class + 1);
    atomic_store_explicit(&shared->chunks, number + 1, memory_order_release);
    char *at = chunks + (size_t)number * CHUNK;
    for (uint32_t i = CHUNK / sizes[class]; i-- > 0;) {
        struct vacant *v = (struct vacant *)(void *)(at + (size_t)i * sizes[class]);
        v->next = vacant[class];
        vacant[class] = v;
    }
    return true;
}

void *slot_take(size_t size)
{
    unsigned class = 0;
    while (class < SLOT_CLASSES && sizes[class] < size)
        class++;
    if (class == SLOT_CLASSES || (vacant[class] == NULL && !add_chunk(class)))
        return NULL;
    struct vacant *v = vacant[class];
    vacant[class] = v->next;
    memset(v, 0, size);
    return v;
}

void slot_live(void *slot, enum slot_kind kind)
{
    atomic_store_explicit((_Atomic uint32_t *)slot, kind, memory_order_release);
}

static unsigned class_at(const void *slot)
{
    return shared->class_of[(size_t)((const char *)slot - chunks) / CHUNK] - 1u;
}

void slot_free(void *slot)
{
    if (slot == NULL)
        return;
    struct vacant *v = slot;
    unsigned class = class_at(slot);
    atomic_store_explicit(&v->live, 0, memory_order_release);
    atomic_signal_fence(memory_order_seq_cst);
    v->next = vacant[class];
    vacant[class] = v;
}

size_t slot_room(const void *slot) { return sizes[class_at(slot)]; }

uint64_t slot_distance(const void *slot) { return slot ? (uint64_t)((const char *)slot - (const char *)shared) : 0; }

/* NULL: nothing of that kind is there. */
void *slot_at(uint64_t distance, enum slot_kind kind)
{
    size_t first = head_size();
    if (distance < first || distance - first >= (uint64_t)atomic_load(&shared->chunks) * CHUNK)
        return NULL;
    char *slot = (char *)shared + distance;
    size_t inside = (size_t)(distance - first) % CHUNK;
    uint32_t size = sizes[class_at(slot)];
    if (inside % size != 0 || inside / size >= CHUNK / size)
        return NULL;
    return atomic_load((_Atomic uint32_t *)(void *)slot) == kind ? slot : NULL;
}

bool slots_each(enum slot_kind kind, bool (*each)(void *, void *), void *with)
{
    uint32_t count = atomic_load(&shared->chunks);
    for (uint32_t number = 0; number < count; number++) {
        uint32_t size = sizes[shared->class_of[number] - 1u];
        char *at = chunks + (size_t)number * CHUNK;
        for (uint32_t i = 0; i < CHUNK / size; i++, at += size)
            if (atomic_load_explicit((_Atomic uint32_t *)(void *)at, memory_order_relaxed) == kind && !each(with, at))
                return false;
    }
    return true;
}

/* ---- another process's ---- */

static bool plausible(const struct shared *s, size_t size, uint64_t fits)
{
    uint32_t count = atomic_load(&s->chunks);
    if (memcmp(s->magic, magic, sizeof magic) != 0 || s->layout != layout() || count > MAX_CHUNKS || count > fits
        || size < head_size() + (size_t)count * CHUNK)
        return false;
    for (uint32_t i = 0; i < count; i++)
        if (s->class_of[i] < 1 || s->class_of[i] > SLOT_CLASSES)
            return false;
    return true;
}

static struct {
    struct shared *shared;
    char *chunks;
    uint64_t room;
    int memory;
    struct vacant *vacant[SLOT_CLASSES];
} before;

static void remember(void)
{
    before.shared = shared, before.chunks = chunks, before.room = room, before.memory = memory;
    memcpy(before.vacant, vacant, sizeof vacant);
}

int shared_adopt(int fd)
{
    struct stat st;
    uint64_t fits;
    if (fstat(fd, &st) < 0)
        return errno;
    if ((size_t)st.st_size < head_size())
        return EINVAL;
    struct shared *there = set_aside(fd, &fits);
    if (there == NULL)
        return ENOMEM;
    if (!plausible(there, (size_t)st.st_size, fits)) {
        munmap(there, head_size() + fits * CHUNK);
        return EINVAL;
    }
    remember();
    shared = there, chunks = (char *)there + head_size(), room = fits, memory = fd;
    return 0;
}

void shared_decline(void)
{
    munmap(shared, head_size() + room * CHUNK);
    shared = before.shared, chunks = before.chunks, room = before.room, memory = before.memory;
    memcpy(vacant, before.vacant, sizeof vacant);
}

void shared_accept(void)
{
    if (before.shared)
        munmap(before.shared, head_size() + before.room * CHUNK);
    memset(vacant, 0, sizeof vacant);
    for (uint32_t number = atomic_load(&shared->chunks); number-- > 0;) {
        unsigned class = shared->class_of[number] - 1u;
        char *at = chunks + (size_t)number * CHUNK;
        for (uint32_t i = CHUNK / sizes[class]; i-- > 0;) {
            struct vacant *v = (struct vacant *)(void *)(at + (size_t)i * sizes[class]);
            if (atomic_load_explicit(&v->live, memory_order_relaxed) != 0)
                continue;
            v->next = vacant[class];
            vacant[class] = v;
        }
    }
}

/* Whether every slot that counts is of a kind there is, and is as its kind has to be. */
bool shared_check(bool (*whole)(enum slot_kind kind, const void *slot, size_t size))
{
    uint32_t count = atomic_load(&shared->chunks);
    for (uint32_t number = 0; number < count; number++) {
        uint32_t size = sizes[shared->class_of[number] - 1u];
        const char *at = chunks + (size_t)number * CHUNK;
        for (uint32_t i = 0; i < CHUNK / size; i++, at += size) {
            uint32_t live = *(const uint32_t *)(const void *)at;
            if (live != 0 && !whole((enum slot_kind)live, at, size))
                return false;
        }
    }
    return true;
}
