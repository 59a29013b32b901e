/* Changes from behind: what others do to the backing directory past the mount.
 *
 *   fanotify ──► `reader` ──┬─► `teller`: the kernel forgets what it believed (FUSE_NOTIFY_*)
 *                           └─► a queue for Python: what happened, where, and who did it
 *
 * Every directory that the kernel is told about carries a mark of its own before anything in it is
 * looked at (`watch_dir`), so a change is either seen by that look or reported after it. A mark on
 * the whole filesystem would be simpler, and make everybody on that disk pay. Our own changes come
 * back with our own process id, and are dropped first thing.
 *
 * What the kernel believes is taken back by a thread of its own: such a notification waits for inode
 * locks that a caller may hold who waits for us. It is sent once more a moment later, since a reply
 * that was on its way the first time may bring the old state back.
 *
 * Linux 5.17 (FAN_RENAME); without privileges, too, where the author then is not told.
 */
#include "lane.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/fanotify.h>
#include <sys/statfs.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#ifndef FAN_RENAME
#define FAN_RENAME 0x10000000
#endif
enum { INFO_DFID_NAME = 2, INFO_OLD_DFID_NAME = 10, INFO_NEW_DFID_NAME = 12 };
enum { HANDLE_FID = 0x200 }; /* AT_HANDLE_FID, Linux 6.5: a handle that need not be opened again */

#define NAMES (FAN_CREATE | FAN_DELETE | FAN_RENAME)
#define DATA (FAN_MODIFY | FAN_CLOSE_WRITE)
#define MASK (NAMES | DATA | FAN_ATTRIB | FAN_ONDIR | FAN_EVENT_ON_CHILD)

enum {
    MAX_CHANGES = 65536,        /* that Python has not taken */
    MAX_TELLS = 100000,         /* more than that: everything is invalidated at once */
    AGAIN_NS = 40 * 1000000,
    PAUSE_NS = 1000000,         /* between two reads: equal events merge meanwhile */
    LONGEST_PAUSE_NS = 10 * 1000000, /* when all of them are ours */
};

static int group = -1, nudge = -1, mount_fd = -1;
static int device = -1; /* the teller's own: that of the lane may be closed under its hands */
static atomic_int refused_error;
enum { OWN, FOREIGN, OVERFLOWS, LOST, REFUSALS };

static void count(unsigned which) { atomic_fetch_add_explicit(&shared->watching[which], 1, memory_order_relaxed); }

/* ---- which directory an event is about ----
 *
 * An event names it by filesystem id and file handle: these bytes are the key, as the event has them.
 * Guarded by the table's lock. */

enum { KEY_MAX = 16 + MAX_HANDLE_SZ };
static struct watch **watches;
static uint64_t watch_buckets, watch_count;
static struct watch *dead; /* their marks have to go */

/* Adding marks and taking them away, which a node that comes back must not suffer from. */
static pthread_mutex_t marking = PTHREAD_MUTEX_INITIALIZER;

static uint32_t key_hash(const unsigned char *key, size_t size)
{
    uint64_t h = 0xcbf29ce484222325ULL;
    for (size_t i = 0; i < size; i++)
        h = (h ^ key[i]) * 0x100000001b3ULL;
    return (uint32_t)(h ^ h >> 32);
}

static struct watch *watch_find(const unsigned char *key, size_t size)
{
    if (watches == NULL)
        return NULL;
    uint32_t hash = key_hash(key, size);
    struct watch *w = watches[hash & (watch_buckets - 1)];
    while (w && (w->hash != hash || w->size != size || memcmp(w->key, key, size) != 0))
        w = w->chain;
    return w;
}

static void watch_unhash(struct watch *w)
{
    struct watch **at = &watches[w->hash & (watch_buckets - 1)];
    while (*at != w)
        at = &(*at)->chain;
    *at = w->chain;
    w->chain = NULL;
    watch_count--;
}

static bool watch_insert(struct watch *w)
{
    if (watch_count >= watch_buckets) {
        uint64_t size = watch_buckets ? watch_buckets * 2 : 1024;
        struct watch **wider = calloc(size, sizeof *wider);
        if (wider == NULL && watches == NULL)
            return false;
        if (wider) {
            for (uint64_t i = 0; i < watch_buckets; i++)
                for (struct watch *old = watches[i], *next; old; old = next) {
                    next = old->chain;
                    old->chain = wider[old->hash & (size - 1)];
                    wider[old->hash & (size - 1)] = old;
                }
            free(watches);
            watches = wider, watch_buckets = size;
        }
    }
    w->chain = watches[w->hash & (watch_buckets - 1)];
    watches[w->hash & (watch_buckets - 1)] = w;
    watch_count++;
    return true;
}

/* Others may change these without this kernel's knowing. */
static bool is_shared(const struct statfs *fs)
{
    static const uint32_t types[] = {
        0x6969 /* nfs */,       0xff534d42 /* cifs */,   0xfe534d42 /* smb2 */,      0x517b /* smb */,
        0x01021997 /* 9p */,    0x65735546 /* fuse */,   0x00c36400 /* ceph */,      0x0bd00bd0 /* lustre */,
        0x7461636f /* ocfs2 */, 0x01161970 /* gfs2 */,   0x5346414f /* afs */,       0x6b414653 /* kafs */,
        0x73757245 /* coda */,  0x786f4256 /* vboxsf */, 0x19830326 /* fhgfs */,     0x47504653 /* gpfs */,
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if ((uint32_t)fs->f_type == types[i])
            return true;
    return false;
}

/* 0 or errno: it cannot be watched. */
static int key_of(int fd, unsigned char key[KEY_MAX], uint32_t *size)
{
    struct statfs fs;
    union {
        struct file_handle handle;
        unsigned char room[sizeof(struct file_handle) + MAX_HANDLE_SZ];
    } h;
    int mount_id;
    if (fstatfs(fd, &fs) < 0)
        return errno;
    if (is_shared(&fs))
        return EREMOTE;
    h.handle.handle_bytes = MAX_HANDLE_SZ;
    if (name_to_handle_at(fd, "", &h.handle, &mount_id, AT_EMPTY_PATH | HANDLE_FID) < 0) {
        h.handle.handle_bytes = MAX_HANDLE_SZ;
        if (errno != EINVAL || name_to_handle_at(fd, "", &h.handle, &mount_id, AT_EMPTY_PATH) < 0)
            return errno;
    }
    *size = 16 + h.handle.handle_bytes;
    memcpy(key, &fs.f_fsid, 8);
    memcpy(key + 8, &h.handle, *size - 8);
    return 0;
}

/* With the lock held; in the hash, and not live. */
static struct watch *watch_make(struct node *node, const unsigned char *key, uint32_t size)
{
    struct watch *w = slot_take(sizeof *w + size);
    if (w == NULL)
        return NULL;
    w->id = node->id, w->size = size;
    memcpy(w->key, key, size);
    w->hash = key_hash(w->key, size);
    if (!watch_insert(w)) {
        slot_free(w);
        return NULL;
    }
    node->watch = w;
    return w;
}

static int mark(struct node *node, int fd)
{
    unsigned char key[KEY_MAX];
    uint32_t size = 0;
    int error = key_of(fd, key, &size);
    if (error)
        return error;
    lock();
    struct watch *before = watch_find(key, size); /* of a node that is another's now */
    struct node *older = before ? table_get(before->id) : NULL;
    if (before) {
        watch_unhash(before);
        slot_free(before);
    }
    if (older) {
        older->watch = NULL;
        atomic_store(&older->watched, UNWATCHED);
    }
    struct watch *w = watch_make(node, key, size);
    unlock();
    if (w == NULL)
        return ENOMEM;
    error = fanotify_mark(group, FAN_MARK_ADD | FAN_MARK_ONLYDIR, MASK, fd, ".") == 0 ? 0 : errno;
    lock();
    if (node->watch == w && error) {
        node->watch = NULL;
        watch_unhash(w);
        slot_free(w);
    } else if (node->watch == w) {
        slot_live(w, WATCH_SLOT); /* there is a mark to rely on */
    }
    unlock();
    return error;
}

bool watch_dir(struct node *node, int fd)
{
    int state = atomic_load(&node->watched);
    if (state != UNWATCHED || group < 0)
        return state == WATCHED;
    pthread_mutex_lock(&marking);
    if (atomic_load(&node->watched) == UNWATCHED) {
        int error = mark(node, fd);
        if (error) {
            count(REFUSALS);
            atomic_store(&refused_error, error);
        }
        atomic_store(&node->watched, error ? REFUSED : WATCHED);
    }
    pthread_mutex_unlock(&marking);
    return atomic_load(&node->watched) == WATCHED;
}

bool watch_wanted(const struct node *node)
{
    return group >= 0 && node->kind == S_IFDIR && atomic_load(&node->watched) == UNWATCHED;
}

bool watch_node(struct node *node)
{
    if (!watch_wanted(node))
        return atomic_load(&node->watched) == WATCHED;
    int fd = dir_acquire(node);
    if (fd < 0)
        return false;
    bool watched = watch_dir(node, fd);
    dir_release(node);
    return watched;
}

void watch_forget(struct node *node)
{
    struct watch *w = node->watch;
    if (w == NULL)
        return;
    uint64_t one = 1;
    node->watch = NULL;
    watch_unhash(w);
    w->chain = dead;
    if (dead == NULL && write(nudge, &one, sizeof one) < 0)
        (void)0; /* full: it is readable */
    dead = w;
}

/* Nobody knows the directories any more, and nobody shall pay for them. Of one that is gone the mark is, too. */
static void unmark_dead(void)
{
    uint64_t count;
    if (read(nudge, &count, sizeof count) < 0)
        return;
    lock();
    struct watch *w = dead;
    dead = NULL;
    unlock();
    while (w) {
        struct watch *next = w->chain;
        pthread_mutex_lock(&marking);
        lock();
        bool again = watch_find(w->key, w->size) != NULL;
        unlock();
        int fd = again ? -1 : open_by_handle_at(mount_fd, (struct file_handle *)(void *)(w->key + 8), O_PATH | O_CLOEXEC);
        if (fd >= 0) {
            fanotify_mark(group, FAN_MARK_REMOVE, MASK, fd, ".");
            close(fd);
        }
        pthread_mutex_unlock(&marking);
        lock();
        slot_free(w);
        unlock();
        w = next;
    }
}

/* ---- what Python is told ---- */

static pthread_mutex_t change_lock = PTHREAD_MUTEX_INITIALIZER;
static struct change *first_change, *last_change;
static atomic_uint change_count;

static void change_add(uint64_t mask, int pid, const char *path, size_t length, const char *second, size_t second_length)
{
    struct timespec t;
    if (atomic_load(&change_count) >= MAX_CHANGES) {
        count(LOST);
        return;
    }
    struct change *c = malloc(sizeof *c + length + second_length);
    if (c == NULL) {
        count(LOST);
        return;
    }
    clock_gettime(CLOCK_REALTIME, &t);
    *c = (struct change){.mask = mask, .pid = pid, .time = t.tv_sec * 1000000000LL + t.tv_nsec,
                         .has_first = path != NULL, .has_second = second != NULL,
                         .first = (uint32_t)length, .second = (uint32_t)second_length};
    memcpy(c->text, path ? path : "", length);
    memcpy(c->text + length, second ? second : "", second_length);
    pthread_mutex_lock(&change_lock);
    if (last_change)
        last_change->next = c;
    else
        first_change = c;
    last_change = c;
    atomic_fetch_add(&change_count, 1);
    pthread_mutex_unlock(&change_lock);
}

struct change *change_take(void)
{
    pthread_mutex_lock(&change_lock);
    struct change *c = first_change;
    if (c) {
        first_change = c->next;
        if (first_change == NULL)
            last_change = NULL;
        atomic_fetch_sub(&change_count, 1);
    }
    pthread_mutex_unlock(&change_lock);
    return c;
}

unsigned changes_pending(void) { return atomic_load(&change_count); }

/* Who it is has to be asked at once: a short command has ended by the time that Python gets to it. */

enum { AUTHORS = 64, AUTHOR_NS = 1000000000, AUTHOR_TEXT = 262144 };
static struct {
    int pid;
    int64_t until;
} authors[AUTHORS]; /* the reader's */

/* Field 20 (num_threads) of proc(5). */
static long threads_of(char *stat)
{
    char *at = strrchr(stat, ')');
    for (int field = 2; at && field < 20; field++)
        at = strchr(at + 1, ' ');
    return at ? strtol(at + 1, NULL, 10) : 0;
}

/* A child of ours has copies of our descriptors until it executes its program. What we were just writing
 * is then closed by it, and would seem to be its work. Such children are noted before their events are read. */
static const int64_t CHILD_NS = 5000000000; /* somebody else may come to read of it */
static pthread_mutex_t reading = PTHREAD_MUTEX_INITIALIZER;

void watch_hold(void) { pthread_mutex_lock(&reading); }

void watch_let_go(int child)
{
    if (child > 0) {
        unsigned at = shared->next_child++ % CHILDREN;
        shared->children[at].pid = child, shared->children[at].until = monotonic_ns() + CHILD_NS;
    }
    pthread_mutex_unlock(&reading);
}

static bool is_child(int pid)
{
    for (unsigned i = 0; i < CHILDREN; i++)
        if (shared->children[i].pid == pid && monotonic_ns() < shared->children[i].until)
            return true;
    return false;
}

/* Who has served before us may have events in the queue; later, the number may be another's. */
static const int64_t DEAD_NS = 5000000000;
static int64_t dead_until; /* counted from when events are read */

/* It may have died between a child's fork and being told its number. */
static bool one_died(void) { return shared->pids[0] && monotonic_ns() < dead_until; }

static bool is_ours(int pid)
{
    if (pid == shared->pid)
        return true;
    for (unsigned i = 0; i < PIDS && monotonic_ns() < dead_until; i++)
        if (shared->pids[i] && shared->pids[i] == pid)
            return true;
    return false;
}

void watch_before(int pid)
{
    for (unsigned i = PIDS - 1; i > 0; i--)
        shared->pids[i] = shared->pids[i - 1];
    shared->pids[0] = pid;
}

static void author_note(int pid)
{
    /* The last two take a lock of the process's address space, which another of its threads may hold for
     * however long: then that is left to Python, which has the patience. */
    static const char *const names[] = {"stat", "cgroup", "cmdline", "environ"};
    enum { UNLOCKED = 2 };
    unsigned most = UNLOCKED;
    int64_t now = monotonic_ns();
    unsigned place = (unsigned)pid % AUTHORS;
    if (pid <= 0 || (authors[place].pid == pid && now < authors[place].until))
        return;
    authors[place].pid = pid, authors[place].until = now + AUTHOR_NS;
    char *text = malloc(AUTHOR_TEXT + 1);
    for (unsigned i = 0; text && i < most; i++) {
        char path[40];
        snprintf(path, sizeof path, "/proc/%d/%s", pid, names[i]);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        size_t size = 0;
        ssize_t got = 0;
        while (fd >= 0 && size < AUTHOR_TEXT && (got = read(fd, text + size, AUTHOR_TEXT - size)) > 0)
            size += (size_t)got;
        if (fd >= 0)
            close(fd);
        text[size] = 0;
        if (i == 0 && threads_of(text) == 1)
            most = sizeof names / sizeof *names;
        if (size)
            change_add(CHANGE_AUTHOR, pid, names[i], strlen(names[i]), text, size);
    }
    free(text);
}

/* ---- what the kernel is told ---- */

enum { NOTIFY_INODE = 2, NOTIFY_ENTRY = 3, NOTIFY_EPOCH = 8 /* Linux 6.16 */, EXPIRE_ONLY = 1 };
enum { TELL_NAME = 1, TELL_ATTR = 2, TELL_DATA = 4, TELL_LOOK = 8, TELL_ALL = 16 };

struct tell {
    struct tell *next;
    int64_t due; /* CLOCK_MONOTONIC, ns; 0: at once */
    uint64_t parent, child;
    uint32_t what, length;
    char name[];
};
static pthread_mutex_t tell_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t tell_news = PTHREAD_COND_INITIALIZER;
static struct tell *first_tell, *last_tell, *first_again, *last_again;
static unsigned tell_count;

static void notify(int code, const void *body, size_t size, const char *name, size_t length)
{
    struct wire_out out = {.len = (uint32_t)(sizeof out + size + length), .error = code};
    struct iovec parts[3] = {{&out, sizeof out}, {(void *)body, size}, {(void *)name, length}};
    while (writev(device, parts, name ? 3 : 2) < 0 && errno == EINTR)
        ; /* ENOENT: it does not know it */
}

static void notify_inode(uint64_t id, int64_t offset)
{
    struct {
        uint64_t id;
        int64_t offset, length;
    } body = {id, offset, 0};
    notify(NOTIFY_INODE, &body, sizeof body, NULL, 0);
}

/* The name is asked for anew; who works in a directory of that name goes on. */
static void notify_name(uint64_t parent, const char *name, size_t length)
{
    struct {
        uint64_t parent;
        uint32_t length, flags;
    } body = {parent, (uint32_t)length, EXPIRE_ONLY};
    notify(NOTIFY_ENTRY, &body, sizeof body, name, length + 1);
}

static struct tell *tell_make(uint32_t what, uint64_t parent, uint64_t child, const char *name, size_t length)
{
    struct tell *t = calloc(1, sizeof *t + length + 1);
    if (t == NULL)
        return NULL;
    t->what = what, t->parent = parent, t->child = child, t->length = (uint32_t)length;
    memcpy(t->name, name, length);
    return t;
}

static void tell_push(struct tell *t)
{
    if (t == NULL)
        return;
    pthread_mutex_lock(&tell_lock);
    if (tell_count >= MAX_TELLS) {
        while (first_tell) {
            struct tell *next = first_tell->next;
            free(first_tell);
            first_tell = next;
        }
        last_tell = NULL, tell_count = 0;
        t->what = TELL_ALL;
    }
    if (last_tell)
        last_tell->next = t;
    else
        first_tell = t;
    last_tell = t;
    tell_count++;
    pthread_cond_signal(&tell_news);
    pthread_mutex_unlock(&tell_lock);
}

/* Events were lost: nothing that the kernel was told holds. */
struct ids {
    uint64_t *ids, count, room;
};
static void collect(void *with, struct node *node)
{
    struct ids *all = with;
    if (all->count < all->room)
        all->ids[all->count++] = node->id;
}

static void tell_all(void)
{
    struct ids all = {0};
    notify(NOTIFY_EPOCH, NULL, 0, NULL, 0); /* every name, also of what is not there */
    lock();
    all.room = table_size();
    all.ids = malloc(all.room * sizeof *all.ids);
    if (all.ids)
        table_each(collect, &all);
    unlock();
    for (uint64_t i = 0; i < all.count; i++) {
        lock();
        struct node *node = table_get(all.ids[i]);
        struct name *name = node ? node->names : NULL;
        struct tell *t = name ? tell_make(0, name->parent->id, 0, name->text, name->length) : NULL;
        unlock();
        if (t)
            notify_name(t->parent, t->name, t->length);
        free(t);
        notify_inode(all.ids[i], 0);
    }
    free(all.ids);
}

/* What is there under the name now? A lying name is dropped; an inode that is known by other names has changed. */
static void look_at(struct tell *t)
{
    struct stat st;
    lock();
    struct node *parent = table_get(t->parent);
    if (parent)
        node_hold(parent);
    unlock();
    if (parent == NULL)
        return;
    uint64_t epoch = atomic_load(&lane.names_epoch), found = 0;
    int dir = dir_acquire(parent);
    int error = dir < 0 ? dir : fstatat(dir, t->name, &st, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
    if (dir >= 0)
        dir_release(parent);
    lock();
    struct name *name = name_find(parent, t->name, t->length);
    if (name && !(epoch & 1) && atomic_load(&lane.names_epoch) == epoch
        && (error == -ENOENT || (!error && !node_is(name->child, &st)))) {
        struct node *child = name->child;
        node_hold(child);
        name_remove(child, parent, t->name, t->length);
        node_release(child);
    }
    struct node *node = error ? NULL : table_find(st.st_dev, st.st_ino);
    if (node)
        found = node->id;
    node_release(parent);
    unlock();
    if (found && found != t->child)
        notify_inode(found, t->what & TELL_DATA ? 0 : -1);
}

static void tell(struct tell *t)
{
    if (t->what & TELL_ALL) {
        tell_all();
        return;
    }
    if (t->what & TELL_NAME) {
        notify_name(t->parent, t->name, t->length);
        notify_inode(t->parent, 0);
    }
    if (t->child)
        notify_inode(t->child, t->what & TELL_DATA ? 0 : -1);
    if (t->what & TELL_LOOK)
        look_at(t);
}

static bool same_tell(const struct tell *a, const struct tell *b)
{
    return a && a->what == b->what && a->parent == b->parent && a->child == b->child && a->length == b->length
           && memcmp(a->name, b->name, a->length) == 0;
}

static bool telling; /* with tell_lock */

static void *teller(void *unused)
{
    int ours = device;
    pthread_mutex_lock(&tell_lock);
    while (!atomic_load(&lane.over) && !atomic_load(&lane.unwatching)) {
        struct tell *t = first_tell;
        if (t) {
            first_tell = t->next;
            if (first_tell == NULL)
                last_tell = NULL;
            tell_count--;
        } else if (first_again && first_again->due <= monotonic_ns()) {
            t = first_again;
            first_again = t->next;
            if (first_again == NULL)
                last_again = NULL;
        } else if (first_again) {
            struct timespec until;
            clock_gettime(CLOCK_REALTIME, &until);
            until.tv_nsec += AGAIN_NS / 4;
            until.tv_sec += until.tv_nsec / 1000000000, until.tv_nsec %= 1000000000;
            pthread_cond_timedwait(&tell_news, &tell_lock, &until);
            continue;
        } else {
            pthread_cond_wait(&tell_news, &tell_lock);
            continue;
        }
        pthread_mutex_unlock(&tell_lock);
        tell(t);
        pthread_mutex_lock(&tell_lock);
        if (t->due) {
            free(t);
            continue;
        }
        t->due = monotonic_ns() + AGAIN_NS, t->next = NULL;
        if (same_tell(last_again, t)) {
            last_again->due = t->due;
            free(t);
        } else {
            if (last_again)
                last_again->next = t;
            else
                first_again = t;
            last_again = t;
        }
    }
    telling = false;
    pthread_mutex_unlock(&tell_lock);
    close(ours);
    atomic_fetch_sub(&lane.watching, 1);
    return unused;
}

void watch_end(void)
{
    uint64_t one = 1;
    pthread_mutex_lock(&tell_lock);
    pthread_cond_signal(&tell_news);
    pthread_mutex_unlock(&tell_lock);
    if (nudge >= 0 && write(nudge, &one, sizeof one) < 0)
        (void)0;
}

void watch_expire(uint64_t parent, const char *name, size_t length)
{
    tell_push(tell_make(TELL_NAME, parent, 0, name, length));
}

/* ---- events ---- */

struct where { /* one of an event's places */
    const unsigned char *key;
    size_t key_size;
    const char *name;
    size_t length;
    bool there;
};

struct text {
    char *mem;
    size_t length;
};

static void first_path(void *with, const char *path, size_t size)
{
    struct text *t = with;
    if (t->mem || (t->mem = malloc(size + 1)) == NULL)
        return;
    memcpy(t->mem, path, size);
    t->length = size;
}

/* DIRECTORY/name, or just the directory. With the lock held; mem NULL: it has no path. */
static struct text path_of(struct node *dir, const char *name, size_t length)
{
    struct text t = {0};
    node_paths(dir, first_path, &t);
    if (t.mem == NULL || length == 0)
        return t;
    char *longer = realloc(t.mem, t.length + length + 2);
    if (longer == NULL) {
        free(t.mem);
        return (struct text){0};
    }
    if (t.length)
        longer[t.length++] = '/';
    memcpy(longer + t.length, name, length);
    return (struct text){longer, t.length + length};
}

/* Somebody else changed what is at one place; its path, if it has one. */
static struct text at_place(uint64_t mask, const struct where *w, uint64_t *dir)
{
    struct text path = {0};
    uint64_t id = 0, child_id = 0;
    bool itself = w->length == 1 && w->name[0] == '.';
    size_t length = itself ? 0 : w->length;
    lock();
    struct watch *watch = watch_find(w->key, w->key_size);
    struct node *node = watch ? table_get(watch->id) : NULL;
    if (node) {
        id = node->id;
        path = path_of(node, w->name, length);
        if (mask & NAMES)
            node->mutations++, node->removals++;
        struct name *name = length ? name_find(node, w->name, length) : NULL;
        struct node *child = length ? (name ? name->child : NULL) : node;
        if (child) {
            child_id = child->id;
            child->look_actor = 0; /* who looks now looks at something new */
            node_hold(child);
            grant_revoke(child);
            child->own = 0;
            node_release(child);
        }
    }
    unlock();
    if (id && (child_id || length)) {
        uint32_t what = mask & NAMES && length ? TELL_NAME | TELL_LOOK : child_id ? 0 : TELL_LOOK;
        what |= mask & DATA ? TELL_DATA : TELL_ATTR;
        tell_push(tell_make(what, id, child_id, w->name, length));
    }
    *dir = id;
    return path;
}

static bool still_there(uint64_t dir, const char *name, size_t length)
{
    struct stat st;
    char text[256 * 4];
    lock();
    struct node *node = table_get(dir);
    if (node)
        node_hold(node);
    unlock();
    if (node == NULL || length >= sizeof text)
        return false;
    memcpy(text, name, length);
    text[length] = 0;
    int fd = dir_acquire(node);
    bool there = fd >= 0 && fstatat(fd, text, &st, AT_SYMLINK_NOFOLLOW) == 0;
    if (fd >= 0)
        dir_release(node);
    lock();
    node_release(node);
    unlock();
    return there;
}

static void happened(uint64_t mask, int pid, struct where *from, struct where *to)
{
    uint64_t dir = 0, other = 0;
    struct text first = from->there ? at_place(mask, from, &dir) : (struct text){0};
    struct text second = to->there ? at_place(mask, to, &other) : (struct text){0};
    if (mask & FAN_CREATE && mask & FAN_DELETE && dir && still_there(dir, from->name, from->length))
        mask |= CHANGE_THERE; /* equal events merge, and lose their order */
    if (first.mem || second.mem)
        change_add(mask, pid, first.mem, first.length, second.mem, second.length);
    free(first.mem);
    free(second.mem);
}

static bool read_info(const char *at, size_t size, struct where *w)
{
    uint32_t handle_bytes;
    if (size < 4 + 16)
        return false;
    memcpy(&handle_bytes, at + 4 + 8, sizeof handle_bytes);
    if (handle_bytes > MAX_HANDLE_SZ || 4 + 16 + (size_t)handle_bytes > size)
        return false;
    w->key = (const unsigned char *)at + 4;
    w->key_size = 16 + handle_bytes;
    w->name = at + 4 + w->key_size;
    w->length = strnlen(w->name, size - 4 - w->key_size);
    w->there = w->length < size - 4 - w->key_size;
    return w->there;
}

bool watch_events(const char *buffer, size_t size)
{
    bool foreign = false;
    struct fanotify_event_metadata e;
    for (size_t at = 0; at + sizeof e <= size; at += e.event_len) {
        memcpy(&e, buffer + at, sizeof e);
        if (e.event_len < sizeof e || e.event_len > size - at || e.metadata_len < sizeof e || e.metadata_len > e.event_len
            || e.vers != FANOTIFY_METADATA_VERSION)
            break;
        if (e.mask & FAN_Q_OVERFLOW) {
            count(OVERFLOWS);
            tell_push(tell_make(TELL_ALL, 0, 0, "", 0));
            change_add(e.mask, 0, "", 0, NULL, 0);
            foreign = true;
            continue;
        }
        if (is_ours(e.pid) || (e.mask == FAN_CLOSE_WRITE && (is_child(e.pid) || one_died()))) {
            count(OWN);
            continue;
        }
        struct where from = {0}, to = {0};
        for (size_t i = at + e.metadata_len; i + 4 <= at + e.event_len;) {
            uint16_t length;
            memcpy(&length, buffer + i + 2, sizeof length);
            if (length < 4 || length > at + e.event_len - i)
                break;
            uint8_t type = (uint8_t)buffer[i];
            if (type == INFO_DFID_NAME || type == INFO_OLD_DFID_NAME || type == INFO_NEW_DFID_NAME)
                read_info(buffer + i, length, type == INFO_NEW_DFID_NAME ? &to : &from);
            i += length;
        }
        if (!from.there && !to.there)
            continue;
        count(FOREIGN);
        author_note(e.pid);
        happened(e.mask, e.pid, &from, &to);
        foreign = true;
    }
    if (foreign)
        queue_wake();
    return foreign;
}

static bool listening; /* with `reading` */

static bool goes_on_listening(void)
{
    pthread_mutex_lock(&reading);
    bool on = listening = !atomic_load(&lane.over) && !atomic_load(&lane.unwatching);
    pthread_mutex_unlock(&reading);
    return on;
}

static void *reader(void *buffer)
{
    long pause = PAUSE_NS;
    while (goes_on_listening()) {
        struct pollfd p[2] = {{.fd = group, .events = POLLIN}, {.fd = nudge, .events = POLLIN}};
        if (poll(p, 2, -1) < 0 && errno != EINTR)
            break;
        if (p[1].revents)
            unmark_dead();
        if (!p[0].revents)
            continue;
        bool foreign = false;
        ssize_t got;
        pthread_mutex_lock(&reading);
        while ((got = read(group, buffer, WATCH_BUFFER)) > 0) {
            foreign |= watch_events(buffer, (size_t)got);
            if (got < WATCH_BUFFER / 2)
                break;
        }
        pthread_mutex_unlock(&reading);
        pause = foreign ? PAUSE_NS : pause * 2 < LONGEST_PAUSE_NS ? pause * 2 : LONGEST_PAUSE_NS;
        struct timespec t = {.tv_nsec = pause};
        nanosleep(&t, NULL);
    }
    free(buffer);
    atomic_fetch_sub(&lane.watching, 1);
    return NULL;
}

/* ---- set-up ---- */

static bool prepare(void)
{
    shared->pid = getpid();
    nudge = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    mount_fd = openat(lane.root_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return nudge >= 0;
}

int watch_start(void)
{
    unsigned flags = FAN_CLASS_NOTIF | FAN_CLOEXEC | FAN_NONBLOCK | FAN_REPORT_DFID_NAME;
    if (!prepare())
        return errno;
    group = fanotify_init(flags | FAN_UNLIMITED_MARKS, O_RDONLY | O_CLOEXEC);
    if (group < 0 && errno == EPERM)
        group = fanotify_init(flags, O_RDONLY | O_CLOEXEC);
    if (group < 0)
        return errno;
    shared->watch_fd = group;
    if (watch_dir(table_root(), lane.root_fd))
        return 0;
    shared->watch_fd = -1;
    close(group);
    group = -1;
    return atomic_load(&refused_error);
}

bool watch_serve(void)
{
    pthread_t thread;
    if (group < 0)
        return true;
    /* After a pause that did not come about one of the two may have ended, and the other not. */
    pthread_mutex_lock(&tell_lock);
    pthread_mutex_lock(&reading);
    atomic_store(&lane.unwatching, false);
    bool listens = listening, tells = telling;
    pthread_mutex_unlock(&reading);
    pthread_mutex_unlock(&tell_lock);
    if (!listens) {
        void *buffer = malloc(WATCH_BUFFER);
        dead_until = monotonic_ns() + DEAD_NS;
        listening = true;
        if (buffer == NULL || pthread_create(&thread, NULL, reader, buffer) != 0) {
            listening = false;
            free(buffer);
            return false;
        }
        pthread_detach(thread);
        atomic_fetch_add(&lane.watching, 1);
    }
    if (!tells) {
        device = fcntl(lane.device, F_DUPFD_CLOEXEC, 3);
        telling = true;
        if (device < 0 || pthread_create(&thread, NULL, teller, NULL) != 0) {
            telling = false;
            return false;
        }
        pthread_detach(thread);
        atomic_fetch_add(&lane.watching, 1);
    }
    return true;
}

/* ---- a program goes on with what another one has watched: the marks are the descriptor's ---- */

int watch_descriptor(void) { return group; }

bool watch_adopt(int fd)
{
    if (!prepare())
        return false;
    group = shared->watch_fd = fd;
    return true;
}

const unsigned char *watch_key(const struct node *node, uint32_t *size)
{
    *size = node->watch ? node->watch->size : 0;
    return node->watch ? node->watch->key : NULL;
}

bool watch_restore(struct node *node, const unsigned char *key, uint32_t size)
{
    struct watch *w = size <= KEY_MAX ? watch_make(node, key, size) : NULL;
    if (w == NULL)
        return false;
    slot_live(w, WATCH_SLOT);
    atomic_store(&node->watched, WATCHED);
    return true;
}

void watch_link(struct watch *w, struct node *node)
{
    uint64_t one = 1;
    w->hash = key_hash(w->key, w->size), w->chain = NULL;
    if (node && (node->watch || watch_find(w->key, w->size)))
        node = NULL;
    if (node && watch_insert(w)) {
        node->watch = w;
        atomic_store(&node->watched, WATCHED);
        return;
    }
    w->chain = dead; /* its mark has to go */
    dead = w;
    if (write(nudge, &one, sizeof one) < 0)
        (void)0;
}

void watch_lost(void)
{
    if (group < 0)
        return;
    tell_push(tell_make(TELL_ALL, 0, 0, "", 0));
    change_add(FAN_Q_OVERFLOW, 0, "", 0, NULL, 0);
}

void tells_each(void (*each)(void *, uint32_t, uint64_t, uint64_t, const char *, size_t), void *with)
{
    pthread_mutex_lock(&tell_lock);
    for (struct tell *t = first_again; t; t = t->next)
        each(with, t->what, t->parent, t->child, t->name, t->length);
    for (struct tell *t = first_tell; t; t = t->next)
        each(with, t->what, t->parent, t->child, t->name, t->length);
    pthread_mutex_unlock(&tell_lock);
}

void tell_restore(uint32_t what, uint64_t parent, uint64_t child, const char *name, size_t length)
{
    tell_push(tell_make(what, parent, child, name, length));
}

void watch_counters(uint64_t counters[WATCH_COUNTERS], bool restore)
{
    for (unsigned i = 0; i < WATCH_COUNTERS; i++)
        if (restore)
            atomic_store(&shared->watching[i], counters[i]);
        else
            counters[i] = atomic_load(&shared->watching[i]);
}

struct watch_load watch_load(void)
{
    uint64_t counted[WATCH_COUNTERS];
    lock();
    uint64_t directories = watch_count;
    unlock();
    watch_counters(counted, false);
    return (struct watch_load){
        .on = group >= 0, .directories = directories, .own = counted[OWN], .foreign = counted[FOREIGN],
        .overflows = counted[OVERFLOWS], .lost = counted[LOST], .refused = counted[REFUSALS],
        .error = atomic_load(&refused_error),
    };
}
