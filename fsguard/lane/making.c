/* What makes and removes names without a decision: directories, files that nobody else has to do with
 * yet, and such files when their maker links or removes them.
 *
 *   CREATE      node->making = the handle: its maker writes on by a grant, as through one of Python's
 *   anything else that concerns the file ──► OPENED: Python goes on with it, as if it had made it
 *   RELEASE ──► MADE: Python is told once, of a file that is whole; node->own = its maker's task
 *   UNLINK, LINK by that task ──► REMOVED, LINKED
 *
 * Whatever else concerns the file, another's look as well, ends that it is the task's own.
 */
#include "lane.h"

#include <errno.h>
#include <linux/capability.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* ---- as the caller: see fuse/credentials.py, which does the same for Python's requests ---- */

enum { MASK = 1 << CAP_DAC_OVERRIDE | 1 << CAP_DAC_READ_SEARCH | 1 << CAP_MKNOD };
static const uint32_t FS_SET[2] = {1u << CAP_CHOWN | 1u << CAP_DAC_OVERRIDE | 1u << CAP_DAC_READ_SEARCH | 1u << CAP_FOWNER
                                       | 1u << CAP_FSETID | 1u << CAP_LINUX_IMMUTABLE | 1u << CAP_MKNOD,
                                   1u << (CAP_MAC_OVERRIDE - 32)};
static uid_t own_uid;
static gid_t own_gid;
static struct __user_cap_data_struct caps[2];
static struct __user_cap_header_struct caps_version = {.version = _LINUX_CAPABILITY_VERSION_3};
static _Thread_local bool own_umask; /* this thread's umask(2) is nobody else's */

void making_start(void)
{
    own_uid = geteuid(), own_gid = getegid();
    struct __user_cap_header_struct header = caps_version;
    if (syscall(SYS_capget, &header, caps) < 0)
        memset(caps, 0, sizeof caps);
    for (unsigned i = 0; i < 2; i++)
        caps[i].effective = (caps[i].effective & ~FS_SET[i]) | (i == 0 ? caps[0].permitted & MASK : 0);
}

void making_thread(void) { own_umask = unshare(CLONE_FS) == 0; }

static int as_caller(const struct wire_in *in, uint32_t mask)
{
    umask(mask);
    if (own_uid != 0)
        return 0;
    if (in->gid != own_gid)
        setfsgid(in->gid);
    if (in->uid != own_uid) {
        struct __user_cap_header_struct header = caps_version;
        setfsuid(in->uid);
        if (syscall(SYS_capset, &header, caps) < 0)
            return -errno;
    }
    return 0;
}

static void as_before(const struct wire_in *in)
{
    if (own_uid != 0)
        return;
    if (in->uid != own_uid)
        setfsuid(own_uid);
    if (in->gid != own_gid)
        setfsgid(own_gid);
}

/* ---- names ---- */

void names_change_begins(void) { atomic_fetch_add(&lane.names_changing, 1); }

void names_change_ends(void)
{
    atomic_fetch_add(&lane.names_epoch, 1);
    atomic_fetch_sub(&lane.names_changing, 1);
}

/* Into the table, with a lookup for the kernel. With the lock held; NULL: out of memory. */
static struct node *enter_fresh(struct node *parent, const char *text, size_t length, const struct stat *st,
                                uint64_t since, struct wire_entry *entry)
{
    struct node *node = table_enter(parent, text, length, st, since != 0, since);
    if (node) {
        node->lookups++;
        entry_fill(entry, parent, node, st);
    }
    return node;
}

static void take_back(uint64_t id)
{
    lock();
    struct node *node = table_get(id);
    if (node)
        node_forget(node, 1);
    unlock();
}

enum verdict do_mkdir(struct wire_in *in, struct node *parent, char *body, size_t size)
{
    struct wire_mkdir make;
    struct wire_entry entry;
    struct stat st;
    size_t length;
    const char *name = body + sizeof make;
    if (size < sizeof make || !name_of(name, size - sizeof make, &length))
        return reply_error(in, -EINVAL), DONE;
    if (!own_umask)
        return FORWARD;
    memcpy(&make, body, sizeof make);
    int dir = dir_acquire(parent);
    if (dir < 0)
        return reply_error(in, dir), DONE;
    lock();
    uint64_t since = table_next_id(), id = 0;
    unlock();
    int error = as_caller(in, make.umask);
    journal_begin(in->unique, in->opcode, 0, 0, 0);
    if (!error && mkdirat(dir, name, make.mode & 07777) < 0)
        error = -errno;
    as_before(in);
    die(DONE_ON_DISK);
    if (error == -EEXIST && journal_made(in->unique, dir, name, S_IFDIR))
        error = 0, since = 0;
    if (!error && fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        error = -errno;
    if (!error) {
        lock();
        struct node *node = enter_fresh(parent, name, length, &st, since, &entry);
        error = node ? 0 : -ENOMEM;
        id = node ? node->id : 0;
        unlock();
        die(IN_THE_TABLE);
    }
    dir_release(parent);
    if (error)
        reply_error(in, error);
    else if (!reply(in, &entry, sizeof entry))
        take_back(id);
    return DONE;
}

/* ---- files ---- */

enum { GRANTED_NS = 500000000 };

enum verdict do_create(struct wire_in *in, struct node *parent, char *body, size_t size)
{
    struct wire_create make;
    struct {
        struct wire_entry entry;
        struct wire_open_out open;
    } out = {0};
    struct stat st;
    size_t length;
    const char *name = body + sizeof make;
    if (size < sizeof make || !name_of(name, size - sizeof make, &length))
        return reply_error(in, -EINVAL), DONE;
    memcpy(&make, body, sizeof make);
    if (!own_umask || !atomic_load(&lane.making) || (make.flags & O_ACCMODE) == O_RDONLY)
        return FORWARD;
    struct who who = thread_who(in->pid);
    if (who.actor == 0)
        return FORWARD;
    lock();
    bool room = record_reserve();
    uint64_t since = table_next_id();
    unlock();
    if (!room)
        return FORWARD;
    int dir = dir_acquire(parent), fd = -1;
    int error = dir < 0 ? dir : as_caller(in, make.umask);
    if (!error) {
        journal_begin(in->unique, in->opcode, 0, 0, 0);
        fd = openat(dir, name, (int)(make.flags & PASSED) | O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                    make.mode & 07777);
        error = fd < 0 ? -errno : 0;
    }
    as_before(in);
    die(DONE_ON_DISK);
    /* Somebody was faster. The kernel takes ESTALE as "look again": it finds the file, checks the
     * caller's permission on it and sends OPEN. */
    if (error == -EEXIST && !(make.flags & O_EXCL))
        error = -ESTALE;
    if (!error && fstat(fd, &st) < 0)
        error = -errno;
    struct handle *h = NULL;
    lock();
    if (!error) {
        struct node *node = enter_fresh(parent, name, length, &st, since, &out.entry);
        h = node ? handle_add(node, fd, who) : NULL;
        if (h) {
            h->tid = in->pid, h->flags = make.flags, h->made_at = realtime_ns();
            h->asked = in->unique & ~AGAIN;
            node->making = h;
            struct grant *g = grant_of(node); /* without one, Python takes over at the first write */
            if (g)
                grant_set(g, h->fh, fd, in->pid, make.flags & O_APPEND, GRANTED_NS);
            slot_live(h, HANDLE_SLOT);
            if (!atomic_load(&lane.making))
                grant_revoke(node);
            out.open.fh = h->fh;
        } else {
            if (node)
                node_forget(node, 1);
            error = -ENOMEM;
        }
    }
    if (error)
        record_cancel();
    unlock();
    die(IN_THE_TABLE);
    if (dir >= 0)
        dir_release(parent);
    if (error) {
        if (fd >= 0)
            close(fd);
        reply_error(in, error);
    } else if (!reply(in, &out, sizeof out)) {
        take_back(out.entry.nodeid);
        handle_close(out.open.fh, false);
    } else {
        handle_answered(out.open.fh);
    }
    return DONE;
}

static bool has_written(const struct node *node) { return node->grant && node->grant->last > 0; }

void making_done(struct handle *h)
{
    struct node *node = h->node;
    struct record record = {.kind = MADE, .actor = h->who.actor, .time = h->made_at, .node = node, .wrote = has_written(node)};
    node->making = NULL;
    if (node->grant)
        node->grant->over = true;
    if (node->names && record_path(&record, node->names->parent, node->names->text, node->names->length)) {
        node->own = h->who.group, node->own_epoch = shared->own_epoch;
        record_push(record);
    } else {
        record_cancel(); /* it went behind the mount, nobody saw it */
    }
}

void making_handed_over(struct node *node)
{
    struct handle *h = node->making;
    node->making = NULL;
    handle_pythons(h);
    record_push((struct record){.kind = OPENED, .actor = h->who.actor, .time = h->made_at, .node = node, .fh = h->fh,
                                .wrote = has_written(node)});
}

static void hand_over(void *with, const struct handle *h)
{
    uint64_t **next = with;
    if (h->node->making == h && *next)
        *(*next)++ = h->node->id;
}

void making_hold(void)
{
    atomic_store(&lane.making, false);
    lock();
    uint64_t *ids = calloc(handle_count() + 1, sizeof *ids), *end = ids;
    handle_each(hand_over, &end);
    for (uint64_t *id = ids; id && id < end; id++) {
        struct node *node = table_get(*id);
        if (node == NULL)
            continue;
        node_hold(node);
        if (node->making)
            grant_revoke(node);
        node_release(node);
    }
    unlock();
    free(ids);
}

/* ---- a task's own files ---- */

/* With the lock held: the file of this name, if the thread's task is alone with it; held, and there is
 * room for a record. */
static struct node *own_child(struct node *parent, const char *text, size_t length, struct who who)
{
    struct name *name = name_find(parent, text, length);
    struct node *node = name ? name->child : NULL;
    if (!node || !who.group || node->own != who.group || node->own_epoch != shared->own_epoch || node->kind != S_IFREG
        || node->holds != node->noted || node->making || !atomic_load(&lane.making) || !record_reserve())
        return NULL;
    node_hold(node);
    return node;
}

static unsigned count_names(const struct node *node)
{
    unsigned count = 0;
    for (const struct name *n = node->names; n; n = n->next)
        count++;
    return count;
}

static void give_up(struct node *node)
{
    lock();
    record_cancel();
    node_release(node);
    unlock();
}

/* A name goes, on disk and in the table; 0 or -errno. The node is held; afterwards it is reachable as
 * long as the kernel wants it: an O_PATH descriptor, a working directory. `record`: what Python is told,
 * before the table says that it has happened. */
static int lose(const struct wire_in *in, struct node *parent, int dir, struct node *node, const char *text,
                size_t length, bool last, const struct record *record)
{
    bool pinned = false;
    if (last && node->lookups && !node->pinned) /* on failure fstat on what is gone will answer ESTALE */
        pinned = node_pin(node) == 0;
    names_change_begins();
    journal_begin(in->unique, in->opcode, node->ino, 0, 0);
    int error = unlinkat(dir, text, node->kind == S_IFDIR ? AT_REMOVEDIR : 0) < 0 ? -errno : 0;
    die(DONE_ON_DISK);
    lock();
    if (error) {
        if (pinned)
            node_unpin(node);
    } else {
        if (record)
            record_push(*record);
        parent->mutations++;
        name_remove(node, parent, text, length);
        if (last)
            node_detach(node);
    }
    unlock();
    names_change_ends();
    die(IN_THE_TABLE);
    return error;
}

enum verdict do_unlink(struct wire_in *in, struct node *parent, char *body, size_t size)
{
    struct stat st;
    size_t length;
    if (!name_of(body, size, &length))
        return reply_error(in, -EINVAL), DONE;
    struct who who = thread_who(in->pid);
    struct record record = {.kind = REMOVED, .actor = who.actor};
    lock();
    struct node *node = own_child(parent, body, length, who);
    unsigned names = node ? count_names(node) : 0;
    unlock();
    if (node == NULL)
        return FORWARD;
    int dir = dir_acquire(parent);
    bool plain = dir >= 0 && fstatat(dir, body, &st, AT_SYMLINK_NOFOLLOW) == 0 && node_is(node, &st)
                 && st.st_nlink == names;
    lock();
    plain = plain && node->own == who.group && node->own_epoch == shared->own_epoch && atomic_load(&lane.making)
            && record_path(&record, parent, body, length);
    unlock();
    if (!plain) { /* something happened behind the mount, or to the file: an open asks for no lock that we have */
        if (dir >= 0)
            dir_release(parent);
        give_up(node);
        return FORWARD;
    }
    int error = lose(in, parent, dir, node, body, length, names == 1, &record);
    lock();
    if (error) {
        record_cancel();
        slot_free(record.path);
    }
    node_release(node);
    unlock();
    dir_release(parent);
    reply_error(in, error);
    return DONE;
}

enum verdict do_rmdir(struct wire_in *in, struct node *parent, char *body, size_t size)
{
    struct stat st;
    size_t length;
    if (!name_of(body, size, &length))
        return reply_error(in, -EINVAL), DONE;
    lock();
    struct name *name = name_find(parent, body, length);
    struct node *node = name && name->child->kind == S_IFDIR ? name->child : NULL;
    if (node)
        node_hold(node);
    unlock();
    if (node == NULL)
        return FORWARD;
    enum verdict verdict = FORWARD;
    int dir = dir_acquire(parent);
    if (dir >= 0 && fstatat(dir, body, &st, AT_SYMLINK_NOFOLLOW) == 0 && node_is(node, &st)) {
        reply_error(in, lose(in, parent, dir, node, body, length, true, NULL));
        verdict = DONE;
    }
    if (dir >= 0)
        dir_release(parent);
    lock();
    node_release(node);
    unlock();
    return verdict;
}

enum verdict do_link(struct wire_in *in, struct node *parent, char *body, size_t size)
{
    struct wire_link link;
    struct wire_entry entry;
    struct stat st;
    size_t length;
    const char *name = body + sizeof link;
    if (size < sizeof link || !name_of(name, size - sizeof link, &length))
        return reply_error(in, -EINVAL), DONE;
    memcpy(&link, body, sizeof link);
    struct who who = thread_who(in->pid);
    struct record record = {.kind = LINKED, .actor = who.actor};
    lock();
    struct node *node = table_get(link.oldnodeid);
    if (!node || !who.group || node->own != who.group || node->own_epoch != shared->own_epoch || node->kind != S_IFREG
        || node->making || !node->names || !atomic_load(&lane.making) || !record_reserve())
        node = NULL;
    if (node)
        node_hold(node);
    unlock();
    if (node == NULL)
        return FORWARD;
    int dir = dir_acquire(parent), fd = dir < 0 ? dir : node_open(node, O_PATH);
    lock();
    bool told = record_path(&record, parent, name, length);
    unlock();
    if (fd < 0 || !told) {
        lock();
        slot_free(record.path);
        unlock();
        if (fd >= 0)
            close(fd);
        if (dir >= 0)
            dir_release(parent);
        give_up(node);
        return FORWARD;
    }
    char path[40];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    /* By descriptor: this very inode, whatever its old name leads to now. */
    journal_begin(in->unique, in->opcode, node->ino, 0, 0);
    int error = linkat(AT_FDCWD, path, dir, name, AT_SYMLINK_FOLLOW) < 0 || fstat(fd, &st) < 0 ? -errno : 0;
    close(fd);
    die(DONE_ON_DISK);
    lock();
    record.node = node;
    told = !error;
    if (told)
        record_push(record); /* before the table says so */
    if (!error && !name_add(node, parent, name, length))
        error = -ENOMEM;
    if (error && !told) {
        record_cancel();
        slot_free(record.path);
    } else if (!error) {
        parent->mutations++;
        node->lookups++;
        entry_fill(&entry, parent, node, &st);
    }
    uint64_t id = node->id;
    node_release(node);
    unlock();
    die(IN_THE_TABLE);
    dir_release(parent);
    if (error)
        reply_error(in, error);
    else if (!reply(in, &entry, sizeof entry))
        take_back(id);
    return DONE;
}
