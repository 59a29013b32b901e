/* Going on with what another process has left in its memory: it was killed, at any moment whatever.
 *
 * What it knew is in the slots (shared.c); here the wires between them are made anew. A slot that
 * fits nothing else (a name whose directory is gone already) is what the other was just making or
 * taking away, and goes. Memory that is not ours, or was written over, is found out before anything
 * is changed.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "lane.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

PyObject *py_share(PyObject *self, PyObject *arg);
PyObject *py_take_over(PyObject *self, PyObject *arg);
PyObject *py_note_handle(PyObject *self, PyObject *args);
PyObject *py_unnote_handle(PyObject *self, PyObject *arg);

/* ---- is it whole? ---- */

static bool root_seen;

static bool kind_known(uint32_t kind)
{
    return kind == S_IFREG || kind == S_IFDIR || kind == S_IFLNK || kind == S_IFIFO || kind == S_IFSOCK
           || kind == S_IFCHR || kind == S_IFBLK;
}

static bool flag(const bool *at) { return *(const unsigned char *)at <= 1; }

static bool id_given(uint64_t id) { return id >= ROOT_ID && id < shared->next_id; }

static bool whole_name(const struct name *n, size_t room)
{
    return n->length > 0 && n->length < room - offsetof(struct name, text) && n->text[n->length] == 0
           && memchr(n->text, '/', n->length) == NULL && memchr(n->text, 0, n->length) == NULL
           && n->number < shared->next_name && id_given(n->parent_id) && id_given(n->child_id);
}

static bool whole_handle(const struct handle *h)
{
    const void *read = &h->has_read;
    return h->fh >= LANE_FH && h->fh < shared->next_fh && id_given(h->node_id) && h->fd >= -1 && flag(&h->pythons)
           && *(const unsigned char *)read <= 1;
}

static bool whole(enum slot_kind kind, const void *slot, size_t room)
{
    const struct node *node = slot;
    const struct noted *noted = slot;
    const struct grant *grant = slot;
    const struct watch *watch = slot;
    const struct path *path = slot;
    switch (kind) {
    case NODE_SLOT:
        root_seen |= node->id == ROOT_ID && node->kind == S_IFDIR;
        return room >= sizeof *node && id_given(node->id) && kind_known(node->kind) && flag(&node->keyed)
               && flag(&node->pinned) && node->fd >= -1;
    case NAME_SLOT: return room > sizeof(struct name) && whole_name(slot, room);
    case HANDLE_SLOT: return room >= sizeof(struct handle) && whole_handle(slot);
    case NOTED_SLOT:
        return room >= sizeof *noted && noted->fh != 0 && id_given(noted->node_id) && noted->fd >= 0
               && flag(&noted->readable);
    case GRANT_SLOT:
        return room >= sizeof *grant && id_given(grant->node_id) && flag(&grant->append) && flag(&grant->over);
    case WATCH_SLOT: return room > sizeof *watch && watch->size >= 16 && watch->size <= room - sizeof *watch;
    case PATH_SLOT: return room > sizeof *path && path->length <= room - sizeof *path;
    default: return false;
    }
}

static bool all_whole(void)
{
    root_seen = false;
    uint32_t devices = atomic_load(&shared->device_count);
    if (atomic_load(&shared->head) - atomic_load(&shared->told) > RECORDS || records_pending() > RECORDS || devices < 1 || devices > DEVICES || shared->next_fh < LANE_FH
        || shared->next_fh >= 1ULL << 63)
        return false;
    for (unsigned at = atomic_load(&shared->told); at != atomic_load(&shared->head); at++) {
        const struct record *r = &shared->records[at % RECORDS];
        if (r->kind > LINKED || !flag(&r->wrote))
            return false;
    }
    for (unsigned i = 0; i < STARTED; i++)
        if (!flag(&shared->started[i].past))
            return false;
    return shared_check(whole) && root_seen;
}

/* ---- the wires ---- */

/* Whether the descriptor is still the node's: another may have its number by now. */
static bool leads_to(int fd, const struct node *node)
{
    struct stat st;
    return fd >= 0 && fstat(fd, &st) == 0 && node_is(node, &st);
}

static bool link_node(void *with, void *slot)
{
    struct node *n = slot;
    (void)with;
    n->holds = n->noted = n->fd_users = 0;
    n->children = n->mutations = 0;
    n->names = NULL, n->id_chain = n->key_chain = n->newer = n->older = NULL;
    n->grant = NULL, n->listing = NULL, n->watch = NULL, n->making = NULL;
    n->open_fd = -1;
    atomic_store(&n->watched, UNWATCHED);
    n->pinned = n->pinned && n->id != ROOT_ID && leads_to(n->fd, n);
    if (!n->pinned)
        n->fd = -1;
    if (!table_link(n))
        slot_free(n);
    return true;
}

static bool link_name(void *with, void *slot)
{
    (void)with;
    if (!name_link(slot))
        slot_free(slot);
    return true;
}

/* A directory within itself would be walked for ever. `mutations` is zero by now, and serves as a mark. */
static bool break_circle(void *with, void *slot)
{
    struct node *start = slot;
    (void)with;
    for (struct node *n = start; n->names && (n->mutations == 0 || n->mutations == start->id);
         n = n->names->parent) {
        if (n->mutations == start->id) {
            name_remove(n, n->names->parent, n->names->text, n->names->length);
            break;
        }
        n->mutations = start->id;
    }
    return true;
}

static bool clear_mark(void *with, void *slot)
{
    (void)with;
    ((struct node *)slot)->mutations = 0;
    return true;
}

static bool link_watch(void *with, void *slot)
{
    struct watch *w = slot;
    struct node *node = table_get(w->id);
    (void)with;
    if (watch_descriptor() < 0)
        slot_free(w);
    else
        watch_link(w, node && node->kind == S_IFDIR ? node : NULL);
    return true;
}

static bool link_grant(void *with, void *slot)
{
    struct grant *g = slot;
    struct node *node = table_get(g->node_id);
    (void)with;
    if (node == NULL || node->grant) {
        slot_free(g);
        return true;
    }
    g->over = true, g->under_way = 0; /* what it says is when it was last used */
    node->grant = g;
    return true;
}

static bool link_handle(void *with, void *slot)
{
    struct handle *h = slot;
    (void)with;
    h->node = table_get(h->node_id);
    if (h->node == NULL || handle_find(h->fh)) {
        slot_free(h);
        return true;
    }
    if (!leads_to(h->fd, h->node))
        h->fd = -1;
    handle_link(h);
    if (h->made_at && !h->pythons && !h->node->making && record_reserve())
        h->node->making = h;
    else if (h->made_at && !h->pythons)
        h->made_at = 0;
    return true;
}

static bool link_noted(void *with, void *slot)
{
    struct noted *n = slot;
    (void)with;
    n->node = table_get(n->node_id);
    if (n->node == NULL || !leads_to(n->fd, n->node) || noted_find(n->fh))
        slot_free(n);
    else
        note_link(n);
    return true;
}

static bool unclaim_path(void *with, void *slot)
{
    (void)with;
    ((struct path *)slot)->claimed = false;
    return true;
}

/* A text that no record says: the record never came, or was taken. */
static bool free_path(void *with, void *slot)
{
    (void)with;
    if (!((struct path *)slot)->claimed)
        slot_free(slot);
    return true;
}

static bool settle(void *with, void *slot)
{
    (void)with;
    node_settle(slot);
    return true;
}

static void rebuild(void)
{
    lane.taking_over = true;
    table_clear();
    slots_each(NODE_SLOT, link_node, NULL);
    slots_each(NAME_SLOT, link_name, NULL);
    slots_each(NODE_SLOT, break_circle, NULL);
    slots_each(NODE_SLOT, clear_mark, NULL);
    slots_each(GRANT_SLOT, link_grant, NULL);
    slots_each(PATH_SLOT, unclaim_path, NULL);
    records_link();
    slots_each(HANDLE_SLOT, link_handle, NULL);
    slots_each(NOTED_SLOT, link_noted, NULL);
    slots_each(PATH_SLOT, free_path, NULL);
    slots_each(WATCH_SLOT, link_watch, NULL);
    slots_each(NODE_SLOT, settle, NULL);
    lane.taking_over = false;
}

/* Its events in the queue are ours. */
static void remember_pid(void)
{
    for (unsigned i = PIDS - 1; i > 0; i--)
        shared->pids[i] = shared->pids[i - 1];
    shared->pids[0] = shared->pid;
    shared->pid = getpid();
}

/* ---- what Python has to know ---- */

struct found { /* of Python's */
    uint64_t fh, node;
    int64_t last;
    int fd;
    uint32_t flags, tid;
    bool readable;
};

static int64_t last_write(const struct node *node, uint64_t fh)
{
    return node->grant && node->grant->fh == fh ? node->grant->last : 0;
}

static bool untold(uint64_t fh)
{
    for (unsigned at = atomic_load(&shared->told); at != atomic_load(&shared->head); at++) {
        const struct record *r = &shared->records[at % RECORDS];
        if (r->kind == OPENED && r->fh == fh)
            return true;
    }
    return false;
}

struct gathered {
    struct gather handles, fds;
};

static void gather_fd(struct gathered *all, int fd)
{
    if (fd >= 0)
        gather(&all->fds, &fd, sizeof fd);
}

static bool gather_noted(void *with, void *slot)
{
    const struct noted *n = slot;
    struct gathered *all = with;
    struct found f = {.fh = n->fh, .node = n->node_id, .last = last_write(n->node, n->fh), .fd = n->fd,
                      .flags = n->flags, .tid = n->tid, .readable = n->readable};
    gather(&all->handles, &f, sizeof f);
    gather_fd(all, n->fd);
    return true;
}

static bool gather_handle(void *with, void *slot)
{
    const struct handle *h = slot;
    struct gathered *all = with;
    gather_fd(all, h->fd);
    if (!h->pythons || h->fd < 0 || noted_find(h->fh) || untold(h->fh))
        return true;
    /* Taken by who died before it was noted. */
    struct found f = {.fh = h->fh, .node = h->node_id, .last = last_write(h->node, h->fh), .fd = h->fd,
                      .flags = h->flags, .tid = h->tid, .readable = true};
    gather(&all->handles, &f, sizeof f);
    return true;
}

static bool gather_node(void *with, void *slot)
{
    const struct node *n = slot;
    if (n->pinned)
        gather_fd(with, n->fd);
    return true;
}

/* Takes the reference over. */
static void append(PyObject **list, PyObject *item)
{
    if (item == NULL || *list == NULL || PyList_Append(*list, item) < 0)
        Py_CLEAR(*list);
    Py_XDECREF(item);
}

static PyObject *handle_list(const struct gather *g)
{
    PyObject *list = PyList_New(0);
    struct found f;
    for (size_t at = 0; list && at < g->used; at += sizeof f) {
        memcpy(&f, g->mem + at, sizeof f);
        append(&list, Py_BuildValue("KKiIOIL", (unsigned long long)f.fh, (unsigned long long)f.node, f.fd, f.flags,
                                    f.readable ? Py_True : Py_False, f.tid, (long long)f.last));
    }
    return list;
}

static PyObject *fd_list(const struct gather *g)
{
    PyObject *list = PyList_New(0);
    int fd;
    for (size_t at = 0; list && at < g->used; at += sizeof fd) {
        memcpy(&fd, g->mem + at, sizeof fd);
        append(&list, PyLong_FromLong(fd));
    }
    return list;
}

static PyObject *started_list(void)
{
    PyObject *list = PyList_New(0);
    for (unsigned i = 0; list && i < STARTED; i++) {
        const struct started *s = &shared->started[i];
        if (s->unique)
            append(&list, Py_BuildValue("KILKK", (unsigned long long)s->unique, s->opcode, (long long)s->began,
                                        (unsigned long long)s->ino, (unsigned long long)s->size));
    }
    return list;
}

static PyObject *left_behind(void)
{
    struct gathered all = {0};
    lock();
    slots_each(NODE_SLOT, gather_node, &all);
    slots_each(HANDLE_SLOT, gather_handle, &all);
    slots_each(NOTED_SLOT, gather_noted, &all);
    unlock();
    gather_fd(&all, watch_descriptor());
    gather_fd(&all, shared_descriptor());
    PyObject *result = NULL;
    if (all.handles.failed || all.fds.failed)
        PyErr_NoMemory();
    else
        result = Py_BuildValue("{sNsNsN}", "handles", handle_list(&all.handles), "fds", fd_list(&all.fds), "started",
                               started_list());
    free(all.handles.mem);
    free(all.fds.mem);
    return result;
}

static PyObject *raise_errno(int error)
{
    errno = error;
    return PyErr_SetFromErrno(PyExc_OSError);
}

PyObject *py_share(PyObject *self, PyObject *arg)
{
    (void)self;
    long fd = PyLong_AsLong(arg);
    if (fd == -1 && PyErr_Occurred())
        return NULL;
    int error = shared_start((int)fd);
    if (error)
        return raise_errno(error);
    Py_RETURN_NONE;
}

PyObject *py_take_over(PyObject *self, PyObject *arg)
{
    (void)self;
    long fd = PyLong_AsLong(arg);
    if (fd == -1 && PyErr_Occurred())
        return NULL;
    if (shared == NULL || shared_descriptor() >= 0 || table_size() != 1 || watch_descriptor() >= 0)
        return raise_errno(EALREADY); /* `start` comes before, and nothing else */
    int error = shared_adopt((int)fd);
    if (error && error != EINVAL)
        return raise_errno(error);
    if (error || !all_whole()) {
        if (!error)
            shared_decline();
        PyErr_SetString(PyExc_ValueError, "not the memory of a lane, or that of another version, or damaged");
        return NULL;
    }
    shared_accept();
    remember_pid();
    journal_all_past();
    lock();
    if (shared->watch_fd >= 0)
        watch_adopt(shared->watch_fd);
    rebuild();
    misses_known(false);
    unlock();
    watch_lost();
    lane.resend = true;
    return left_behind();
}

PyObject *py_note_handle(PyObject *self, PyObject *args)
{
    unsigned long long fh, id;
    int fd, readable;
    unsigned flags, tid;
    (void)self;
    if (!PyArg_ParseTuple(args, "KKiIpI", &fh, &id, &fd, &flags, &readable, &tid))
        return NULL;
    lock();
    struct node *node = table_get(id);
    struct noted noted = {.fh = fh, .node_id = id, .node = node, .fd = fd, .flags = flags, .tid = tid,
                          .readable = readable, .asked = journal_current()};
    die(DONE_ON_DISK);
    bool kept = node && note_handle(&noted);
    unlock();
    die(IN_THE_TABLE);
    return PyBool_FromLong(kept);
}

PyObject *py_unnote_handle(PyObject *self, PyObject *arg)
{
    (void)self;
    unsigned long long fh = PyLong_AsUnsignedLongLong(arg);
    if (fh == (unsigned long long)-1 && PyErr_Occurred())
        return NULL;
    die(DONE_ON_DISK);
    unnote_handle(fh);
    die(IN_THE_TABLE);
    Py_RETURN_NONE;
}
