/* The threads of the lane: each takes one request after the other from /dev/fuse, and answers it or
 * hands it to Python. Which are answered here is the table `here` at the end.
 */
#include "lane.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

struct lane lane = {.lock = PTHREAD_MUTEX_INITIALIZER, .device = -1, .root_fd = -1};

int64_t monotonic_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* ---- who takes the next request: see `serve` ---- */

static pthread_mutex_t leading = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local bool leads;
enum { SMALL = 131072 }; /* more bytes than that are another thread's chance */

/* What comes now may take long. */
static void step_down(void)
{
    if (leads)
        pthread_mutex_unlock(&leading);
    leads = false;
}

/* ---- replies ---- */

bool reply(const struct wire_in *in, const void *data, size_t size)
{
    struct wire_out out = {.len = (uint32_t)(sizeof out + size), .unique = in->unique};
    struct iovec parts[2] = {{&out, sizeof out}, {(void *)data, size}};
    ssize_t sent;
    do
        sent = writev(lane.device, parts, size ? 2 : 1);
    while (sent < 0 && errno == EINTR);
    /* Otherwise the caller is gone (ENOENT) or the mount is (ENODEV). */
    return sent >= 0;
}

void reply_error(const struct wire_in *in, int error)
{
    struct wire_out out = {.len = sizeof out, .error = error, .unique = in->unique};
    while (write(lane.device, &out, sizeof out) < 0 && errno == EINTR)
        ;
}

void attr_fill(struct wire_attr *a, const struct stat *st)
{
    memset(a, 0, sizeof *a);
    a->ino = (uint64_t)st->st_dev == lane.root_dev ? st->st_ino : shown_ino(st->st_dev, st->st_ino);
    a->size = (uint64_t)st->st_size, a->blocks = (uint64_t)st->st_blocks;
    a->atime = (uint64_t)st->st_atim.tv_sec, a->atimensec = (uint32_t)st->st_atim.tv_nsec;
    a->mtime = (uint64_t)st->st_mtim.tv_sec, a->mtimensec = (uint32_t)st->st_mtim.tv_nsec;
    a->ctime = (uint64_t)st->st_ctim.tv_sec, a->ctimensec = (uint32_t)st->st_ctim.tv_nsec;
    a->mode = st->st_mode, a->nlink = (uint32_t)st->st_nlink;
    a->uid = st->st_uid, a->gid = st->st_gid;
    /* The kernel's 32-bit form of a device number. */
    unsigned low = minor(st->st_rdev);
    a->rdev = (low & 0xff) | major(st->st_rdev) << 8 | (low & ~0xffu) << 12;
    a->blksize = (uint32_t)st->st_blksize;
}

static uint64_t watched_life(uint64_t otherwise)
{
    return lane.watched_ns > otherwise ? lane.watched_ns : otherwise;
}

uint64_t entry_life(const struct node *parent)
{
    return atomic_load(&parent->watched) == WATCHED ? watched_life(lane.entry_ns) : lane.entry_ns;
}

uint64_t attr_life(const struct node *node, const struct stat *st)
{
    if (node->kind == S_IFDIR)
        return atomic_load(&node->watched) == WATCHED ? watched_life(lane.attr_ns) : lane.attr_ns;
    /* A file is watched by its names, and all of them have to be known. */
    uint64_t names = 0;
    for (const struct name *n = node->names; n; n = n->next, names++)
        if (atomic_load(&n->parent->watched) != WATCHED)
            return lane.attr_ns;
    return names && names >= st->st_nlink ? watched_life(lane.attr_ns) : lane.attr_ns;
}

void entry_fill(struct wire_entry *e, const struct node *parent, const struct node *node, const struct stat *st)
{
    uint64_t entry = entry_life(parent), attr = attr_life(node, st);
    memset(e, 0, sizeof *e);
    e->nodeid = node->id;
    e->entry_valid = entry / 1000000000, e->entry_valid_nsec = (uint32_t)(entry % 1000000000);
    e->attr_valid = attr / 1000000000, e->attr_valid_nsec = (uint32_t)(attr % 1000000000);
    attr_fill(&e->attr, st);
}

static void reply_attr(const struct wire_in *in, const struct node *node, const struct stat *st)
{
    struct wire_attr_out out = {0};
    lock();
    uint64_t life = attr_life(node, st);
    attr_fill(&out.attr, st);
    unlock();
    out.attr_valid = life / 1000000000, out.attr_valid_nsec = (uint32_t)(life % 1000000000);
    reply(in, &out, sizeof out);
}

/* ---- handles ---- */

enum { HANDLE_BUCKETS = 4096 };
static struct handle *handles[HANDLE_BUCKETS];
static uint64_t handle_total;
static struct noted *noted[HANDLE_BUCKETS];

void handle_link(struct handle *h)
{
    node_hold(h->node);
    h->chain = handles[h->fh % HANDLE_BUCKETS];
    handles[h->fh % HANDLE_BUCKETS] = h;
    handle_total += !h->pythons;
}

struct handle *handle_add(struct node *node, int fd, struct who who)
{
    struct handle *h = slot_take(sizeof *h);
    if (h == NULL)
        return NULL;
    h->fh = shared->next_fh++;
    h->node = node, h->node_id = node->id, h->fd = fd, h->who = who, h->look_number = node->look_number;
    handle_link(h);
    return h;
}

void handle_each(void (*each)(void *, const struct handle *), void *with)
{
    for (unsigned i = 0; i < HANDLE_BUCKETS; i++)
        for (struct handle *h = handles[i]; h; h = h->chain)
            each(with, h);
}

uint64_t handle_next(void) { return shared->next_fh; }

void handle_restore_next(uint64_t fh) { shared->next_fh = fh; }

uint64_t handle_count(void) { return handle_total; }

void handle_pythons(struct handle *h)
{
    h->pythons = true;
    handle_total--;
}

struct handle *handle_find(uint64_t fh)
{
    struct handle *h = handles[fh % HANDLE_BUCKETS];
    while (h && h->fh != fh)
        h = h->chain;
    return h;
}

struct handle *handle_asked(uint64_t unique)
{
    for (unsigned i = 0; i < HANDLE_BUCKETS; i++)
        for (struct handle *h = handles[i]; h; h = h->chain)
            if (h->asked == unique)
                return h;
    return NULL;
}

void handle_answered(uint64_t fh)
{
    lock();
    struct handle *h = handle_find(fh);
    if (h) /* else it has been closed again by now */
        h->asked = 0;
    unlock();
}

/* Good without the lock until its RELEASE, which the kernel sends when nothing else is under way. */
struct handle *handle_get(uint64_t fh)
{
    lock();
    struct handle *h = handle_find(fh);
    unlock();
    return h;
}

bool handle_close(uint64_t fh, bool by_python)
{
    lock();
    struct handle **at = &handles[fh % HANDLE_BUCKETS];
    while (*at && (*at)->fh != fh)
        at = &(*at)->chain;
    struct handle *h = *at;
    if (h && h->pythons && !by_python) {
        unlock();
        return false;
    }
    int fd = h && !h->pythons ? h->fd : -1;
    die(DONE_ON_DISK);
    if (h) {
        *at = h->chain;
        handle_total -= !h->pythons;
        if (h->node->making == h)
            making_done(h);
        struct node *node = h->node;
        slot_free(h);
        node_release(node);
    }
    unlock();
    die(IN_THE_TABLE);
    if (fd >= 0)
        close(fd);
    return true;
}

void note_link(struct noted *n)
{
    node_hold(n->node);
    n->chain = noted[n->fh % HANDLE_BUCKETS];
    noted[n->fh % HANDLE_BUCKETS] = n;
}

static struct noted **noted_at(uint64_t fh)
{
    struct noted **at = &noted[fh % HANDLE_BUCKETS];
    while (*at && (*at)->fh != fh)
        at = &(*at)->chain;
    return at;
}

struct noted *noted_asked(uint64_t unique)
{
    for (unsigned i = 0; i < HANDLE_BUCKETS; i++)
        for (struct noted *n = noted[i]; n; n = n->chain)
            if (n->asked == unique)
                return n;
    return NULL;
}

struct noted *noted_find(uint64_t fh) { return *noted_at(fh); }

bool note_handle(const struct noted *what)
{
    struct noted *n = *noted_at(what->fh);
    if (n) /* it was handed on to this process */
        return true;
    n = slot_take(sizeof *n);
    if (n == NULL)
        return false;
    *n = *what;
    note_link(n);
    slot_live(n, NOTED_SLOT);
    return true;
}

void unnote_handle(uint64_t fh)
{
    lock();
    struct noted **at = noted_at(fh), *n = *at;
    struct handle *h = handle_find(fh);
    if (h && h->pythons)
        h->fd = -1; /* Python closes it next */
    if (n) {
        *at = n->chain;
        struct node *node = n->node;
        slot_free(n);
        node_release(node);
    }
    unlock();
}

/* ---- grants ---- */

uint64_t grant_epoch = 1;

struct grant *grant_of(struct node *node)
{
    struct grant *g = node->grant;
    if (g == NULL && (g = slot_take(sizeof *g)) != NULL) {
        g->node_id = node->id;
        node->grant = g;
        slot_live(g, GRANT_SLOT);
    }
    return g;
}

void grant_set(struct grant *g, uint64_t fh, int fd, uint32_t tid, bool append, int64_t for_ns)
{
    g->last = 0;
    g->fh = fh, g->epoch = grant_epoch, g->fd = fd, g->tid = tid, g->append = append, g->under_way = 0;
    g->until = monotonic_ns() + for_ns, g->over = false;
}

void grant_revoke(struct node *node)
{
    /* A write that has begun lands before whatever comes now. The grant may be another one, or gone,
     * when the lock is taken again. */
    for (struct grant *g; (g = node->grant) != NULL;) {
        g->over = true;
        if (!g->under_way)
            break;
        unlock();
        sched_yield();
        lock();
    }
    if (node->making)
        making_handed_over(node);
    node->own = 0;
}

static enum verdict do_write(struct wire_in *in, struct node *node, char *body, size_t size)
{
    struct wire_write write;
    if (size < sizeof write)
        return FORWARD;
    memcpy(&write, body, sizeof write);
    lock();
    struct grant *g = node->grant;
    bool granted = g && !g->over && g->fh == write.fh && g->tid == in->pid && g->epoch == grant_epoch
                   && monotonic_ns() < g->until && !(write.write_flags & (WRITE_CACHE | WRITE_KILL_SUIDGID))
                   && g->append == !!(write.flags & O_APPEND) && write.size <= size - sizeof write;
    if (granted)
        g->under_way++;
    unlock();
    if (!granted)
        return FORWARD;
    if (write.size > SMALL)
        step_down();
    size_t done = 0;
    ssize_t put = 0;
    struct stat st;
    if (g->append) /* done twice, it would be there twice */
        journal_begin(in->unique, in->opcode, node->ino, fstat(g->fd, &st) == 0 ? (uint64_t)st.st_size : 0, 0);
    do { /* pwrite(2) on a descriptor with O_APPEND appends, whatever the offset */
        put = pwrite(g->fd, body + sizeof write + done, write.size - done, (off_t)(write.offset + done));
        done += put > 0 ? (size_t)put : 0;
    } while (put > 0 && done < write.size);
    int error = errno;
    die(DONE_ON_DISK);
    lock();
    g->under_way--;
    g->last = monotonic_ns();
    unlock();
    if (put < 0 && done == 0)
        return reply_error(in, -error), DONE;
    struct wire_write_out out = {.size = (uint32_t)done};
    reply(in, &out, sizeof out);
    return DONE;
}

/* ---- requests; each gets a held node and the body, and says whether Python has to go on ---- */

bool text_of(const char *body, size_t size, size_t *length)
{
    *length = strnlen(body, size);
    return *length < size;
}

bool name_of(const char *body, size_t size, size_t *length)
{
    return text_of(body, size, length) && *length && !memchr(body, '/', *length) && strcmp(body, ".") != 0
           && strcmp(body, "..") != 0;
}

static enum verdict do_lookup(struct wire_in *in, struct node *parent, char *body, size_t size)
{
    struct stat st;
    size_t length;
    if (!name_of(body, size, &length))
        return reply_error(in, -EINVAL), DONE;
    int dir = dir_acquire(parent);
    if (dir < 0)
        return reply_error(in, dir), DONE;
    struct wire_entry entry;
    int error = 0;
    uint64_t id = 0, links = 0;
    bool found = false, missed = false;
    uint64_t life = 0;
    struct node *held = NULL;
    watch_dir(parent, dir);
    for (int tries = 0; tries < 64; tries++) {
        lock();
        uint64_t mutations = parent->mutations;
        unlock();
        error = fstatat(dir, body, &st, AT_SYMLINK_NOFOLLOW) < 0 ? errno : 0;
        lock();
        if (parent->mutations != mutations) {
            unlock();
            continue; /* Python was changing names here */
        }
        if (error == ENOENT) {
            struct name *name = name_find(parent, body, length);
            if (name) { /* deleted behind the mount */
                struct node *child = name->child;
                node_hold(child);
                name_remove(child, parent, body, length);
                node_release(child);
            }
            missed = miss_watched(parent->id, body, length);
            life = entry_life(parent);
        } else if (!error) {
            struct node *node = table_enter(parent, body, length, &st, false, 0);
            if (node == NULL) {
                error = ENOMEM;
            } else if (held == NULL && watch_wanted(node)) {
                node_hold(held = node);
                unlock();
                watch_node(node); /* before the look at it that counts */
                continue;
            } else {
                node->lookups++;
                entry_fill(&entry, parent, node, &st);
                id = node->id;
                for (struct name *n = node->names; n; n = n->next)
                    links++;
            }
        }
        found = !error;
        unlock();
        break;
    }
    if (held) {
        lock();
        node_release(held);
        unlock();
    }
    dir_release(parent);
    if (found) {
        if (links > st.st_nlink && !S_ISDIR(st.st_mode))
            names_check(id, st.st_nlink, parent->id, body, length);
        if (!reply(in, &entry, sizeof entry)) {
            lock();
            struct node *node = table_get(id);
            if (node)
                node_forget(node, 1);
            unlock();
        }
        return DONE;
    }
    if (missed)
        return FORWARD;
    if (error == ENOENT && life > 0) { /* node 0: there is nothing, and the kernel may believe it */
        struct wire_entry none = {.entry_valid = life / 1000000000, .entry_valid_nsec = (uint32_t)(life % 1000000000)};
        reply(in, &none, sizeof none);
        return DONE;
    }
    reply_error(in, error ? -error : -ESTALE);
    return DONE;
}

static void forget(uint64_t id, uint64_t count)
{
    lock();
    struct node *node = table_get(id);
    if (node)
        node_forget(node, count);
    unlock();
}

static void do_batch_forget(const char *body, size_t size)
{
    struct wire_batch_forget batch;
    struct wire_forget_one one;
    if (size < sizeof batch)
        return;
    memcpy(&batch, body, sizeof batch);
    for (uint32_t i = 0; i < batch.count && size >= sizeof batch + (i + 1) * sizeof one; i++) {
        memcpy(&one, body + sizeof batch + i * sizeof one, sizeof one);
        forget(one.nodeid, one.nlookup);
    }
}

static enum verdict do_getattr(struct wire_in *in, struct node *node, char *body, size_t size)
{
    struct wire_getattr get;
    struct stat st;
    int error;
    if (size < sizeof get)
        return reply_error(in, -EINVAL), DONE;
    memcpy(&get, body, sizeof get);
    struct handle *h = get.flags & GETATTR_FH && get.fh & LANE_FH ? handle_get(get.fh) : NULL;
    watch_node(node);
    if (h && h->fd >= 0)
        error = fstat(h->fd, &st) < 0 ? -errno : 0;
    else
        error = node_stat(node, &st);
    if (error)
        reply_error(in, error);
    else
        reply_attr(in, node, &st);
    return DONE;
}

static enum verdict do_setattr(struct wire_in *in, struct node *node, char *body, size_t size)
{
    struct wire_setattr set;
    struct stat st;
    char path[40];
    if (size < sizeof set)
        return reply_error(in, -EINVAL), DONE;
    memcpy(&set, body, sizeof set);
    if (set.valid & SET_SIZE)
        return FORWARD;
    bool dir = node->kind == S_IFDIR;
    int fd = dir ? dir_acquire(node) : node_open(node, O_PATH);
    if (fd < 0)
        return reply_error(in, fd), DONE;
    int error = 0;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (set.valid & (SET_UID | SET_GID)
        && fchownat(fd, "", set.valid & SET_UID ? set.uid : (uid_t)-1, set.valid & SET_GID ? set.gid : (gid_t)-1,
                    AT_EMPTY_PATH) < 0)
        error = -errno;
    if (!error && set.valid & SET_MODE && chmod(path, set.mode & 07777) < 0)
        error = -errno;
    if (!error && set.valid & (SET_ATIME | SET_MTIME)) {
        struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_OMIT}};
        if (set.valid & SET_ATIME) {
            times[0].tv_sec = (time_t)set.atime;
            times[0].tv_nsec = set.valid & SET_ATIME_NOW ? UTIME_NOW : (long)set.atimensec;
        }
        if (set.valid & SET_MTIME) {
            times[1].tv_sec = (time_t)set.mtime;
            times[1].tv_nsec = set.valid & SET_MTIME_NOW ? UTIME_NOW : (long)set.mtimensec;
        }
        if (utimensat(AT_FDCWD, path, times, 0) < 0)
            error = -errno;
    }
    if (!error && fstat(fd, &st) < 0)
        error = -errno;
    if (dir)
        dir_release(node);
    else
        close(fd);
    if (error)
        reply_error(in, error);
    else
        reply_attr(in, node, &st);
    return DONE;
}

/* With the lock held: a look comes, which ends what was granted, but not that the file is somebody's own. */
static void looked_at(struct node *node, struct who who)
{
    uint32_t own = node->own;
    grant_revoke(node);
    node->own = own == who.group ? own : 0;
}

static enum verdict do_open(struct wire_in *in, struct node *node, char *body, size_t size)
{
    struct wire_open open;
    if (size < sizeof open)
        return reply_error(in, -EINVAL), DONE;
    memcpy(&open, body, sizeof open);
    if ((open.flags & O_ACCMODE) != O_RDONLY || open.flags & O_TRUNC || node->kind != S_IFREG)
        return FORWARD;
    struct who who = thread_who(in->pid);
    if (who.actor == 0)
        return FORWARD;
    int fd = node_open(node, (int)(open.flags & PASSED) | O_RDONLY);
    if (fd < 0)
        return reply_error(in, fd), DONE;
    lock();
    looked_at(node, who);
    struct handle *h = look_add(node, who) ? handle_add(node, fd, who) : NULL;
    if (h) {
        h->asked = in->unique & ~AGAIN;
        slot_live(h, HANDLE_SLOT);
    }
    unlock();
    if (h == NULL) {
        close(fd);
        return FORWARD;
    }
    struct wire_open_out out = {.fh = h->fh, .open_flags = lane.open_flags};
    if (reply(in, &out, sizeof out))
        handle_answered(out.fh);
    else
        handle_close(out.fh, false);
    return DONE;
}

static enum verdict do_read(struct wire_in *in, struct node *node, char *body, size_t size)
{
    struct wire_read read;
    if (size < sizeof read)
        return reply_error(in, -EINVAL), DONE;
    memcpy(&read, body, sizeof read);
    if (!(read.fh & LANE_FH))
        return FORWARD;
    struct handle *h = handle_get(read.fh);
    if (h == NULL || h->fd < 0)
        return reply_error(in, -EBADF), DONE;
    if (h->made_at)
        return FORWARD; /* a look at what is being made */
    if (!atomic_exchange(&h->has_read, true)) {
        /* Something was decided between the open and the first byte: what is seen now counts. */
        struct who who = {0};
        if (!record_is_pending(h->look_number)) {
            who = thread_who(in->pid);
            if (!who.actor)
                who = h->who; /* a child that has the file from who opened it */
        }
        if (who.actor) {
            lock();
            looked_at(node, who);
            if (!look_add(node, who))
                atomic_store(&h->has_read, false);
            unlock();
        }
    }
    char *data = buffer_take();
    if (data == NULL || read.size > lane.buffer_size) {
        buffer_give(data);
        return reply_error(in, -ENOMEM), DONE;
    }
    struct iovec into = {data, read.size};
    if (read.size > SMALL)
        step_down();
    ssize_t got = preadv2(h->fd, &into, 1, (off_t)read.offset, RWF_NOWAIT);
    if (got < (ssize_t)read.size) { /* not in memory, not all of it, or RWF_NOWAIT is not known here */
        if (got < 0)
            step_down();
        size_t had = got > 0 ? (size_t)got : 0;
        got = pread(h->fd, data + had, read.size - had, (off_t)(read.offset + had));
        if (got >= 0 || had > 0)
            got = (got > 0 ? got : 0) + (ssize_t)had;
    }
    if (got < 0)
        reply_error(in, -errno);
    else
        reply(in, data, (size_t)got);
    buffer_give(data);
    return DONE;
}

static enum verdict do_release(struct wire_in *in, struct node *node, char *body, size_t size)
{
    struct wire_release release;
    (void)node;
    if (size < sizeof release)
        return reply_error(in, -EINVAL), DONE;
    memcpy(&release, body, sizeof release);
    if (!(release.fh & LANE_FH) || !handle_close(release.fh, false))
        return FORWARD;
    reply(in, NULL, 0);
    return DONE;
}

static enum verdict do_fsync(struct wire_in *in, struct node *node, char *body, size_t size)
{
    struct wire_fsync sync;
    if (size < sizeof sync)
        return reply_error(in, -EINVAL), DONE;
    memcpy(&sync, body, sizeof sync);
    bool of_directory = in->opcode == OP_FSYNCDIR;
    if (!of_directory && !(sync.fh & LANE_FH))
        return FORWARD;
    step_down();
    struct handle *h = of_directory ? NULL : handle_get(sync.fh);
    int fd = h ? h->fd : -1, opened = -1;
    if (of_directory)
        fd = opened = node_open(node, O_RDONLY);
    int error = fd < 0 ? -EBADF : (sync.fsync_flags & 1 ? fdatasync(fd) : fsync(fd)) < 0 ? -errno : 0;
    if (opened >= 0)
        close(opened);
    reply_error(in, error);
    return DONE;
}

/* Nobody needs a handle of a directory. Where the kernel may keep listings it is told so once, and then
 * neither opens nor closes them with us; else the reply has to say that it may not. */
static enum verdict do_opendir(struct wire_in *in, struct node *node, char *body, size_t size)
{
    (void)body, (void)size;
    if (lane.no_opendir && lane.opendir_flags)
        return reply_error(in, -ENOSYS), DONE;
    int dir = dir_acquire(node);
    if (dir < 0)
        return reply_error(in, dir), DONE;
    dir_release(node);
    struct wire_open_out out = {.open_flags = lane.opendir_flags};
    reply(in, &out, sizeof out);
    return DONE;
}

static enum verdict do_readdir(struct wire_in *in, struct node *node, char *body, size_t size)
{
    struct wire_read read;
    if (size < sizeof read)
        return reply_error(in, -EINVAL), DONE;
    memcpy(&read, body, sizeof read);
    char *data = buffer_take();
    if (data == NULL)
        return reply_error(in, -ENOMEM), DONE;
    bool plus = in->opcode == OP_READDIRPLUS;
    size_t room = read.size < lane.buffer_size ? read.size : lane.buffer_size;
    ssize_t used = listing_read(node, read.offset, plus, data, room);
    if (used < 0)
        reply_error(in, (int)used);
    else if (!reply(in, data, (size_t)used) && plus)
        listing_undo(data, (size_t)used);
    buffer_give(data);
    return DONE;
}

static enum verdict do_releasedir(struct wire_in *in, struct node *node, char *body, size_t size)
{
    (void)node, (void)body, (void)size;
    reply(in, NULL, 0);
    return DONE;
}

static enum verdict do_statfs(struct wire_in *in, struct node *node, char *body, size_t size)
{
    struct statvfs st;
    (void)node, (void)body, (void)size;
    if (fstatvfs(lane.root_fd, &st) < 0)
        return reply_error(in, -errno), DONE;
    struct wire_kstatfs out = {
        .blocks = st.f_blocks, .bfree = st.f_bfree, .bavail = st.f_bavail, .files = st.f_files, .ffree = st.f_ffree,
        .bsize = (uint32_t)st.f_bsize, .namelen = (uint32_t)st.f_namemax, .frsize = (uint32_t)st.f_frsize,
    };
    reply(in, &out, sizeof out);
    return DONE;
}

/* Reading a link is a look at it, being led by one is none: which, FUSE does not say. */
static enum verdict do_readlink(struct wire_in *in, struct node *node, char *body, size_t size)
{
    char target[PATH_MAX];
    (void)body, (void)size;
    bool look = in->pid && thread_reads_link(in->pid);
    struct who who = look ? thread_who(in->pid) : (struct who){0};
    if ((look && who.actor == 0) || node->kind != S_IFLNK)
        return FORWARD;
    int fd = node_open(node, O_PATH);
    if (fd < 0)
        return reply_error(in, fd), DONE;
    ssize_t length = readlinkat(fd, "", target, sizeof target);
    int error = length < 0 ? -errno : 0;
    close(fd);
    if (!error && look) {
        lock();
        looked_at(node, who);
        bool noted = look_add(node, who);
        unlock();
        if (!noted)
            return FORWARD;
    }
    if (error)
        reply_error(in, error);
    else
        reply(in, target, (size_t)length);
    return DONE;
}

static enum verdict do_access(struct wire_in *in, struct node *node, char *body, size_t size)
{
    struct stat st;
    (void)body, (void)size;
    /* With default_permissions the kernel decides by itself; what is left is existence. */
    reply_error(in, node_stat(node, &st));
    return DONE;
}

/* What nobody implements; the kernel has an answer of its own, and mostly never asks again. A file is
 * not touched by the question: Python's open() asks every one whether it is a terminal. */
static enum verdict do_nothing(struct wire_in *in, struct node *node, char *body, size_t size)
{
    (void)node, (void)body, (void)size;
    reply_error(in, -ENOSYS);
    return DONE;
}

static bool starts(const char *text, const char *with) { return strncmp(text, with, strlen(with)) == 0; }

/* `trusted.`: as the kernel does for whom lacks CAP_SYS_ADMIN. `user.fsguard.`: those are not the file's. */
static size_t without(const char *prefix, char *list, size_t size)
{
    size_t kept = 0;
    for (size_t at = 0; at < size;) {
        size_t length = strnlen(list + at, size - at) + 1;
        if (!starts(list + at, prefix)) {
            memmove(list + kept, list + at, length);
            kept += length;
        }
        at += length;
    }
    return kept;
}

static enum verdict do_xattr(struct wire_in *in, struct node *node, char *body, size_t size)
{
    struct wire_getxattr get;
    size_t length = 0;
    bool list = in->opcode == OP_LISTXATTR;
    if (size < sizeof get)
        return reply_error(in, -EINVAL), DONE;
    memcpy(&get, body, sizeof get);
    const char *name = body + sizeof get;
    if (!list && (!text_of(name, size - sizeof get, &length) || starts(name, "user.fsguard.")))
        return FORWARD;
    char *value = buffer_take();
    if (value == NULL)
        return reply_error(in, -ENOMEM), DONE;
    bool dir = node->kind == S_IFDIR;
    int fd = dir ? dir_acquire(node) : node_open(node, O_PATH);
    ssize_t got = fd;
    if (fd >= 0) {
        char path[40];
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        size_t room = lane.buffer_size > 65536 ? 65536 : lane.buffer_size; /* XATTR_LIST_MAX, XATTR_SIZE_MAX */
        got = list ? listxattr(path, value, room) : getxattr(path, name, value, room);
        if (got < 0)
            got = -errno;
        if (dir)
            dir_release(node);
        else
            close(fd);
    }
    if (got >= 0 && list)
        got = (ssize_t)without("user.fsguard.", value, (size_t)got);
    if (got >= 0 && list && in->uid != 0)
        got = (ssize_t)without("trusted.", value, (size_t)got);
    if (got < 0) {
        reply_error(in, (int)got);
    } else if (get.size == 0) {
        uint32_t out[2] = {(uint32_t)got, 0};
        reply(in, out, sizeof out);
    } else if ((size_t)got > get.size) {
        reply_error(in, -ERANGE);
    } else {
        reply(in, value, (size_t)got);
    }
    buffer_give(value);
    return DONE;
}

/* SETXATTR and REMOVEXATTR: attributes are no content. */
static enum verdict do_setxattr(struct wire_in *in, struct node *node, char *body, size_t size)
{
    struct wire_setxattr set = {0};
    size_t length, head = in->opcode == OP_SETXATTR ? sizeof set : 0;
    const char *name = body + head;
    if (size < head || !text_of(name, size - head, &length))
        return reply_error(in, -EINVAL), DONE;
    memcpy(&set, body, head);
    if (head && set.size > size - head - length - 1)
        return reply_error(in, -EINVAL), DONE;
    /* A new ACL may cost the set-group-ID bit, which depends on the caller's groups. */
    if (starts(name, "user.fsguard.") || (in->uid != 0 && strcmp(name, "system.posix_acl_access") == 0))
        return FORWARD;
    bool dir = node->kind == S_IFDIR;
    int fd = dir ? dir_acquire(node) : node_open(node, O_PATH);
    if (fd < 0)
        return reply_error(in, fd), DONE;
    char path[40];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    journal_begin(in->unique, in->opcode, node->ino, 0, 0);
    int error = (head ? setxattr(path, name, name + length + 1, set.size, (int)set.flags) : removexattr(path, name)) < 0
                    ? -errno : 0;
    die(DONE_ON_DISK);
    if ((error == -EEXIST || error == -ENODATA) && journal_past(in->unique))
        error = 0; /* XATTR_CREATE, or a removal: it was us */
    if (dir)
        dir_release(node);
    else
        close(fd);
    reply_error(in, error);
    return DONE;
}

typedef enum verdict (*handler)(struct wire_in *in, struct node *node, char *body, size_t size);
static const handler here[64] = {
    [OP_LOOKUP] = do_lookup,     [OP_GETATTR] = do_getattr,       [OP_SETATTR] = do_setattr,
    [OP_OPEN] = do_open,         [OP_READ] = do_read,             [OP_STATFS] = do_statfs,
    [OP_WRITE] = do_write,
    [OP_RELEASE] = do_release,   [OP_FSYNC] = do_fsync,           [OP_GETXATTR] = do_xattr,
    [OP_LISTXATTR] = do_xattr,   [OP_FLUSH] = do_nothing,           [OP_OPENDIR] = do_opendir,
    [OP_READDIR] = do_readdir,   [OP_READDIRPLUS] = do_readdir,   [OP_RELEASEDIR] = do_releasedir,
    [OP_CREATE] = do_create,     [OP_MKDIR] = do_mkdir,           [OP_UNLINK] = do_unlink,
    [OP_RMDIR] = do_rmdir,       [OP_LINK] = do_link,
    [OP_SETXATTR] = do_setxattr, [OP_REMOVEXATTR] = do_setxattr,
    [OP_IOCTL] = do_nothing,     [OP_POLL] = do_nothing,          [OP_COPY_FILE_RANGE] = do_nothing,
    [OP_READLINK] = do_readlink,
    [OP_FSYNCDIR] = do_fsync,    [OP_ACCESS] = do_access,
};

/* A request that somebody had read who is dead. Opened files are there already; what else may have been
 * done, and is more than a directory or an attribute, Python finds out, which has to know of it anyway. */
static enum verdict come_again(struct wire_in *in, struct node *node, handler answer, char *body, size_t size)
{
    struct {
        struct wire_entry entry;
        struct wire_open_out open;
    } out = {0};
    struct stat st;
    uint64_t fh = 0;
    if (in->opcode == OP_OPEN || in->opcode == OP_CREATE) {
        lock();
        struct handle *h = handle_asked(in->unique & ~AGAIN);
        bool there = h && (in->opcode == OP_OPEN || fstat(h->fd, &st) == 0);
        if (there && in->opcode == OP_CREATE)
            entry_fill(&out.entry, node, h->node, &st);
        out.open.fh = fh = there ? h->fh : 0;
        unlock();
    }
    if (fh) {
        out.open.open_flags = in->opcode == OP_OPEN ? lane.open_flags : 0;
        const void *data = in->opcode == OP_OPEN ? (void *)&out.open : (void *)&out;
        if (reply(in, data, in->opcode == OP_OPEN ? sizeof out.open : sizeof out))
            handle_answered(fh);
        else
            handle_close(fh, false);
        return DONE;
    }
    switch (in->opcode) {
    case OP_CREATE: case OP_UNLINK: case OP_RMDIR: case OP_LINK: case OP_WRITE:
        return journal_past(in->unique) ? FORWARD : answer(in, node, body, size);
    default:
        return answer(in, node, body, size);
    }
}

/* True: Python has to answer it. */
static bool handle_request(char *mem, size_t size)
{
    struct wire_in in;
    memcpy(&in, mem, sizeof in);
    char *body = mem + sizeof in;
    size_t rest = size - sizeof in;
    if (in.opcode == OP_FORGET) {
        struct wire_forget one;
        if (rest >= sizeof one) {
            memcpy(&one, body, sizeof one);
            forget(in.nodeid, one.nlookup);
        }
    } else if (in.opcode == OP_BATCH_FORGET) {
        do_batch_forget(body, rest);
    } else {
        handler answer = in.opcode < 64 ? here[in.opcode] : NULL;
        lock();
        struct node *node = table_get(in.nodeid);
        if (node)
            node_hold(node);
        unlock();
        if (answer && node == NULL) {
            reply_error(&in, -ESTALE); /* never so for the kernel's own */
            return false;
        }
        enum verdict verdict = !answer ? FORWARD
                               : in.unique & AGAIN ? come_again(&in, node, answer, body, rest)
                                                   : answer(&in, node, body, rest);
        if (node) {
            lock();
            if (verdict == FORWARD)
                grant_revoke(node);
            node_release(node);
            unlock();
        }
        if (verdict == FORWARD)
            return true;
        journal_end();
    }
    atomic_fetch_add_explicit(&shared->counts[in.opcode & 63], 1, memory_order_relaxed);
    return false;
}

/* ---- the threads ----
 *
 * One thread at a time, the leader, waits for requests. It answers what it takes by itself, and lets
 * the next thread lead first if that may take long (content that is not in memory, many bytes, an
 * fsync) or if more requests are there already. So a thread that answers is mostly the one that was
 * awake, and nobody waits behind somebody else's bytes; behind a name that the disk is asked for,
 * they do.
 *
 * Before the leader sleeps it looks a few times more: waking a sleeper costs more than most requests
 * do, and callers that make one call after the other are back within microseconds. How long it looks
 * follows from how often that has been worth it.
 */

enum { LOOK_NS = 40000, LOOK_LEAST_NS = 2000 };
static int64_t look_ns = LOOK_NS; /* the leader's */

/* Requests that were read and are neither answered nor handed on. */
static atomic_uint between;

/* An INTERRUPT must not reach Python before the request that it is about, which another thread may
 * have just read. That takes microseconds; a disk that is read from meanwhile is not waited for. */
static void let_others_pass(void)
{
    struct timespec t = {.tv_nsec = 100000};
    step_down();
    for (int tries = 0; tries < 100 && atomic_load(&between) > 1; tries++)
        nanosleep(&t, NULL);
}

/* The next request; 0: unmounted; -1: the threads shall end. Leading. */
static ssize_t take_request(char *mem)
{
    int64_t end = 0;
    for (;;) {
        if (atomic_load(&lane.pausing))
            return -1;
        ssize_t got = read(lane.device, mem, lane.buffer_size);
        if (got >= (ssize_t)sizeof(struct wire_in)) {
            if (end)
                look_ns = look_ns * 2 < LOOK_NS ? look_ns * 2 : LOOK_NS;
            return got;
        }
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR && errno != ENOENT))
            return 0; /* ENODEV; ENOENT only says that a caller was killed */
        if (got < 0 && errno == EAGAIN) {
            int64_t now = monotonic_ns();
            if (end == 0)
                end = now + look_ns;
            if (now < end) {
                sched_yield();
                continue;
            }
            look_ns = look_ns / 2 > LOOK_LEAST_NS ? look_ns / 2 : LOOK_LEAST_NS;
            struct pollfd p[2] = {{.fd = lane.device, .events = POLLIN}, {.fd = lane.wake_fd, .events = POLLIN}};
            if (poll(p, 2, -1) > 0 && p[0].revents & (POLLERR | POLLHUP | POLLNVAL))
                return 0;
            end = 0;
        }
    }
}

void *serve(void *buffer)
{
    char *mem = buffer;
    making_thread();
    while (mem && !atomic_load(&lane.over)) {
        if (!leads)
            pthread_mutex_lock(&leading);
        leads = true;
        if (atomic_load(&lane.over))
            break;
        ssize_t got = take_request(mem);
        if (got == 0)
            queue_end();
        if (got <= 0)
            break;
        atomic_fetch_add(&between, 1);
        struct pollfd more = {.fd = lane.device, .events = POLLIN};
        if (poll(&more, 1, 0) > 0)
            step_down();
        struct wire_in in;
        memcpy(&in, mem, sizeof in);
        if (in.opcode == OP_INTERRUPT)
            let_others_pass();
        bool pythons = handle_request(mem, (size_t)got);
        if (pythons)
            queue_push(mem, (size_t)got);
        atomic_fetch_sub(&between, 1);
        if (pythons) {
            while ((mem = buffer_take()) == NULL)
                ;
        }
    }
    step_down();
    journal_leave();
    buffer_give(mem);
    atomic_fetch_sub(&lane.alive, 1);
    return NULL;
}

static bool ended(atomic_uint *threads, int64_t by)
{
    struct timespec t = {.tv_nsec = 200000};
    while (atomic_load(threads) > 0) {
        if (monotonic_ns() > by)
            return false;
        nanosleep(&t, NULL);
    }
    return true;
}

bool lane_pause(int64_t for_ns)
{
    uint64_t one = 1;
    int64_t by = monotonic_ns() + for_ns;
    /* First who takes back what the kernel believes: it may wait for a caller who waits for us. */
    atomic_store(&lane.unwatching, true);
    watch_end();
    if (!ended(&lane.watching, by))
        return false;
    atomic_store(&lane.pausing, true);
    return write(lane.wake_fd, &one, sizeof one) >= 0 && ended(&lane.alive, by);
}
