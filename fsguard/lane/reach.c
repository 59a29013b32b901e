/* From a node to its inode on the backing filesystem.
 *
 * Symlink-safe because every access is an *at() call with one component, or goes through a
 * descriptor; directories are opened with O_NOFOLLOW and compared with the inode that the node
 * stands for. -ESTALE when no name leads there any more (something changed behind the mount): the
 * kernel then looks the path up afresh.
 */
#include "lane.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { CACHED_DIRECTORIES = 512, TRIES = 2000 };

/* A name is changed on disk first and in the table then. What is found out in between says nothing
 * about either: wait a moment, and look again. */
static bool unsure(uint64_t epoch)
{
    return atomic_load(&lane.names_changing) > 0 || atomic_load(&lane.names_epoch) != epoch;
}

static void pause_briefly(void)
{
    struct timespec t = {.tv_nsec = 50000};
    nanosleep(&t, NULL);
}

/* Cached directory descriptors, by last use. */
static struct node *newest, *oldest;
static unsigned cached;

static void list_remove(struct node *n)
{
    if (n->newer)
        n->newer->older = n->older;
    else
        newest = n->older;
    if (n->older)
        n->older->newer = n->newer;
    else
        oldest = n->newer;
    n->newer = n->older = NULL;
    cached--;
}

static void list_insert(struct node *n)
{
    n->older = newest, n->newer = NULL;
    if (newest)
        newest->newer = n;
    newest = n;
    if (oldest == NULL)
        oldest = n;
    cached++;
}

void dir_forget(struct node *node)
{
    if (node->fd < 0)
        return;
    if (node->kind == S_IFDIR && !node->pinned)
        list_remove(node);
    int fd = node->fd;
    node->pinned = false; /* first: the next process takes such a descriptor for open */
    atomic_signal_fence(memory_order_seq_cst);
    node->fd = -1;
    if (!lane.taking_over)
        close(fd);
}

static void evict(void)
{
    struct node *n = oldest;
    while (cached > CACHED_DIRECTORIES && n) {
        struct node *next = n->newer;
        if (n->fd_users == 0)
            dir_forget(n);
        n = next;
    }
}

static bool gone(int error)
{
    /* ENXIO: a socket or FIFO is there now; EISDIR: a directory. */
    return error == ENOENT || error == ENOTDIR || error == ELOOP || error == ENXIO || error == EISDIR;
}

struct step {
    struct step *above;
    uint64_t id, parent, dev, ino;
    size_t length;
    char text[];
};

static void steps_free(struct step *s)
{
    while (s) {
        struct step *above = s->above;
        free(s);
        s = above;
    }
}

/* A name turned out to lead elsewhere. */
static void lost(uint64_t id, uint64_t parent, const char *text, size_t length)
{
    lock();
    struct node *node = table_get(id), *above = table_get(parent);
    if (node && above) {
        node_hold(node);
        name_remove(node, above, text, length);
        node_release(node);
    }
    unlock();
}

static int dir_try(struct node *node, uint64_t epoch)
{
    struct step *steps = NULL;
    struct node *base = node;
    int error = 0;
    lock();
    /* Upwards to the next one that has a descriptor, noting the names on the way. */
    while (base->id != ROOT_ID && base->fd < 0) {
        struct name *name = base->names;
        struct step *s = name ? malloc(sizeof *s + name->length + 1) : NULL;
        if (s == NULL) {
            error = name ? -ENOMEM : -ESTALE;
            break;
        }
        s->id = base->id, s->parent = name->parent->id, s->dev = base->dev, s->ino = base->ino;
        s->length = name->length;
        memcpy(s->text, name->text, name->length + 1);
        s->above = steps;
        steps = s;
        base = name->parent;
    }
    if (error) {
        unlock();
        steps_free(steps);
        return error;
    }
    if (base->id != ROOT_ID) {
        base->fd_users++, node_hold(base);
        if (!base->pinned && base != newest) {
            list_remove(base);
            list_insert(base);
        }
    }
    unlock();
    if (base == node)
        return node->fd;
    int fd = base->id == ROOT_ID ? lane.root_fd : base->fd;
    bool ours = false;
    for (struct step *s = steps; s; s = s->above) {
        struct stat st;
        int below = openat(fd, s->text, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (below < 0)
            error = -errno;
        if (ours)
            close(fd);
        ours = false;
        if (below >= 0 && (fstat(below, &st) < 0 || st.st_ino != s->ino || st.st_dev != s->dev)) {
            close(below);
            error = -ESTALE;
        }
        if (error) {
            if (error == -ESTALE || gone(-error)) {
                if (!unsure(epoch))
                    lost(s->id, s->parent, s->text, s->length);
                error = -ESTALE;
            }
            break;
        }
        fd = below, ours = true;
    }
    steps_free(steps);
    lock();
    if (base->id != ROOT_ID) {
        base->fd_users--;
        node_release(base);
    }
    if (!error) {
        if (node->fd >= 0) { /* another thread was faster */
            close(fd);
        } else {
            node->fd = fd;
            list_insert(node);
        }
        node->fd_users++, node_hold(node);
        evict();
        fd = node->fd;
    }
    unlock();
    return error ? error : fd;
}

int dir_acquire(struct node *node)
{
    if (node->kind != S_IFDIR)
        return -ENOTDIR;
    if (node->id == ROOT_ID)
        return lane.root_fd;
    for (int tries = 0;; tries++) {
        uint64_t epoch = atomic_load(&lane.names_epoch);
        int fd = dir_try(node, epoch);
        if (fd != -ESTALE || !unsure(epoch) || tries == TRIES)
            return fd;
        pause_briefly();
    }
}

void dir_release(struct node *node)
{
    if (node->id == ROOT_ID)
        return;
    lock();
    node->fd_users--;
    node_release(node);
    unlock();
}

/* One name of a node (number `which`), its directory held. */
struct where {
    struct node *parent;
    uint64_t mutations;
    size_t length;
    char text[PATH_MAX]; /* longer than NAME_MAX on filesystems that count in other units */
};

static bool where_is(struct node *node, unsigned which, struct where *w)
{
    lock();
    struct name *name = node->names;
    while (name && which--)
        name = name->next;
    if (name && name->length < sizeof w->text) {
        w->parent = name->parent;
        node_hold(w->parent);
        w->mutations = w->parent->mutations;
        w->length = name->length;
        memcpy(w->text, name->text, name->length + 1);
    } else {
        name = NULL;
    }
    unlock();
    return name != NULL;
}

static void where_done(struct where *w)
{
    lock();
    node_release(w->parent);
    unlock();
}

/* After a failure: a name that Python has moved meanwhile is no lie, try again. */
static bool moved(struct node *node, struct where *w)
{
    lock();
    bool changed = w->parent->mutations != w->mutations;
    if (!changed)
        name_remove(node, w->parent, w->text, w->length);
    unlock();
    return changed;
}

/* Call `get` for the names in turn until one leads to the node. */
static int by_name(struct node *node, int (*get)(int dir, const char *text, struct node *node, void *with),
                   void *with)
{
    struct where w;
    for (int tries = 0; tries < TRIES; tries++) {
        uint64_t epoch = atomic_load(&lane.names_epoch);
        if (!where_is(node, 0, &w)) {
            if (!unsure(epoch))
                return -ESTALE;
            pause_briefly();
            continue;
        }
        int result = dir_acquire(w.parent);
        if (result < 0) { /* that says nothing about this name */
            where_done(&w);
            return result;
        }
        result = get(result, w.text, node, with);
        dir_release(w.parent);
        if (result < 0 && (result == -ESTALE || gone(-result))) {
            if (unsure(epoch))
                pause_briefly();
            else
                moved(node, &w); /* if it lied, it is gone, and the next name is the first */
            where_done(&w);
            continue;
        }
        where_done(&w);
        return result;
    }
    return -ESTALE;
}

static int get_stat(int dir, const char *text, struct node *node, void *with)
{
    struct stat *st = with;
    if (fstatat(dir, text, st, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    return node_is(node, st) ? 0 : -ESTALE;
}

struct opened {
    struct node *node;
    int fd;
};

static void is_open(void *with, const struct handle *h)
{
    struct opened *opened = with;
    if (h->node == opened->node && h->fd >= 0)
        opened->fd = h->fd;
}

/* What nobody can reach by a name, since it was deleted or moved behind the mount, lives on for those who
 * have it open: from now on it has a descriptor of its own. */
static bool pin_open(struct node *node)
{
    char path[40];
    lock();
    if (!node->pinned) {
        struct opened opened = {node, node->open_fd};
        if (opened.fd < 0)
            handle_each(is_open, &opened);
        snprintf(path, sizeof path, "/proc/self/fd/%d", opened.fd);
        int fd = opened.fd < 0 ? -1 : open(path, O_PATH | O_CLOEXEC);
        if (fd >= 0)
            node->fd = fd;
        atomic_signal_fence(memory_order_seq_cst);
        node->pinned = fd >= 0;
    }
    bool pinned = node->pinned;
    unlock();
    return pinned;
}

int node_stat(struct node *node, struct stat *st)
{
    if (node->id == ROOT_ID)
        return fstat(lane.root_fd, st) < 0 ? -errno : 0;
    if (node->kind == S_IFDIR) {
        int fd = dir_acquire(node);
        if (fd < 0)
            return fd;
        int result = fstat(fd, st) < 0 ? -errno : 0;
        dir_release(node);
        return result;
    }
    lock();
    if (node->pinned) {
        int result = fstat(node->fd, st) < 0 ? -errno : 0;
        unlock();
        return result;
    }
    unlock();
    int result = by_name(node, get_stat, st);
    return result == -ESTALE && pin_open(node) ? node_stat(node, st) : result;
}

static int get_open(int dir, const char *text, struct node *node, void *with)
{
    struct stat st;
    /* O_NONBLOCK: should a FIFO have taken the file's place, nobody must wait for its other end. */
    int flags = *(int *)with;
    flags |= flags & O_PATH ? O_NOFOLLOW | O_CLOEXEC : O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
    int fd = openat(dir, text, flags);
    if (fd < 0)
        return -errno;
    if (fstat(fd, &st) == 0 && node_is(node, &st))
        return fd;
    close(fd);
    return -ESTALE;
}

int node_open(struct node *node, int flags)
{
    if (node->kind == S_IFDIR) {
        int dir = dir_acquire(node);
        if (dir < 0)
            return dir;
        int fd = openat(dir, ".", flags | O_DIRECTORY | O_CLOEXEC);
        fd = fd < 0 ? -errno : fd;
        dir_release(node);
        return fd;
    }
    lock();
    if (node->pinned) {
        char path[40];
        snprintf(path, sizeof path, "/proc/self/fd/%d", node->fd);
        /* Blocks under the lock at worst as long as an open of a deleted file. */
        int fd = open(path, flags | O_CLOEXEC | O_NONBLOCK);
        fd = fd < 0 ? -errno : fd;
        unlock();
        return fd;
    }
    unlock();
    int result = by_name(node, get_open, &flags);
    return result == -ESTALE && pin_open(node) ? node_open(node, flags) : result;
}

int node_pin(struct node *node)
{
    if (node->pinned || node->id == ROOT_ID)
        return 0;
    if (node->kind == S_IFDIR) {
        int fd = dir_acquire(node);
        if (fd < 0)
            return fd;
        lock();
        if (!node->pinned) {
            list_remove(node);
            node->pinned = true;
        }
        unlock();
        dir_release(node);
        return 0;
    }
    int fd = node_open(node, O_PATH);
    if (fd < 0)
        return fd;
    lock();
    if (node->pinned) {
        close(fd);
    } else {
        node->fd = fd;
        atomic_signal_fence(memory_order_seq_cst);
        node->pinned = true;
    }
    unlock();
    return 0;
}

void node_unpin(struct node *node)
{
    if (!node->pinned)
        return;
    node->pinned = false;
    atomic_signal_fence(memory_order_seq_cst);
    if (node->kind == S_IFDIR) {
        list_insert(node);
        evict();
        return;
    }
    close(node->fd);
    node->fd = -1;
}

void names_check(uint64_t id, uint64_t links, uint64_t keep_parent, const char *keep, size_t length)
{
    for (unsigned which = 0;; which++) {
        struct where w;
        struct stat st;
        lock();
        struct node *node = table_get(id);
        unsigned count = 0;
        for (struct name *n = node ? node->names : NULL; n; n = n->next)
            count++;
        if (node)
            node_hold(node);
        unlock();
        if (node == NULL)
            return;
        bool more = count > links && where_is(node, which, &w);
        if (more) {
            if (w.parent->id != keep_parent || w.length != length || memcmp(w.text, keep, length) != 0) {
                int dir = dir_acquire(w.parent);
                bool leads = dir >= 0 && fstatat(dir, w.text, &st, AT_SYMLINK_NOFOLLOW) == 0 && node_is(node, &st);
                if (dir >= 0)
                    dir_release(w.parent);
                if (!leads && !moved(node, &w))
                    which--; /* wraps at 0, and the loop counts up again */
            }
            where_done(&w);
        }
        lock();
        node_release(node);
        unlock();
        if (!more)
            return;
    }
}
