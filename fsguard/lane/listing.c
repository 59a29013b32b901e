/* Listings of directories, without open directories: READDIR says the node, and how far it has come.
 *
 * Entries come in the order of a hash of their names, which is also the position after them. So
 * whoever goes on from a position meets each entry that has been there all the time once, whatever
 * comes and goes meanwhile, and positions (telldir) stay good for ever. A listing is kept from one
 * READDIR to the next, and made anew when reading begins at the start, or when it was dropped to make
 * room. What has vanished since is left out.
 */
#include "lane.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MAX_LISTINGS = 64 };
enum { MAX_ENTRIES = 1 << 20 }; /* in all of them, unless one alone has more */

struct entry {
    uint64_t key, ino;
    uint32_t at; /* of the name in `text` */
    uint16_t length;
    uint8_t type;
};

struct listing {
    struct entry *entries;
    uint64_t count, room;
    char *text;
    size_t used, size;
    struct timespec mtime;
    uint64_t removals;
    uint32_t users;
    struct node *node; /* whose it is; NULL: nobody's any more */
    struct listing *newer, *older;
};

/* Those that are kept, by age; guarded by the table's lock, like `users` and `node`. */
static struct listing *newest, *oldest;
static uint64_t kept, kept_entries;

struct dirent64_raw {
    uint64_t ino;
    int64_t off;
    unsigned short reclen;
    unsigned char type;
    char name[];
};

static void release(struct listing *l)
{
    if (--l->users)
        return;
    free(l->entries);
    free(l->text);
    free(l);
}

void listing_drop(struct node *node)
{
    struct listing *l = node->listing;
    if (l == NULL)
        return;
    if (l->newer)
        l->newer->older = l->older;
    else
        newest = l->older;
    if (l->older)
        l->older->newer = l->newer;
    else
        oldest = l->newer;
    kept--, kept_entries -= l->count;
    node->listing = NULL, l->node = NULL;
    release(l);
}

static void keep(struct node *node, struct listing *l)
{
    listing_drop(node);
    l->node = node, node->listing = l, l->users++;
    l->older = newest, l->newer = NULL;
    if (newest)
        newest->newer = l;
    newest = l;
    if (oldest == NULL)
        oldest = l;
    kept++, kept_entries += l->count;
    while (oldest != l && (kept > MAX_LISTINGS || kept_entries > MAX_ENTRIES))
        listing_drop(oldest->node);
}

/* 1 and 2 are "." and ".."; positive as an off_t. */
static uint64_t key_of(const char *text, size_t length)
{
    uint64_t h = 0xcbf29ce484222325ULL;
    for (size_t i = 0; i < length; i++)
        h = (h ^ (unsigned char)text[i]) * 0x100000001b3ULL;
    h ^= h >> 30, h *= 0xbf58476d1ce4e5b9ULL;
    h ^= h >> 27, h *= 0x94d049bb133111ebULL;
    return (h ^ h >> 31) >> 2 | 1ULL << 61;
}

static int by_key(const void *one, const void *other)
{
    uint64_t a = ((const struct entry *)one)->key, b = ((const struct entry *)other)->key;
    return (a > b) - (a < b);
}

static bool append(struct listing *l, uint64_t key, uint64_t ino, uint8_t type, const char *text, size_t length)
{
    if (l->count == l->room) {
        uint64_t room = l->room ? l->room * 2 : 64;
        struct entry *more = realloc(l->entries, room * sizeof *more);
        if (more == NULL)
            return false;
        l->entries = more, l->room = room;
    }
    if (l->used + length + 1 > l->size) {
        size_t size = l->size ? l->size * 2 : 4096;
        char *more = realloc(l->text, size);
        if (more == NULL)
            return false;
        l->text = more, l->size = size;
    }
    struct entry *e = &l->entries[l->count++];
    e->key = key, e->ino = ino, e->type = type, e->length = (uint16_t)length, e->at = (uint32_t)l->used;
    memcpy(l->text + l->used, text, length);
    l->text[l->used + length] = 0;
    l->used += length + 1;
    return true;
}

static int take(struct node *node, struct listing **out)
{
    struct stat st, above;
    int dir = dir_acquire(node);
    if (dir < 0)
        return dir;
    watch_dir(node, dir);
    struct listing *l = calloc(1, sizeof *l);
    if (l)
        l->users = 1;
    int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int error = fd < 0 ? -errno : l == NULL ? -ENOMEM : 0;
    dir_release(node);
    if (!error && fstat(fd, &st) < 0)
        error = -errno;
    if (!error) {
        lock();
        l->mtime = st.st_mtim, l->removals = node->removals;
        above.st_dev = node->names ? node->names->parent->dev : node->dev;
        above.st_ino = node->names ? node->names->parent->ino : node->ino;
        if (!append(l, 1, shown_ino(st.st_dev, st.st_ino), DT_DIR, ".", 1)
            || !append(l, 2, shown_ino(above.st_dev, above.st_ino), DT_DIR, "..", 2))
            error = -ENOMEM;
        unlock();
    }
    char *raw = error ? NULL : malloc(1 << 16);
    while (raw && !error) {
        long got = syscall(SYS_getdents64, fd, raw, 1 << 16);
        if (got <= 0) {
            error = got < 0 ? -errno : 0;
            break;
        }
        for (long at = 0; at < got && !error;) {
            struct dirent64_raw *d = (struct dirent64_raw *)(raw + at);
            at += d->reclen;
            if (strcmp(d->name, ".") != 0 && strcmp(d->name, "..") != 0
                && !append(l, key_of(d->name, strlen(d->name)), d->ino, d->type, d->name, strlen(d->name)))
                error = -ENOMEM;
        }
    }
    if (!error && l->count > 2) {
        qsort(l->entries + 2, l->count - 2, sizeof *l->entries, by_key);
        for (uint64_t i = 3; i < l->count; i++) /* one in 2^61 */
            if (l->entries[i].key <= l->entries[i - 1].key)
                l->entries[i].key = l->entries[i - 1].key + 1;
    }
    if (!error && raw == NULL)
        error = -ENOMEM;
    free(raw);
    if (fd >= 0)
        close(fd);
    if (error) {
        if (l)
            release(l);
        return error;
    }
    *out = l;
    return 0;
}

static size_t padded(size_t length) { return (length + 7) & ~(size_t)7; }

static void put_dirent(char *at, uint64_t ino, uint64_t off, const char *text, size_t length, uint8_t type)
{
    struct wire_dirent d = {.ino = ino, .off = off, .namelen = (uint32_t)length, .type = type};
    memcpy(at, &d, sizeof d);
    memcpy(at + sizeof d, text, length);
    memset(at + sizeof d + length, 0, padded(sizeof d + length) - sizeof d - length);
}

/* The entry with its attributes, known to the kernel from now on: one more lookup. 0: it is gone. */
static int enter(struct node *parent, int dir, const char *text, size_t length, struct wire_entry *out)
{
    struct stat st;
    struct node *held = NULL;
    int entered = 0;
    for (int tries = 0; tries < 8; tries++) {
        lock();
        uint64_t mutations = parent->mutations;
        unlock();
        if (fstatat(dir, text, &st, AT_SYMLINK_NOFOLLOW) < 0)
            break;
        lock();
        bool sure = parent->mutations == mutations;
        struct node *node = sure ? table_enter(parent, text, length, &st, false, 0) : NULL;
        if (node && held == NULL && watch_wanted(node)) {
            node_hold(held = node);
            unlock();
            watch_node(node); /* before the look at it that counts */
            continue;
        }
        if (node) {
            node->lookups++;
            entry_fill(out, parent, node, &st);
            entered = 1;
        }
        unlock();
        if (sure)
            break;
    }
    if (held) {
        lock();
        node_release(held);
        unlock();
    }
    return entered;
}

/* The first entry after a position. */
static uint64_t entry_after(const struct listing *l, uint64_t offset)
{
    uint64_t low = 0, high = l->count;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (l->entries[middle].key <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static ssize_t fill(struct node *node, struct listing *l, uint64_t offset, bool plus, char *out, size_t size)
{
    struct stat st;
    int dir = dir_acquire(node);
    if (dir < 0)
        return dir;
    bool aged = fstat(dir, &st) < 0 || st.st_mtim.tv_sec != l->mtime.tv_sec
                || st.st_mtim.tv_nsec != l->mtime.tv_nsec || node->removals != l->removals;
    size_t used = 0, head = plus ? sizeof(struct wire_entry) : 0;
    for (uint64_t i = entry_after(l, offset); i < l->count; i++) {
        struct entry *e = &l->entries[i];
        const char *text = l->text + e->at;
        size_t need = head + padded(sizeof(struct wire_dirent) + e->length);
        if (used + need > size)
            break;
        uint64_t ino = i < 2 ? e->ino : shown_ino(node->dev, e->ino);
        if (plus) {
            struct wire_entry entry = {0}; /* node id 0: name and type only */
            if (i >= 2 && lane.entry_ns > 0) {
                if (!enter(node, dir, text, e->length, &entry))
                    continue;
                ino = entry.attr.ino;
            } else if (i >= 2 && aged && fstatat(dir, text, &st, AT_SYMLINK_NOFOLLOW) < 0) {
                continue;
            }
            memcpy(out + used, &entry, sizeof entry);
        } else if (i >= 2 && aged && fstatat(dir, text, &st, AT_SYMLINK_NOFOLLOW) < 0) {
            continue;
        }
        put_dirent(out + used + head, ino, e->key, text, e->length, e->type);
        used += need;
    }
    dir_release(node);
    return (ssize_t)used;
}

ssize_t listing_read(struct node *node, uint64_t offset, bool plus, char *out, size_t size)
{
    struct listing *l = NULL;
    lock();
    if (offset && (l = node->listing) != NULL)
        l->users++;
    unlock();
    if (l == NULL) {
        int error = take(node, &l);
        if (error)
            return error;
        lock();
        keep(node, l);
        unlock();
    }
    ssize_t used = fill(node, l, offset, plus, out, size);
    lock();
    if (used <= 0 && node->listing == l)
        listing_drop(node); /* that was the end */
    release(l);
    unlock();
    return used;
}

void listing_undo(const char *out, size_t size)
{
    for (size_t at = 0; at + sizeof(struct wire_entry) + sizeof(struct wire_dirent) <= size;) {
        struct wire_entry entry;
        struct wire_dirent d;
        memcpy(&entry, out + at, sizeof entry);
        memcpy(&d, out + at + sizeof entry, sizeof d);
        at += sizeof entry + padded(sizeof d + d.namelen);
        if (entry.nodeid == 0)
            continue;
        lock();
        struct node *node = table_get(entry.nodeid);
        if (node)
            node_forget(node, 1);
        unlock();
    }
}
