/* All that the lane knows, as bytes: for the program that takes this one's place (`fsguard restart`).
 *
 * The kernel goes on using the node ids and handles that it was given, so they come through as they
 * are, with their descriptors, which exec(2) leaves open. What is only a memory of something
 * (descriptors of directories, listings, who a thread is, grants) is made anew.
 *
 * Written and read with the threads ended and every record taken. The form is this program's own: its
 * number moves with it, and Python asks for it before anything is given up.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "lane.h"

#include <stdlib.h>
#include <string.h>

enum { NO_LOOK = 0x80000000u }; /* of no record */
static const char magic[8] = "fsglane1";

struct head {
    char magic[8];
    uint64_t next_id, next_fh, nodes, names, handles, misses, devices, tells, forwarded;
    uint64_t counts[64], watching[WATCH_COUNTERS];
    int32_t watch_fd, all_misses;
};
struct node_out {
    uint64_t id, dev, ino, lookups, removals;
    uint32_t kind, key_size; /* its name in events follows */
    int32_t pinned_fd, keyed;
};
struct name_out {
    uint64_t parent, child, length; /* the text follows */
};
struct handle_out {
    uint64_t fh, node;
    int64_t made_at;
    uint32_t actor, group, tid, flags;
    int32_t fd;
    uint8_t has_read, pythons, pad[2];
};

struct tell_out {
    uint64_t parent, child, length; /* the name follows */
    uint32_t what, pad;
};

struct out {
    struct gather bytes, fds;
    struct head head;
};

static void put(struct out *o, const void *data, size_t size) { gather(&o->bytes, data, size); }

static void put_fd(struct out *o, int fd)
{
    if (fd >= 0)
        gather(&o->fds, &fd, sizeof fd);
}

static void put_node(void *with, struct node *n)
{
    struct out *o = with;
    uint32_t size;
    const unsigned char *key = watch_key(n, &size);
    struct node_out x = {
        .id = n->id, .dev = n->dev, .ino = n->ino, .lookups = n->lookups, .removals = n->removals, .kind = n->kind,
        .key_size = size, .pinned_fd = n->pinned ? n->fd : -1, .keyed = n->keyed,
    };
    put(o, &x, sizeof x);
    put(o, key, size);
    put_fd(o, x.pinned_fd);
    o->head.nodes++;
}

static void put_names(void *with, struct node *n)
{
    struct out *o = with;
    for (struct name *name = n->names; name; name = name->next) {
        struct name_out x = {name->parent->id, n->id, name->length};
        put(o, &x, sizeof x);
        put(o, name->text, name->length);
        o->head.names++;
    }
}

static void put_handle(void *with, const struct handle *h)
{
    struct out *o = with;
    struct handle_out x = {
        .fh = h->fh, .node = h->node->id, .made_at = h->made_at, .actor = h->who.actor, .group = h->who.group,
        .tid = h->tid, .flags = h->flags, .fd = h->fd, .has_read = atomic_load(&h->has_read), .pythons = h->pythons,
    };
    put(o, &x, sizeof x);
    put_fd(o, h->fd);
    o->head.handles++;
}

static void put_tell(void *with, uint32_t what, uint64_t parent, uint64_t child, const char *name, size_t length)
{
    struct out *o = with;
    struct tell_out x = {.parent = parent, .child = child, .length = length, .what = what};
    put(o, &x, sizeof x);
    put(o, name, length);
    o->head.tells++;
}

PyObject *py_dump(PyObject *self, PyObject *none)
{
    (void)self, (void)none;
    struct out o = {0};
    struct head head = {0};
    size_t room;
    const uint64_t *devices;
    put(&o, &head, sizeof head);
    lock();
    table_each(put_node, &o);
    table_each(put_names, &o);
    handle_each(put_handle, &o);
    const uint64_t *misses = miss_hashes(&room);
    o.head.all_misses = room && misses == NULL;
    for (size_t i = 0; misses && i < room; i++)
        if (misses[i])
            put(&o, &misses[i], sizeof misses[i]), o.head.misses++;
    o.head.devices = table_devices(&devices);
    put(&o, devices, o.head.devices * sizeof *devices);
    tells_each(put_tell, &o);
    memcpy(o.head.magic, magic, sizeof magic);
    o.head.next_id = table_next_id(), o.head.next_fh = handle_next();
    unlock();
    o.head.watch_fd = watch_descriptor();
    put_fd(&o, o.head.watch_fd);
    o.head.forwarded = atomic_load(&shared->forwarded);
    for (unsigned i = 0; i < 64; i++)
        o.head.counts[i] = atomic_load(&shared->counts[i]);
    watch_counters(o.head.watching, false);
    bool failed = o.bytes.failed || o.fds.failed;
    if (!failed)
        memcpy(o.bytes.mem, &o.head, sizeof o.head);
    PyObject *fds = failed ? NULL : PyList_New(0);
    for (size_t at = 0; fds && at < o.fds.used; at += sizeof(int)) {
        int one;
        memcpy(&one, o.fds.mem + at, sizeof one);
        PyObject *fd = PyLong_FromLong(one);
        if (fd == NULL || PyList_Append(fds, fd) < 0)
            Py_CLEAR(fds);
        Py_XDECREF(fd);
    }
    PyObject *both = fds ? Py_BuildValue("y#N", o.bytes.mem, (Py_ssize_t)o.bytes.used, fds) : NULL;
    free(o.bytes.mem);
    free(o.fds.mem);
    return both || PyErr_Occurred() ? both : PyErr_NoMemory();
}

/* ---- reading ---- */

struct in {
    const char *at, *end;
    bool failed;
};

static const char *take(struct in *in, uint64_t size)
{
    const char *here = in->at;
    if (in->failed || size > (uint64_t)(in->end - in->at)) {
        in->failed = true;
        return NULL;
    }
    in->at += size;
    return here;
}

static bool take_into(struct in *in, void *to, size_t size)
{
    const char *here = take(in, size);
    if (here)
        memcpy(to, here, size);
    return here != NULL;
}

static int kept_fd(int fd)
{
    if (fd >= 0)
        fcntl(fd, F_SETFD, FD_CLOEXEC);
    return fd;
}

static bool load_nodes(struct in *in, const struct head *head, const char *again)
{
    struct node_out x;
    for (uint64_t i = 0; i < head->nodes; i++) {
        if (!take_into(in, &x, sizeof x))
            return false;
        const char *key = take(in, x.key_size);
        struct stat st = {.st_dev = x.dev, .st_ino = x.ino, .st_mode = x.kind};
        struct node *n = key == NULL ? NULL : again ? table_get(x.id) : table_restore(x.id, &st, x.keyed);
        if (n == NULL)
            return false;
        if (again) { /* names are there by now: a name ends that a node is pinned */
            if (x.pinned_fd >= 0)
                n->fd = kept_fd(x.pinned_fd), n->pinned = true;
            continue;
        }
        n->lookups = x.lookups, n->removals = x.removals, n->look_number = NO_LOOK;
        if (head->watch_fd >= 0 && x.key_size)
            watch_restore(n, (const unsigned char *)key, x.key_size); /* else it is marked again */
    }
    return true;
}

static bool load_names(struct in *in, const struct head *head)
{
    struct name_out x;
    for (uint64_t i = 0; i < head->names; i++) {
        if (!take_into(in, &x, sizeof x))
            return false;
        const char *text = take(in, x.length);
        struct node *parent = table_get(x.parent), *child = table_get(x.child);
        if (text == NULL || parent == NULL || child == NULL || !name_add(child, parent, text, x.length))
            return false;
    }
    return true;
}

static bool load_handles(struct in *in, const struct head *head)
{
    struct handle_out x;
    for (uint64_t i = 0; i < head->handles; i++) {
        if (!take_into(in, &x, sizeof x))
            return false;
        struct node *node = table_get(x.node);
        handle_restore_next(x.fh);
        struct handle *h = node ? handle_add(node, kept_fd(x.fd), (struct who){x.actor, x.group}) : NULL;
        if (h == NULL)
            return false;
        h->tid = x.tid, h->flags = x.flags, h->made_at = x.made_at;
        atomic_store(&h->has_read, x.has_read);
        if (x.pythons)
            handle_pythons(h);
        slot_live(h, HANDLE_SLOT);
    }
    handle_restore_next(head->next_fh);
    return true;
}

static bool load(struct in *in, const struct head *head)
{
    const char *nodes = in->at;
    if (head->watch_fd >= 0 && !watch_adopt(kept_fd(head->watch_fd)))
        return false;
    if (!load_nodes(in, head, NULL) || !load_names(in, head))
        return false;
    struct in second = {nodes, in->end, false};
    if (!load_nodes(&second, head, nodes) || !load_handles(in, head))
        return false;
    table_restore_next(head->next_id);
    uint64_t x;
    if (head->all_misses)
        miss_restore(0);
    for (uint64_t i = 0; i < head->misses; i++) {
        if (!take_into(in, &x, sizeof x))
            return false;
        miss_restore(x);
    }
    for (uint64_t i = 0; i < head->devices; i++) {
        if (!take_into(in, &x, sizeof x))
            return false;
        shown_ino(x, 0); /* they are numbered as they come */
    }
    struct tell_out t;
    for (uint64_t i = 0; i < head->tells; i++) {
        const char *name = take_into(in, &t, sizeof t) ? take(in, t.length) : NULL;
        if (name == NULL)
            return false;
        tell_restore(t.what, t.parent, t.child, name, t.length);
    }
    return true;
}

PyObject *py_load_state(PyObject *self, PyObject *arg)
{
    char *data;
    Py_ssize_t size;
    struct head head;
    (void)self;
    if (PyBytes_AsStringAndSize(arg, &data, &size) < 0)
        return NULL;
    struct in in = {data, data + size, false};
    if (!take_into(&in, &head, sizeof head) || memcmp(head.magic, magic, sizeof magic) != 0) {
        PyErr_SetString(PyExc_ValueError, "not the lane's state, or that of another version");
        return NULL;
    }
    lock();
    bool loaded = load(&in, &head);
    unlock();
    if (!loaded) {
        PyErr_SetString(PyExc_ValueError, "the lane's state is damaged");
        return NULL;
    }
    atomic_store(&shared->forwarded, head.forwarded);
    for (unsigned i = 0; i < 64; i++)
        atomic_store(&shared->counts[i], head.counts[i]);
    watch_counters(head.watching, true);
    Py_RETURN_NONE;
}
