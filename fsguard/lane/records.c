/* What was answered here and Python has to know of, in the order in which it happened: it takes these
 * records before it decides anything, so each counts for the version that there is when it is taken.
 */
#include "lane.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static unsigned reserved;

static unsigned in_use(void) { return atomic_load(&shared->head) - atomic_load(&shared->told); }

unsigned records_pending(void) { return atomic_load(&shared->head) - atomic_load(&shared->tail); }

unsigned news_pending(void) { return records_pending() + changes_pending(); }

bool record_is_pending(unsigned number)
{
    return number - atomic_load(&shared->tail) < records_pending();
}

bool record_reserve(void)
{
    if (in_use() + reserved >= RECORDS)
        return false;
    reserved++;
    return true;
}

void record_cancel(void) { reserved--; }

static void push(struct record record)
{
    struct timespec t;
    unsigned number = atomic_load(&shared->head);
    if (record.time == 0) {
        clock_gettime(CLOCK_REALTIME, &t);
        record.time = t.tv_sec * 1000000000LL + t.tv_nsec;
    }
    if (record.node) {
        node_hold(record.node);
        record.node->noted++;
        record.node_id = record.node->id;
    }
    record.path_at = slot_distance(record.path);
    shared->records[number % RECORDS] = record;
    atomic_store(&shared->head, number + 1);
    if (records_pending() == RECORDS / 2) /* nothing else may come for a while: let Python have a look */
        queue_wake();
}

void record_push(struct record record)
{
    reserved--;
    push(record);
}

/* One that is still to be taken need not be told twice. */
bool look_add(struct node *node, struct who who)
{
    if (node->own != who.group)
        node->own = 0;
    if (node->look_actor == who.actor && record_is_pending(node->look_number))
        return true;
    if (in_use() + reserved >= RECORDS)
        return false;
    node->look_actor = who.actor, node->look_number = atomic_load(&shared->head);
    push((struct record){.kind = LOOKED, .actor = who.actor, .node = node});
    return true;
}

bool record_take(struct record *record, unsigned *number)
{
    if (records_pending() == 0)
        return false;
    *number = atomic_load(&shared->tail);
    *record = shared->records[*number % RECORDS];
    atomic_fetch_add(&shared->tail, 1);
    return true;
}

void records_told(void)
{
    unsigned end = atomic_load(&shared->tail);
    for (unsigned at = atomic_load(&shared->told); at != end; at++) {
        struct record r = shared->records[at % RECORDS];
        atomic_store(&shared->told, at + 1); /* first: nobody shall find what is given back */
        if (r.node) {
            r.node->noted--;
            node_release(r.node);
        }
        slot_free(r.path);
    }
}

struct spot {
    struct record *record;
    const char *text;
    size_t length;
};

static void join(void *with, const char *path, size_t size)
{
    struct spot *spot = with;
    struct record *r = spot->record;
    if (r->path)
        return; /* a directory has one name */
    size_t above = size ? size + 1 : 0;
    struct path *p = slot_take(sizeof *p + above + spot->length);
    if (p == NULL)
        return;
    p->length = (uint32_t)(above + spot->length);
    memcpy(p->text, path, size);
    if (size)
        p->text[size] = '/';
    memcpy(p->text + above, spot->text, spot->length);
    slot_live(p, PATH_SLOT);
    r->path = p;
}

void records_link(void)
{
    unsigned end = atomic_load(&shared->head), to = atomic_load(&shared->told);
    atomic_store(&shared->tail, to);
    reserved = 0;
    for (unsigned from = to; from != end; from++) {
        struct record r = shared->records[from % RECORDS];
        r.node = r.node_id ? table_get(r.node_id) : NULL;
        r.path = slot_at(r.path_at, PATH_SLOT);
        if (r.path && r.path->claimed)
            r.path = NULL;
        if (r.path)
            r.path->claimed = true;
        if (r.node == NULL && (r.kind != REMOVED || r.path == NULL))
            r = (struct record){.kind = LOOKED, .time = r.time}; /* of nobody, about nothing: it keeps its number */
        if (r.node)
            node_hold(r.node), r.node->noted++;
        shared->records[from % RECORDS] = r;
    }
}

bool record_path(struct record *record, struct node *parent, const char *text, size_t length)
{
    struct spot spot = {record, text, length};
    node_paths(parent, join, &spot);
    return record->path != NULL;
}

/* ---- names whose absence somebody may look at: a set of hashes, which may say yes for nothing ---- */

static uint64_t *misses;
static unsigned miss_count;
static bool all_misses, unknown_misses;

static uint64_t miss_hash(uint64_t parent, const char *text, size_t length)
{
    uint64_t h = parent * 0x9e3779b97f4a7c15ULL + 1;
    for (size_t i = 0; i < length; i++)
        h = (h ^ (unsigned char)text[i]) * 0x100000001b3ULL;
    h ^= h >> 29;
    return h ? h : 1;
}

const uint64_t *miss_hashes(size_t *room)
{
    *room = misses ? 2 * MAX_MISSES : 0;
    return all_misses ? NULL : misses;
}

void miss_restore(uint64_t h)
{
    if (misses == NULL)
        misses = calloc(2 * MAX_MISSES, sizeof *misses);
    if (h == 0 || misses == NULL || miss_count >= MAX_MISSES)
        all_misses = true;
    if (all_misses)
        return;
    unsigned at = h % (2 * MAX_MISSES);
    while (misses[at] && misses[at] != h)
        at = (at + 1) % (2 * MAX_MISSES);
    if (misses[at] == 0)
        misses[at] = h, miss_count++;
}

void miss_watch(uint64_t parent, const char *text, size_t length)
{
    miss_restore(miss_hash(parent, text, length));
}

void misses_known(bool known) { unknown_misses = !known; }

bool miss_watched(uint64_t parent, const char *text, size_t length)
{
    if (all_misses || unknown_misses)
        return true;
    if (misses == NULL)
        return false;
    uint64_t h = miss_hash(parent, text, length);
    unsigned at = h % (2 * MAX_MISSES);
    while (misses[at] && misses[at] != h)
        at = (at + 1) % (2 * MAX_MISSES);
    return misses[at] == h;
}
