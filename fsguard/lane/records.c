/* What was answered here and Python has to know of, in the order in which it happened: it takes these
 * records before it decides anything, so each counts for the version that there is when it is taken.
 */
#include "lane.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct record records[RECORDS];
static atomic_uint head, tail; /* head: next to write; both only moved with the table's lock held */
static unsigned reserved;

unsigned records_pending(void) { return atomic_load(&head) - atomic_load(&tail); }

unsigned news_pending(void) { return records_pending() + changes_pending(); }

bool record_is_pending(unsigned number)
{
    return number - atomic_load(&tail) < atomic_load(&head) - atomic_load(&tail);
}

bool record_reserve(void)
{
    if (records_pending() + reserved >= RECORDS)
        return false;
    reserved++;
    return true;
}

void record_cancel(void) { reserved--; }

static void push(struct record record)
{
    struct timespec t;
    unsigned number = atomic_load(&head);
    if (record.time == 0) {
        clock_gettime(CLOCK_REALTIME, &t);
        record.time = t.tv_sec * 1000000000LL + t.tv_nsec;
    }
    if (record.node) {
        node_hold(record.node);
        record.node->noted++;
    }
    records[number % RECORDS] = record;
    atomic_store(&head, number + 1);
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
    if (records_pending() + reserved >= RECORDS)
        return false;
    node->look_actor = who.actor, node->look_number = atomic_load(&head);
    push((struct record){.kind = LOOKED, .actor = who.actor, .node = node});
    return true;
}

/* The node stays held for the caller. */
bool record_take(struct record *record)
{
    if (records_pending() == 0)
        return false;
    *record = records[atomic_load(&tail) % RECORDS];
    if (record->node)
        record->node->noted--;
    atomic_fetch_add(&tail, 1);
    return true;
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
    r->path = malloc(above + spot->length);
    if (r->path == NULL)
        return;
    r->length = above + spot->length;
    memcpy(r->path, path, size);
    if (size)
        r->path[size] = '/';
    memcpy(r->path + above, spot->text, spot->length);
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
static bool all_misses;

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
