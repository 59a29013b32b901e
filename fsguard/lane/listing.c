/* Open directories. A listing is a snapshot, taken when reading begins at the start: no entry comes
 * twice or is passed over because others come and go meanwhile, and positions (telldir) stay good.
 * What has vanished since is left out.
 */
#include "lane.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct entry {
    uint64_t ino;
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
};

struct dirent64_raw {
    uint64_t ino;
    int64_t off;
    unsigned short reclen;
    unsigned char type;
    char name[];
};

void listing_free(struct listing *l)
{
    if (l == NULL)
        return;
    free(l->entries);
    free(l->text);
    free(l);
}

static bool append(struct listing *l, uint64_t ino, uint8_t type, const char *text, size_t length)
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
    e->ino = ino, e->type = type, e->length = (uint16_t)length, e->at = (uint32_t)l->used;
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
        if (!append(l, shown_ino(st.st_dev, st.st_ino), DT_DIR, ".", 1)
            || !append(l, shown_ino(above.st_dev, above.st_ino), DT_DIR, "..", 2))
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
                && !append(l, d->ino, d->type, d->name, strlen(d->name)))
                error = -ENOMEM;
        }
    }
    if (!error && raw == NULL)
        error = -ENOMEM;
    free(raw);
    if (fd >= 0)
        close(fd);
    if (error) {
        listing_free(l);
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
    for (int tries = 0; tries < 8; tries++) {
        lock();
        uint64_t mutations = parent->mutations;
        unlock();
        if (fstatat(dir, text, &st, AT_SYMLINK_NOFOLLOW) < 0)
            return 0;
        lock();
        if (parent->mutations == mutations) {
            struct node *node = table_enter(parent, text, length, &st, false, 0);
            if (node && tries == 0 && watch_wanted(node)) {
                node_hold(node);
                unlock();
                watch_node(node);
                lock();
                node_release(node);
                unlock();
                continue;
            }
            if (node) {
                node->lookups++;
                entry_fill(out, parent, node, &st);
            }
            unlock();
            return node != NULL;
        }
        unlock();
    }
    return 0;
}

ssize_t listing_read(struct handle *handle, uint64_t offset, bool plus, char *out, size_t size)
{
    struct node *node = handle->node;
    if (offset == 0 || handle->listing == NULL) {
        struct listing *fresh;
        int error = take(node, &fresh);
        if (error)
            return error;
        listing_free(handle->listing);
        handle->listing = fresh;
    }
    struct listing *l = handle->listing;
    struct stat st;
    int dir = dir_acquire(node);
    if (dir < 0)
        return dir;
    bool aged = fstat(dir, &st) < 0 || st.st_mtim.tv_sec != l->mtime.tv_sec
                || st.st_mtim.tv_nsec != l->mtime.tv_nsec || node->removals != l->removals;
    size_t used = 0, head = plus ? sizeof(struct wire_entry) : 0;
    for (uint64_t i = offset; i < l->count; i++) {
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
        put_dirent(out + used + head, ino, i + 1, text, e->length, e->type);
        used += need;
    }
    dir_release(node);
    return (ssize_t)used;
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
