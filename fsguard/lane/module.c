/* What Python may ask of the lane, and tell it. Called with the GIL held; the lane's own threads
 * never want it, so nothing here can wait for Python. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "lane.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

PyObject *py_dump(PyObject *self, PyObject *none); /* state.c */
PyObject *py_load_state(PyObject *self, PyObject *arg);
PyObject *py_share(PyObject *self, PyObject *arg); /* takeover.c */
PyObject *py_take_over(PyObject *self, PyObject *arg);
PyObject *py_note_handle(PyObject *self, PyObject *args);
PyObject *py_unnote_handle(PyObject *self, PyObject *arg);

static PyObject *os_error(int error)
{
    errno = error;
    return PyErr_SetFromErrno(PyExc_OSError);
}

static bool started;

static PyObject *py_start(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *words[] = {"root_fd", "entry_ns", "attr_ns", "open_flags", "opendir_flags", "watched_ns", NULL};
    struct stat st;
    unsigned long long entry_ns, attr_ns, watched_ns = 0;
    (void)self;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iKKII|K", words, &lane.root_fd, &entry_ns, &attr_ns,
                                     &lane.open_flags, &lane.opendir_flags, &watched_ns))
        return NULL;
    if (started)
        return os_error(EALREADY);
    if (fstat(lane.root_fd, &st) < 0)
        return os_error(errno);
    lane.entry_ns = entry_ns, lane.attr_ns = attr_ns, lane.watched_ns = watched_ns;
    lane.root_dev = st.st_dev;
    int error = shared_start(-1);
    if (error)
        return os_error(error);
    if (!table_start(&st) || !queue_start())
        return PyErr_NoMemory();
    making_start();
    started = true;
    Py_RETURN_NONE;
}

/* Python gets this request next, as if from the kernel. */
static bool inject(PyObject *request)
{
    char *data;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(request, &data, &size) < 0)
        return false;
    void *mem = (size_t)size <= lane.buffer_size ? buffer_take() : NULL;
    if (mem == NULL) {
        PyErr_NoMemory();
        return false;
    }
    memcpy(mem, data, (size_t)size);
    queue_push(mem, (size_t)size);
    return true;
}

static PyObject *py_serve(PyObject *self, PyObject *args)
{
    unsigned threads;
    Py_ssize_t buffer_size;
    pthread_t thread;
    sigset_t all, before;
    (void)self;
    int no_opendir = 0;
    PyObject *first = NULL;
    if (!PyArg_ParseTuple(args, "iIn|pO!", &lane.device, &threads, &buffer_size, &no_opendir, &PyList_Type, &first))
        return NULL;
    lane.no_opendir = no_opendir;
    lane.buffer_size = (size_t)buffer_size;
    for (Py_ssize_t i = 0; first && i < PyList_GET_SIZE(first); i++)
        if (!inject(PyList_GET_ITEM(first, i)))
            return NULL;
    /* Before anything is read: else what we are just handling would come once more, too. */
    struct wire_out resend = {.len = sizeof resend, .error = NOTIFY_RESEND};
    if (lane.resend && write(lane.device, &resend, sizeof resend) < 0)
        return os_error(errno);
    lane.resend = false;
    /* Signals are Python's. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = 0;
    unsigned made = atomic_load(&lane.alive); /* a pause that did not come about */
    uint64_t woken;
    atomic_store(&lane.pausing, false);
    if (read(lane.wake_fd, &woken, sizeof woken) < 0)
        (void)0; /* the first time */
    for (; made < threads && !error; made++) {
        void *buffer = buffer_take();
        error = buffer ? pthread_create(&thread, NULL, serve, buffer) : ENOMEM;
        if (error)
            buffer_give(buffer);
        else
            pthread_detach(thread), atomic_fetch_add(&lane.alive, 1);
    }
    if (made > 1)
        error = 0; /* fewer will do */
    if (!error && !watch_serve())
        error = EAGAIN;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error)
        return os_error(error);
    Py_RETURN_NONE;
}

static PyObject *py_pause(PyObject *self, PyObject *arg)
{
    bool paused;
    (void)self;
    double seconds = PyFloat_AsDouble(arg);
    if (seconds < 0 && PyErr_Occurred())
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    paused = lane_pause((int64_t)(seconds * 1e9));
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(paused);
}

static PyObject *py_eventfd(PyObject *self, PyObject *none)
{
    (void)self, (void)none;
    return PyLong_FromLong(queue_eventfd());
}

static PyObject *py_wait(PyObject *self, PyObject *none)
{
    bool there;
    (void)self, (void)none;
    Py_BEGIN_ALLOW_THREADS
    there = queue_wait();
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(there);
}

static PyObject *py_hooks(PyObject *self, PyObject *none)
{
    (void)self, (void)none;
    PyObject *receive = PyCapsule_New((void *)queue_receive, "fsguard.receive", NULL);
    PyObject *pending = PyCapsule_New((void *)news_pending, "fsguard.pending", NULL);
    return Py_BuildValue("NN", receive, pending);
}

/* What pyfuse3 would get next, for tests that play the kernel. */
static PyObject *py_next_request(PyObject *self, PyObject *none)
{
    (void)self, (void)none;
    struct buf buf = {0};
    int size = queue_receive(&buf);
    PyObject *request = size > 0 ? PyBytes_FromStringAndSize(buf.mem, size) : Py_NewRef(Py_None);
    buffer_give(buf.mem);
    return request;
}

#define ID_ONLY(args, id)                                                                                           \
    unsigned long long id = PyLong_AsUnsignedLongLong(args);                                                        \
    if (id == (unsigned long long)-1 && PyErr_Occurred())                                                           \
        return NULL;

/* ---- records ---- */

void gather(struct gather *g, const void *data, size_t size)
{
    if (g->used + size > g->size) {
        size_t room = (g->used + size) * 2 + 256;
        char *more = g->failed ? NULL : realloc(g->mem, room);
        if (more == NULL) {
            g->failed = true;
            return;
        }
        g->mem = more, g->size = room;
    }
    if (size)
        memcpy(g->mem + g->used, data, size);
    g->used += size;
}

static void gather_path(void *with, const char *path, size_t size)
{
    gather(with, &size, sizeof size);
    gather(with, path, size);
}

static PyObject *paths_of(struct gather *g)
{
    PyObject *list = PyList_New(0);
    for (size_t at = 0; list && !g->failed && at + sizeof(size_t) <= g->used;) {
        size_t size;
        memcpy(&size, g->mem + at, sizeof size);
        PyObject *item = PyBytes_FromStringAndSize(g->mem + at + sizeof size, (Py_ssize_t)size);
        at += sizeof size + size;
        if (item == NULL || PyList_Append(list, item) < 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    free(g->mem);
    PyObject *tuple = list ? PyList_AsTuple(list) : NULL;
    Py_XDECREF(list);
    return tuple;
}

static const char *const kinds[] = {
    [LOOKED] = "looked", [MADE] = "made", [OPENED] = "opened", [REMOVED] = "removed", [LINKED] = "linked",
};

static PyObject *py_take_records(PyObject *self, PyObject *none)
{
    (void)self, (void)none;
    struct record record;
    PyObject *all = PyList_New(0);
    for (unsigned left = records_pending(); all && left; left--) {
        struct gather g = {0};
        uint64_t id = 0;
        lock();
        unsigned number = 0;
        bool there = record_take(&record, &number);
        if (there && record.path)
            gather_path(&g, record.path->text, record.path->length);
        else if (there && record.node)
            node_paths(record.node, gather_path, &g);
        if (there && record.node)
            id = record.node->id;
        unlock();
        if (!there)
            break;
        PyObject *paths = paths_of(&g);
        PyObject *item = paths ? Py_BuildValue("sINdKKOI", kinds[record.kind], record.actor, paths, (double)record.time / 1e9,
                                               (unsigned long long)id, (unsigned long long)record.fh,
                                               record.wrote ? Py_True : Py_False, number)
                               : NULL;
        if (item == NULL || PyList_Append(all, item) < 0)
            Py_CLEAR(all);
        Py_XDECREF(item);
    }
    return all;
}

static PyObject *py_records_told(PyObject *self, PyObject *none)
{
    (void)self, (void)none;
    lock();
    records_told();
    unlock();
    Py_RETURN_NONE;
}

/* (the descriptor, flags, tid) of a file that was made here; it is Python's to close from now on, when
 * the handle is released. (Not a copy: without a free descriptor, what is written next would be lost.) */
static PyObject *py_making(PyObject *self, PyObject *arg)
{
    (void)self;
    ID_ONLY(arg, fh)
    struct handle *h = handle_get(fh);
    if (h == NULL || !h->pythons)
        return os_error(EBADF);
    return Py_BuildValue("iII", h->fd, h->flags, h->tid);
}

static PyObject *py_close_handle(PyObject *self, PyObject *arg)
{
    (void)self;
    ID_ONLY(arg, fh)
    handle_close(fh, true);
    Py_RETURN_NONE;
}

static PyObject *py_let_make(PyObject *self, PyObject *on)
{
    (void)self;
    if (on == Py_True)
        atomic_store(&lane.making, true);
    else
        making_hold();
    Py_RETURN_NONE;
}

static PyObject *py_disown_all(PyObject *self, PyObject *none)
{
    (void)self, (void)none;
    lock();
    shared->own_epoch++;
    unlock();
    Py_RETURN_NONE;
}

static PyObject *py_pending(PyObject *self, PyObject *none)
{
    (void)self, (void)none;
    return PyLong_FromUnsignedLong(records_pending());
}

static PyObject *py_know(PyObject *self, PyObject *args)
{
    unsigned tid;
    struct who who;
    double seconds;
    (void)self;
    if (!PyArg_ParseTuple(args, "IIId", &tid, &who.actor, &who.group, &seconds))
        return NULL;
    return PyBool_FromLong(thread_know(tid, who, (int64_t)(seconds * 1e9)));
}

static PyObject *py_known(PyObject *self, PyObject *arg)
{
    (void)self;
    unsigned long tid = PyLong_AsUnsignedLong(arg);
    if (tid == (unsigned long)-1 && PyErr_Occurred())
        return NULL;
    return PyLong_FromUnsignedLong(thread_who((uint32_t)tid).actor);
}

static PyObject *py_forget_threads(PyObject *self, PyObject *expired_only)
{
    (void)self;
    threads_forget(expired_only == Py_True);
    Py_RETURN_NONE;
}

static PyObject *py_watch_miss(PyObject *self, PyObject *args)
{
    unsigned long long parent;
    const char *text;
    Py_ssize_t length;
    (void)self;
    if (!PyArg_ParseTuple(args, "Ky#", &parent, &text, &length))
        return NULL;
    lock();
    miss_watch(parent, text, (size_t)length);
    unlock();
    Py_RETURN_NONE;
}

/* ---- requests under way ---- */

static PyObject *past_of(const struct started *s)
{
    if (s == NULL)
        Py_RETURN_NONE;
    return Py_BuildValue("ILKK", s->opcode, (long long)s->began, (unsigned long long)s->ino, (unsigned long long)s->size);
}

static PyObject *py_began(PyObject *self, PyObject *args)
{
    unsigned long long unique, ino = 0, size = 0, node = 0;
    unsigned opcode;
    (void)self;
    if (!PyArg_ParseTuple(args, "KI|KKK", &unique, &opcode, &ino, &size, &node))
        return NULL;
    return past_of(journal_begin(unique, opcode, ino, size, node));
}

static PyObject *py_answered(PyObject *self, PyObject *none)
{
    (void)self, (void)none;
    journal_end();
    Py_RETURN_NONE;
}

static PyObject *py_past(PyObject *self, PyObject *arg)
{
    (void)self;
    ID_ONLY(arg, unique)
    return past_of(journal_past(unique));
}

static PyObject *py_past_node(PyObject *self, PyObject *arg)
{
    (void)self;
    ID_ONLY(arg, unique)
    const struct started *s = journal_past(unique);
    return PyLong_FromUnsignedLongLong(s ? s->node : 0);
}

static PyObject *py_made(PyObject *self, PyObject *args)
{
    unsigned long long unique;
    int dir;
    const char *name;
    unsigned kind;
    (void)self;
    if (!PyArg_ParseTuple(args, "KiyI", &unique, &dir, &name, &kind))
        return NULL;
    return PyBool_FromLong(journal_made(unique, dir, name, kind & S_IFMT));
}

static PyObject *py_asked(PyObject *self, PyObject *arg)
{
    (void)self;
    ID_ONLY(arg, unique)
    uint64_t fh = 0;
    if (unique & AGAIN) {
        lock();
        struct noted *n = noted_asked(unique & ~AGAIN);
        struct handle *h = n ? NULL : handle_asked(unique & ~AGAIN);
        fh = n ? n->fh : h ? h->fh : 0;
        unlock();
    }
    return PyLong_FromUnsignedLongLong(fh);
}

static PyObject *py_die_at(PyObject *self, PyObject *args)
{
    unsigned point;
    int nth = 1;
    (void)self;
    if (!PyArg_ParseTuple(args, "I|i", &point, &nth))
        return NULL;
    die_at(point, nth);
    Py_RETURN_NONE;
}

static PyObject *py_misses_known(PyObject *self, PyObject *none)
{
    (void)self, (void)none;
    lock();
    misses_known(true);
    unlock();
    Py_RETURN_NONE;
}

/* ---- nodes ---- */

static PyObject *py_hold(PyObject *self, PyObject *arg)
{
    (void)self;
    ID_ONLY(arg, id)
    lock();
    struct node *node = table_get(id);
    if (node == NULL) {
        unlock();
        Py_RETURN_NONE;
    }
    node_hold(node);
    uint64_t dev = node->dev, ino = node->ino;
    uint32_t kind = node->kind;
    unlock();
    return Py_BuildValue("KKI", (unsigned long long)dev, (unsigned long long)ino, kind);
}

static PyObject *py_release(PyObject *self, PyObject *arg)
{
    (void)self;
    ID_ONLY(arg, id)
    if (lane_forked) /* garbage that is collected in a child */
        Py_RETURN_NONE;
    lock();
    struct node *node = table_get(id);
    if (node && node->holds)
        node_release(node);
    unlock();
    Py_RETURN_NONE;
}

static PyObject *py_names(PyObject *self, PyObject *arg)
{
    (void)self;
    ID_ONLY(arg, id)
    struct gather g = {0};
    lock();
    struct node *node = table_get(id);
    for (struct name *n = node ? node->names : NULL; n; n = n->next) {
        uint64_t head[2] = {n->parent->id, n->length};
        gather(&g, head, sizeof head);
        gather(&g, n->text, n->length);
    }
    unlock();
    PyObject *list = PyList_New(0);
    for (size_t at = 0; list && !g.failed && at < g.used;) {
        uint64_t head[2];
        memcpy(head, g.mem + at, sizeof head);
        PyObject *item = Py_BuildValue("Ky#", (unsigned long long)head[0], g.mem + at + sizeof head, (Py_ssize_t)head[1]);
        at += sizeof head + head[1];
        if (item == NULL || PyList_Append(list, item) < 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    free(g.mem);
    return list;
}

static PyObject *py_paths(PyObject *self, PyObject *arg)
{
    (void)self;
    ID_ONLY(arg, id)
    struct gather g = {0};
    lock();
    struct node *node = table_get(id);
    if (node)
        node_paths(node, gather_path, &g);
    unlock();
    return paths_of(&g);
}

/* (lookups, children, pinned, removals) */
static PyObject *py_state(PyObject *self, PyObject *arg)
{
    (void)self;
    ID_ONLY(arg, id)
    lock();
    struct node *node = table_get(id);
    unsigned long long lookups = node ? node->lookups : 0;
    unsigned long long children = node ? node->children : 0, removals = node ? node->removals : 0;
    bool pinned = node && node->pinned;
    unlock();
    return Py_BuildValue("KKOK", lookups, children, pinned ? Py_True : Py_False, removals);
}

static PyObject *py_hand_out(PyObject *self, PyObject *arg)
{
    (void)self;
    ID_ONLY(arg, id)
    lock();
    struct node *node = table_get(id);
    if (node)
        node->lookups++;
    unlock();
    Py_RETURN_NONE;
}

static PyObject *py_forget(PyObject *self, PyObject *args)
{
    unsigned long long id, count;
    (void)self;
    if (!PyArg_ParseTuple(args, "KK", &id, &count))
        return NULL;
    lock();
    struct node *node = table_get(id);
    if (node)
        node_forget(node, count);
    unlock();
    Py_RETURN_NONE;
}

/* The id of the node, held; 0: the parent is gone. */
static PyObject *py_enter(PyObject *self, PyObject *args)
{
    unsigned long long parent, dev, ino, links, since;
    unsigned mode;
    const char *text;
    Py_ssize_t length;
    (void)self;
    if (!PyArg_ParseTuple(args, "Ky#KKIKK", &parent, &text, &length, &dev, &ino, &mode, &links, &since))
        return NULL;
    struct stat st = {.st_dev = dev, .st_ino = ino, .st_mode = mode, .st_nlink = links};
    uint64_t id = 0, names = 0;
    if (journal_current())
        die(DONE_ON_DISK);
    lock();
    struct node *above = table_get(parent);
    struct node *node = above ? table_enter(above, text, (size_t)length, &st, since != 0, since) : NULL;
    if (node) {
        node_hold(node);
        id = node->id;
        for (struct name *n = node->names; n; n = n->next)
            names++;
    }
    unlock();
    if (journal_current())
        die(IN_THE_TABLE);
    if (id && names > links && !S_ISDIR(mode))
        names_check(id, links, parent, text, (size_t)length);
    return PyLong_FromUnsignedLongLong(id);
}

static PyObject *py_find(PyObject *self, PyObject *args)
{
    unsigned long long dev, ino;
    unsigned mode;
    (void)self;
    if (!PyArg_ParseTuple(args, "KKI", &dev, &ino, &mode))
        return NULL;
    lock();
    struct node *node = table_find(dev, ino);
    uint64_t id = 0;
    if (node && node->kind == (mode & S_IFMT)) {
        node_hold(node);
        id = node->id;
    }
    unlock();
    return PyLong_FromUnsignedLongLong(id);
}

static PyObject *py_child(PyObject *self, PyObject *args)
{
    unsigned long long parent;
    const char *text;
    Py_ssize_t length;
    (void)self;
    if (!PyArg_ParseTuple(args, "Ky#", &parent, &text, &length))
        return NULL;
    lock();
    struct node *above = table_get(parent);
    struct name *name = above ? name_find(above, text, (size_t)length) : NULL;
    uint64_t id = 0;
    if (name) {
        node_hold(name->child);
        id = name->child->id;
    }
    unlock();
    return PyLong_FromUnsignedLongLong(id);
}

static PyObject *change_name(PyObject *args, bool add)
{
    unsigned long long id, parent;
    const char *text;
    Py_ssize_t length;
    bool ok = true;
    if (!PyArg_ParseTuple(args, "KKy#", &id, &parent, &text, &length))
        return NULL;
    die(DONE_ON_DISK);
    lock();
    struct node *node = table_get(id), *above = table_get(parent);
    if (node && above) {
        above->mutations++;
        node_hold(node);
        node_hold(above);
        if (add)
            ok = name_add(node, above, text, (size_t)length);
        else
            name_remove(node, above, text, (size_t)length);
        node_release(node);
        node_release(above);
    }
    unlock();
    die(IN_THE_TABLE);
    if (!ok)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *py_add_name(PyObject *self, PyObject *args)
{
    (void)self;
    return change_name(args, true);
}

static PyObject *py_remove_name(PyObject *self, PyObject *args)
{
    (void)self;
    return change_name(args, false);
}

static PyObject *py_names_change(PyObject *self, PyObject *begins)
{
    (void)self;
    if (begins == Py_True)
        names_change_begins();
    else
        names_change_ends();
    Py_RETURN_NONE;
}

static PyObject *py_detach(PyObject *self, PyObject *arg)
{
    (void)self;
    ID_ONLY(arg, id)
    lock();
    struct node *node = table_get(id);
    if (node) {
        for (struct name *n = node->names; n; n = n->next)
            n->parent->mutations++;
        node_detach(node);
    }
    unlock();
    Py_RETURN_NONE;
}

static PyObject *py_pin(PyObject *self, PyObject *arg)
{
    (void)self;
    ID_ONLY(arg, id)
    lock();
    struct node *node = table_get(id);
    if (node)
        node_hold(node);
    unlock();
    if (node == NULL)
        return PyLong_FromLong(-ESTALE);
    int error = node_pin(node);
    lock();
    node_release(node);
    unlock();
    return PyLong_FromLong(error);
}

static PyObject *py_unpin(PyObject *self, PyObject *arg)
{
    (void)self;
    ID_ONLY(arg, id)
    lock();
    struct node *node = table_get(id);
    if (node)
        node_unpin(node);
    unlock();
    Py_RETURN_NONE;
}

static PyObject *py_opened_by(PyObject *self, PyObject *args)
{
    unsigned long long id;
    int fd;
    (void)self;
    if (!PyArg_ParseTuple(args, "Ki", &id, &fd))
        return NULL;
    lock();
    struct node *node = table_get(id);
    if (node)
        node->open_fd = fd;
    unlock();
    Py_RETURN_NONE;
}

/* The O_PATH descriptor of a directory, good until given back; -errno. */
static PyObject *py_acquire_dir(PyObject *self, PyObject *arg)
{
    (void)self;
    ID_ONLY(arg, id)
    lock();
    struct node *node = table_get(id);
    if (node)
        node_hold(node);
    unlock();
    int fd = node ? dir_acquire(node) : -ESTALE;
    lock();
    if (node)
        node_release(node);
    unlock();
    return PyLong_FromLong(fd);
}

static PyObject *py_release_dir(PyObject *self, PyObject *arg)
{
    (void)self;
    ID_ONLY(arg, id)
    lock();
    struct node *node = table_get(id);
    unlock();
    if (node) /* held since it was acquired */
        dir_release(node);
    Py_RETURN_NONE;
}

/* The descriptor of a pinned node, -1: none. Good as long as the caller holds the node. */
static PyObject *py_pinned_fd(PyObject *self, PyObject *arg)
{
    (void)self;
    ID_ONLY(arg, id)
    lock();
    struct node *node = table_get(id);
    int fd = node && node->pinned ? node->fd : -1;
    unlock();
    return PyLong_FromLong(fd);
}

/* A handle that the lane reads from; takes the descriptor over. */
static PyObject *py_add_handle(PyObject *self, PyObject *args)
{
    unsigned long long id;
    int fd;
    (void)self;
    struct who who;
    if (!PyArg_ParseTuple(args, "KiII", &id, &fd, &who.actor, &who.group))
        return NULL;
    lock();
    struct node *node = table_get(id);
    struct handle *h = node ? handle_add(node, fd, who) : NULL;
    uint64_t fh = h ? h->fh : 0;
    if (h) {
        h->asked = journal_current();
        slot_live(h, HANDLE_SLOT);
    }
    unlock();
    if (h == NULL)
        return os_error(node ? ENOMEM : ESTALE);
    return PyLong_FromUnsignedLongLong(fh);
}

static PyObject *py_grant(PyObject *self, PyObject *args)
{
    unsigned long long id, fh;
    int fd, append;
    unsigned tid;
    double seconds;
    (void)self;
    if (!PyArg_ParseTuple(args, "KKiIpd", &id, &fh, &fd, &tid, &append, &seconds))
        return NULL;
    lock();
    struct node *node = table_get(id);
    if (node)
        grant_revoke(node);
    struct grant *g = node ? grant_of(node) : NULL;
    if (g)
        grant_set(g, fh, fd, tid, append, (int64_t)(seconds * 1e9));
    unlock();
    Py_RETURN_NONE;
}

static PyObject *py_revoke(PyObject *self, PyObject *arg)
{
    (void)self;
    ID_ONLY(arg, id)
    lock();
    struct node *node = table_get(id);
    int64_t last = 0;
    if (node)
        grant_revoke(node);
    if (node && node->grant) {
        last = node->grant->last;
        slot_free(node->grant);
        node->grant = NULL;
    }
    unlock();
    return PyFloat_FromDouble((double)last / 1e9);
}

static PyObject *py_revoke_all(PyObject *self, PyObject *none)
{
    (void)self, (void)none;
    lock();
    grant_epoch++;
    unlock();
    Py_RETURN_NONE;
}

static void gather_reader(void *with, const struct handle *h)
{
    if (h->fd < 0 || h->made_at)
        return; /* a directory; a file that is written */
    struct gather paths = {0};
    node_paths(h->node, gather_path, &paths);
    size_t head[2] = {h->who.actor, paths.used};
    gather(with, head, sizeof head);
    gather(with, paths.mem, paths.used);
    free(paths.mem);
}

static PyObject *py_reading(PyObject *self, PyObject *none)
{
    (void)self, (void)none;
    struct gather g = {0};
    lock();
    handle_each(gather_reader, &g);
    unlock();
    PyObject *list = PyList_New(0);
    for (size_t at = 0; list && !g.failed && at < g.used;) {
        size_t head[2];
        memcpy(head, g.mem + at, sizeof head);
        struct gather one = {0};
        gather(&one, g.mem + at + sizeof head, head[1]);
        PyObject *paths = paths_of(&one);
        PyObject *item = paths ? Py_BuildValue("IN", (unsigned)head[0], paths) : NULL;
        at += sizeof head + head[1];
        if (item == NULL || PyList_Append(list, item) < 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    free(g.mem);
    return list;
}

static PyObject *py_inode(PyObject *self, PyObject *args)
{
    unsigned long long dev, ino;
    (void)self;
    if (!PyArg_ParseTuple(args, "KK", &dev, &ino))
        return NULL;
    lock();
    uint64_t shown = shown_ino(dev, ino);
    unlock();
    return PyLong_FromUnsignedLongLong(shown);
}

static PyObject *py_next_id(PyObject *self, PyObject *none)
{
    (void)self, (void)none;
    lock();
    uint64_t id = table_next_id();
    unlock();
    return PyLong_FromUnsignedLongLong(id);
}

static PyObject *py_load(PyObject *self, PyObject *none)
{
    (void)self, (void)none;
    lock();
    unsigned long long nodes = table_size(), open = handle_count();
    unlock();
    return Py_BuildValue("{sKsKsKsIsI}", "nodes", nodes, "handles", open, "forwarded",
                         (unsigned long long)atomic_load(&shared->forwarded), "pending", records_pending(), "queued",
                         queue_length());
}

static PyObject *py_counts(PyObject *self, PyObject *none)
{
    (void)self, (void)none;
    PyObject *dict = PyDict_New();
    for (unsigned i = 0; i < 64 && dict; i++) {
        unsigned long long count = atomic_load(&shared->counts[i]);
        PyObject *key = count ? PyLong_FromUnsignedLong(i) : NULL, *value = count ? PyLong_FromUnsignedLongLong(count) : NULL;
        if (count && (!key || !value || PyDict_SetItem(dict, key, value) < 0))
            Py_CLEAR(dict);
        Py_XDECREF(key);
        Py_XDECREF(value);
    }
    return dict;
}

/* (entry, attributes): for how many seconds the kernel may believe them. */
static PyObject *py_lifetimes(PyObject *self, PyObject *args)
{
    unsigned long long id, links;
    (void)self;
    if (!PyArg_ParseTuple(args, "KK", &id, &links))
        return NULL;
    struct stat st = {.st_nlink = links};
    uint64_t entry = lane.entry_ns, attr = lane.attr_ns;
    lock();
    struct node *node = table_get(id);
    if (node) {
        attr = attr_life(node, &st);
        for (struct name *n = node->names; n; n = n->next) {
            uint64_t life = entry_life(n->parent);
            entry = n == node->names || life < entry ? life : entry;
        }
    }
    unlock();
    return Py_BuildValue("dd", (double)entry / 1e9, (double)attr / 1e9);
}

/* ---- changes from behind ---- */

static PyObject *py_watch(PyObject *self, PyObject *none)
{
    (void)self, (void)none;
    int error = watch_start();
    if (error)
        return os_error(error);
    Py_RETURN_NONE;
}

static PyObject *py_watch_node(PyObject *self, PyObject *arg)
{
    (void)self;
    ID_ONLY(arg, id)
    lock();
    struct node *node = table_get(id);
    if (node)
        node_hold(node);
    unlock();
    bool watched = node && watch_node(node);
    lock();
    if (node)
        node_release(node);
    unlock();
    return PyBool_FromLong(watched);
}

static PyObject *py_watch_events(PyObject *self, PyObject *arg)
{
    char *data;
    Py_ssize_t size;
    (void)self;
    if (PyBytes_AsStringAndSize(arg, &data, &size) < 0)
        return NULL;
    return PyBool_FromLong(watch_events(data, (size_t)size));
}

static PyObject *py_watch_hold(PyObject *self, PyObject *none)
{
    (void)self, (void)none;
    Py_BEGIN_ALLOW_THREADS
    watch_hold();
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *py_watch_before(PyObject *self, PyObject *before)
{
    (void)self;
    long pid = PyLong_AsLong(before);
    if (pid == -1 && PyErr_Occurred())
        return NULL;
    watch_before((int)pid);
    Py_RETURN_NONE;
}

static PyObject *py_watch_let_go(PyObject *self, PyObject *child)
{
    (void)self;
    long pid = PyLong_AsLong(child);
    if (pid == -1 && PyErr_Occurred())
        return NULL;
    watch_let_go((int)pid);
    Py_RETURN_NONE;
}

static PyObject *py_watch_load(PyObject *self, PyObject *none)
{
    (void)self, (void)none;
    struct watch_load l = watch_load();
    typedef unsigned long long big;
    return Py_BuildValue("{sOsKsKsKsKsKsKsi}", "on", l.on ? Py_True : Py_False, "directories", (big)l.directories, "own",
                         (big)l.own, "foreign", (big)l.foreign, "overflows", (big)l.overflows, "lost", (big)l.lost,
                         "refused", (big)l.refused, "error", l.error);
}

static PyObject *py_take_changes(PyObject *self, PyObject *args)
{
    unsigned most = 1000;
    (void)self;
    if (!PyArg_ParseTuple(args, "|I", &most))
        return NULL;
    PyObject *all = PyList_New(0);
    struct change *c;
    for (unsigned left = most; all && left && (c = change_take()) != NULL; left--) {
        PyObject *item = Py_BuildValue("Ky#y#id", (unsigned long long)c->mask, c->has_first ? c->text : NULL,
                                       (Py_ssize_t)c->first, c->has_second ? c->text + c->first : NULL,
                                       (Py_ssize_t)c->second, c->pid, (double)c->time / 1e9);
        free(c);
        if (item == NULL || PyList_Append(all, item) < 0)
            Py_CLEAR(all);
        Py_XDECREF(item);
    }
    if (changes_pending())
        queue_wake(); /* others first, then the rest */
    return all;
}

static PyObject *py_pending_changes(PyObject *self, PyObject *none)
{
    (void)self, (void)none;
    return PyLong_FromUnsignedLong(changes_pending());
}

static PyObject *py_expire(PyObject *self, PyObject *args)
{
    unsigned long long parent;
    const char *text;
    Py_ssize_t length;
    (void)self;
    if (!PyArg_ParseTuple(args, "Ky#", &parent, &text, &length))
        return NULL;
    watch_expire(parent, text, (size_t)length);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"start", (PyCFunction)(void (*)(void))py_start, METH_VARARGS | METH_KEYWORDS, "Set up the table and the queue, once."},
    {"serve", py_serve, METH_VARARGS, "(device, threads, buffer size, no_opendir, [requests that come first]): read "
     "requests from now on."},
    {"pause", py_pause, METH_O, "(seconds): end the threads; False: they have not ended by then. `serve` goes on."},
    {"dump", py_dump, METH_NOARGS, "(all that is known here, [descriptors that belong to it])."},
    {"load_state", py_load_state, METH_O, "Go on with what `dump` said, after `start`. ValueError: that can't be."},
    {"share", py_share, METH_O, "(memfd, empty): before `start`, let what is known lie there."},
    {"take_over", py_take_over, METH_O, "(memfd): after `start`, go on with what another process has left there."},
    {"note_handle", py_note_handle, METH_VARARGS, "(fh, id, fd, flags, readable, tid): Python's handle; False: no memory."},
    {"unnote_handle", py_unnote_handle, METH_O, "(fh): it is about to be closed."},
    {"misses_known", py_misses_known, METH_NOARGS, "After `take_over`: `watch_miss` was told all of them."},
    {"began", py_began, METH_VARARGS, "(unique, opcode, ino, size, node): something is about to be changed for the request; "
     "(opcode, began, ino, size) if another process has begun it."},
    {"answered", py_answered, METH_NOARGS, "Python has answered what it `began` last."},
    {"past", py_past, METH_O, "(unique) -> (opcode, began, ino, size) as another process has begun it; None: it has not."},
    {"past_node", py_past_node, METH_O, "(unique) -> the node that `began` was told; 0: none."},
    {"made", py_made, METH_VARARGS, "(unique, dir fd, name, mode): it stands there because that process has made it."},
    {"asked", py_asked, METH_O, "(unique) -> the handle that it has led to, unanswered; 0: none."},
    {"die_at", py_die_at, METH_VARARGS, "(point, nth): for tests: SIGKILL there. 1: begun, 2: done, 3: in the table, "
     "4: answered."},
    {"eventfd", py_eventfd, METH_NOARGS, "Readable while there are requests for Python, or records to take."},
    {"wait", py_wait, METH_NOARGS, "Wait some microseconds for a request; whether there is one."},
    {"hooks", py_hooks, METH_NOARGS, "What `_request` needs to take requests from the queue."},
    {"next_request", py_next_request, METH_NOARGS, "The next request for Python; None: there is none."},
    {"take_records", py_take_records, METH_NOARGS, "[(kind, actor, (path,), time, id, fh, wrote, number)]: what was done here."},
    {"records_told", py_records_told, METH_NOARGS, "What was taken is told: whoever goes on need not take it again."},
    {"pending", py_pending, METH_NOARGS, "How many records there are to take."},
    {"making", py_making, METH_O, "(fd, flags, tid) of a handle that Python goes on with."},
    {"close_handle", py_close_handle, METH_O, "Such a handle is released."},
    {"let_make", py_let_make, METH_O, "Whether files may be made here; False hands over what is being made."},
    {"disown_all", py_disown_all, METH_NOARGS, "No file counts as a task's own any more."},
    {"know", py_know, METH_VARARGS, "(tid, actor, group, seconds): the thread is theirs; whether that can be watched."},
    {"known", py_known, METH_O, "The actor of a thread; 0: not known (any more)."},
    {"forget_threads", py_forget_threads, METH_O, "Nothing is known of any thread any more (True: of those whose time is over)."},
    {"lifetimes", py_lifetimes, METH_VARARGS, "(id, nlink) -> (entry, attributes): seconds for which to believe them."},
    {"watch", py_watch, METH_NOARGS, "Watch what others change behind the mount; OSError: that cannot be had."},
    {"watch_node", py_watch_node, METH_O, "Whether changes in the directory are heard of from now on."},
    {"watch_events", py_watch_events, METH_O, "Take these for events that fanotify has sent."},
    {"watch_hold", py_watch_hold, METH_NOARGS, "No event is read until `watch_let_go`: a child is being started."},
    {"watch_before", py_watch_before, METH_O, "What this process has changed is no news: it did our work before."},
    {"watch_let_go", py_watch_let_go, METH_O, "Its pid, 0: none; what it closes is no change."},
    {"watch_load", py_watch_load, METH_NOARGS, "What is watched, for status."},
    {"pending_changes", py_pending_changes, METH_NOARGS, "How many there are to take."},
    {"take_changes", py_take_changes, METH_VARARGS, "(most) -> [(mask, path, target, pid, time)]: what others have changed."},
    {"expire", py_expire, METH_VARARGS, "(parent, name): the kernel shall ask for the name again."},
    {"watch_miss", py_watch_miss, METH_VARARGS, "Lookups of this name that find nothing go to Python."},
    {"hold", py_hold, METH_O, "(dev, ino, kind) of a node, held; None: not there."},
    {"release", py_release, METH_O, "Give one hold back."},
    {"names", py_names, METH_O, "[(parent id, name)]"},
    {"paths", py_paths, METH_O, "Workspace-relative paths."},
    {"state", py_state, METH_O, "(lookups, children, pinned, removals)"},
    {"hand_out", py_hand_out, METH_O, "The kernel gets one more lookup."},
    {"forget", py_forget, METH_VARARGS, "The kernel gives lookups back."},
    {"enter", py_enter, METH_VARARGS, "(parent, name, dev, ino, mode, nlink, since) -> id, held; 0: no such parent."},
    {"find", py_find, METH_VARARGS, "(dev, ino, mode) -> id, held; 0: not known."},
    {"child", py_child, METH_VARARGS, "(parent, name) -> id, held; 0: not known."},
    {"add_name", py_add_name, METH_VARARGS, "(id, parent, name)"},
    {"remove_name", py_remove_name, METH_VARARGS, "(id, parent, name)"},
    {"names_change", py_names_change, METH_O, "A change of names begins (True), or ends."},
    {"detach", py_detach, METH_O, "The inode is gone."},
    {"pin", py_pin, METH_O, "Keep a descriptor of the inode; 0 or -errno."},
    {"opened_by", py_opened_by, METH_VARARGS, "A descriptor through which Python has the node open, -1: none."},
    {"unpin", py_unpin, METH_O, "No longer."},
    {"acquire_dir", py_acquire_dir, METH_O, "The O_PATH descriptor of a directory, or -errno."},
    {"release_dir", py_release_dir, METH_O, "Give it back."},
    {"pinned_fd", py_pinned_fd, METH_O, "That descriptor, -1: none."},
    {"add_handle", py_add_handle, METH_VARARGS, "(id, fd, actor, group) -> fh: the lane reads from it and closes it."},
    {"grant", py_grant, METH_VARARGS, "(id, fh, fd, tid, append, seconds): writes like that need no decision."},
    {"revoke", py_revoke, METH_O, "No longer; when the last one went that way (monotonic seconds), 0: none."},
    {"revoke_all", py_revoke_all, METH_NOARGS, "No longer, anywhere."},
    {"reading", py_reading, METH_NOARGS, "[(actor, (path,))] of the handles open for reading."},
    {"inode", py_inode, METH_VARARGS, "(dev, ino) -> the inode number shown."},
    {"next_id", py_next_id, METH_NOARGS, "The id that the next new node will get."},
    {"load", py_load, METH_NOARGS, "Sizes, for status."},
    {"counts", py_counts, METH_NOARGS, "{opcode: requests answered here}"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_lane", "Requests that need no decision, answered without Python.", -1, methods,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__lane(void)
{
    return PyModule_Create(&module);
}
