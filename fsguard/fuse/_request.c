/* What pyfuse3 does not say about the request being handled, and does not let us say in the reply.
 *
 * This module is loaded with RTLD_GLOBAL before pyfuse3, so that pyfuse3's calls to five functions
 * of libfuse reach the definitions below first (symbol interposition). Each of them looks, or
 * changes one detail, and calls the real function:
 *
 *   fuse_session_process_buf   notes header fields of the request (who sent it, WRITE flags, ...)
 *   fuse_session_receive_buf   a request that vanished between poll and read is no error
 *   fuse_reply_entry           \
 *   fuse_reply_create           > the node id is taken from `generation`, so that it can differ
 *   fuse_add_direntry_plus     /  from st_ino (pyfuse3 has one attribute for both)
 *
 * No libfuse header is needed: only the leading members of its structures are touched, which are
 * the same from libfuse 3.0 to 3.18. Everything runs with the GIL held, in the thread that runs
 * the FUSE loop.
 *
 * Requests that pyfuse3 has no handler for may be answered here as well, by a Python function.
 */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>

/* ---- the protocol: include/uapi/linux/fuse.h, unchanged since 7.12 as far as read here ---- */

enum { OP_SETATTR = 4, OP_OPEN = 14, OP_WRITE = 16, OP_SETXATTR = 21, OP_CREATE = 35, OP_INTERRUPT = 36 };
enum { HEADER_SIZE = 40 };

struct in_header {
    uint32_t len, opcode;
    uint64_t unique, nodeid;
    uint32_t uid, gid, pid, padding;
};

/* Where the interesting 32-bit word lies in the body of a request, -1: nowhere. */
static int flags_offset(uint32_t opcode)
{
    switch (opcode) {
    case OP_SETATTR: return 0;  /* valid */
    case OP_OPEN: return 4;     /* open_flags */
    case OP_WRITE: return 20;   /* write_flags */
    case OP_SETXATTR: return 4; /* XATTR_CREATE, XATTR_REPLACE */
    case OP_CREATE: return 12;  /* open_flags */
    default: return -1;
    }
}

/* ---- libfuse ---- */

struct buf { /* struct fuse_buf, leading members */
    size_t size;
    int flags;
    void *mem;
};
enum { BUF_IS_FD = 1 << 1 };

struct entry { /* struct fuse_entry_param, leading members */
    uint64_t ino, generation;
};

static int (*real_fd)(void *);
static void (*real_process)(void *, const struct buf *);
static int (*real_receive)(void *, struct buf *);
static void (*real_exit)(void *);
static int (*real_entry)(void *, const struct entry *);
static int (*real_create)(void *, const struct entry *, const void *);
static size_t (*real_direntry)(void *, char *, size_t, const char *, const struct entry *, off_t);

static int find_libfuse(struct dl_phdr_info *info, size_t size, void *found)
{
    (void)size;
    const char *base = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;
    base = base ? base + 1 : info->dlpi_name;
    if (base == NULL || strncmp(base, "libfuse3", 8) != 0)
        return 0;
    *(void **)found = dlopen(info->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
    return *(void **)found != NULL;
}

/* The functions of the libfuse that pyfuse3 has loaded, whatever its soname (.so.3, .so.4, or
 * one renamed inside a wheel). The handle is kept: it must not be unloaded. */
static int resolve(void)
{
    void *lib = NULL;
    if (real_process)
        return 1;
    dl_iterate_phdr(find_libfuse, &lib);
    if (lib == NULL)
        return 0;
    *(void **)&real_receive = dlsym(lib, "fuse_session_receive_buf");
    *(void **)&real_exit = dlsym(lib, "fuse_session_exit");
    *(void **)&real_fd = dlsym(lib, "fuse_session_fd");
    *(void **)&real_entry = dlsym(lib, "fuse_reply_entry");
    *(void **)&real_create = dlsym(lib, "fuse_reply_create");
    *(void **)&real_direntry = dlsym(lib, "fuse_add_direntry_plus");
    if (!real_exit || !real_fd || !real_receive || !real_entry || !real_create || !real_direntry)
        return 0;
    *(void **)&real_process = dlsym(lib, "fuse_session_process_buf");
    return real_process != NULL;
}

static void need(void)
{
    if (!resolve())
        Py_FatalError("fsguard: libfuse3 cannot be found among the loaded libraries");
}

/* ---- what was seen ---- */

static struct in_header current;
static uint32_t current_flags, current_file_flags;
static uint64_t seen;

enum { RING = 4096 };
static uint64_t interrupts[RING];
static uint64_t ring_head, ring_tail; /* head: next to write; tail: next to take */

static void look_at(const unsigned char *mem, size_t size)
{
    memset(&current, 0, sizeof current);
    current_flags = current_file_flags = 0;
    if (mem == NULL || size < HEADER_SIZE)
        return;
    memcpy(&current, mem, sizeof current);
    if (current.opcode == OP_INTERRUPT) {
        if (size < HEADER_SIZE + sizeof(uint64_t))
            return;
        if (ring_head - ring_tail == RING)
            ring_tail++; /* full: the oldest is forgotten, its request has long been answered */
        memcpy(&interrupts[ring_head++ % RING], mem + HEADER_SIZE, sizeof(uint64_t));
        return;
    }
    int at = flags_offset(current.opcode);
    if (at >= 0 && size >= HEADER_SIZE + (size_t)at + sizeof current_flags)
        memcpy(&current_flags, mem + HEADER_SIZE + at, sizeof current_flags);
    if (current.opcode == OP_WRITE && size >= HEADER_SIZE + 36)
        memcpy(&current_file_flags, mem + HEADER_SIZE + 32, sizeof current_file_flags);
}

/* ---- requests that pyfuse3 has no handler for ---- */

static PyObject *answerer;      /* called with (opcode, nodeid, body), gives bytes or an errno */
static uint64_t answered;       /* bit n: opcode n goes there */

struct out_header {
    uint32_t len;
    int32_t error;
    uint64_t unique;
};

static void answer(void *session, const unsigned char *body, size_t size)
{
    struct out_header out = {sizeof out, -EIO, current.unique};
    const char *payload = NULL;
    PyObject *reply = PyObject_CallFunction(answerer, "IKy#", (unsigned)current.opcode,
                                            (unsigned long long)current.nodeid, (const char *)body,
                                            (Py_ssize_t)size);
    if (reply == NULL) {
        PyErr_WriteUnraisable(answerer);
    } else if (PyBytes_Check(reply)) {
        payload = PyBytes_AS_STRING(reply);
        out.len += (uint32_t)PyBytes_GET_SIZE(reply);
        out.error = 0;
    } else {
        long code = PyLong_AsLong(reply);
        if (code > 0 && code < 512)
            out.error = -(int32_t)code;
        PyErr_Clear();
    }
    struct iovec parts[2] = {{&out, sizeof out}, {(void *)payload, out.len - sizeof out}};
    ssize_t sent;
    do
        sent = writev(real_fd(session), parts, payload ? 2 : 1);
    while (sent < 0 && errno == EINTR);
    /* Other errors: the caller is gone (ENOENT) or the mount is (ENODEV). Nobody waits. */
    Py_XDECREF(reply);
}

/* ---- requests that come from the lane instead of /dev/fuse ---- */

static int (*source)(struct buf *);       /* the next request; see queue_receive() in lane/queue.c */
static unsigned (*pending)(void);         /* is there anything that Python should know first? */
static PyObject *before;                  /* then this is called */

static void tell_before(void)
{
    if (!pending || !before || pending() == 0)
        return;
    PyObject *result = PyObject_CallNoArgs(before);
    if (result == NULL)
        PyErr_WriteUnraisable(before);
    Py_XDECREF(result);
}

#define EXPORTED __attribute__((visibility("default")))

EXPORTED void fuse_session_process_buf(void *session, const struct buf *buf);
EXPORTED int fuse_session_receive_buf(void *session, struct buf *buf);
EXPORTED int fuse_reply_entry(void *req, const struct entry *e);
EXPORTED int fuse_reply_create(void *req, const struct entry *e, const void *fi);
EXPORTED size_t fuse_add_direntry_plus(void *req, char *buf, size_t size, const char *name,
                                       const struct entry *e, off_t off);

void fuse_session_process_buf(void *session, const struct buf *buf)
{
    need();
    if (buf == NULL || (buf->flags & BUF_IS_FD))
        look_at(NULL, 0); /* spliced: the bytes are in a pipe, leave them there */
    else
        look_at(buf->mem, buf->size);
    seen++;
    tell_before();
    if (answerer && current.opcode < 64 && (answered >> current.opcode & 1))
        answer(session, (const unsigned char *)buf->mem + HEADER_SIZE, buf->size - HEADER_SIZE);
    else
        real_process(session, buf);
}

int fuse_session_receive_buf(void *session, struct buf *buf)
{
    need();
    if (source) {
        int size = source(buf);
        if (size == 0) /* over; pyfuse3 would start another worker */
            real_exit(session);
        return size;
    }
    int got = real_receive(session, buf);
    /* The descriptor is non-blocking: when the caller was killed after poll() and before read(),
     * the kernel takes the request back. pyfuse3 ends at anything but EINTR. */
    return got == -EAGAIN ? -EINTR : got;
}

/* Both fields live in a Python object's memory, which is writable; they are put back because the
 * object may be used for a further reply. */
static struct entry swap(const struct entry *e)
{
    struct entry saved = *e, *writable = (struct entry *)e;
    writable->ino = saved.generation;
    writable->generation = 0;
    return saved;
}

int fuse_reply_entry(void *req, const struct entry *e)
{
    need();
    struct entry saved = swap(e);
    int result = real_entry(req, e);
    *(struct entry *)e = saved;
    return result;
}

int fuse_reply_create(void *req, const struct entry *e, const void *fi)
{
    need();
    struct entry saved = swap(e);
    int result = real_create(req, e, fi);
    *(struct entry *)e = saved;
    return result;
}

size_t fuse_add_direntry_plus(void *req, char *buf, size_t size, const char *name,
                              const struct entry *e, off_t off)
{
    need();
    if (e == NULL) /* "how much room would it take?" */
        return real_direntry(req, buf, size, name, e, off);
    struct entry saved = swap(e);
    size_t result = real_direntry(req, buf, size, name, e, off);
    *(struct entry *)e = saved;
    return result;
}

/* ---- for Python ---- */

static PyObject *py_ready(PyObject *self, PyObject *none)
{
    (void)self, (void)none;
    return PyBool_FromLong(resolve());
}

static PyObject *py_seen(PyObject *self, PyObject *none)
{
    (void)self, (void)none;
    return PyLong_FromUnsignedLongLong(seen);
}

static PyObject *py_tid(PyObject *self, PyObject *none)
{
    (void)self, (void)none;
    return PyLong_FromUnsignedLong(current.pid);
}

static PyObject *py_flags(PyObject *self, PyObject *none)
{
    (void)self, (void)none;
    return PyLong_FromUnsignedLong(current_flags);
}

static PyObject *py_file_flags(PyObject *self, PyObject *none)
{
    (void)self, (void)none;
    return PyLong_FromUnsignedLong(current_file_flags);
}

static PyObject *py_unique(PyObject *self, PyObject *none)
{
    (void)self, (void)none;
    return PyLong_FromUnsignedLongLong(current.unique);
}

static PyObject *py_current(PyObject *self, PyObject *none)
{
    (void)self, (void)none;
    return Py_BuildValue("IKII", (unsigned)current.opcode, (unsigned long long)current.unique,
                         (unsigned)current.pid, (unsigned)current_flags);
}

static PyObject *py_take_interrupts(PyObject *self, PyObject *none)
{
    (void)self, (void)none;
    PyObject *list = PyList_New(0);
    while (list && ring_tail != ring_head) {
        PyObject *item = PyLong_FromUnsignedLongLong(interrupts[ring_tail % RING]);
        if (item == NULL || PyList_Append(list, item) < 0)
            Py_CLEAR(list);
        else
            ring_tail++;
        Py_XDECREF(item);
    }
    return list;
}

static PyObject *py_answer(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *callable;
    unsigned long long opcodes;
    if (!PyArg_ParseTuple(args, "OK", &callable, &opcodes))
        return NULL;
    if (callable == Py_None)
        callable = NULL;
    Py_XINCREF(callable);
    Py_XSETREF(answerer, callable);
    answered = callable ? opcodes : 0;
    Py_RETURN_NONE;
}

static PyObject *py_take_from(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *receive, *count, *callable;
    if (!PyArg_ParseTuple(args, "OOO", &receive, &count, &callable))
        return NULL;
    void *source_of = PyCapsule_GetPointer(receive, "fsguard.receive");
    void *pending_of = source_of ? PyCapsule_GetPointer(count, "fsguard.pending") : NULL;
    if (pending_of == NULL)
        return NULL;
    *(void **)&source = source_of;
    *(void **)&pending = pending_of;
    Py_INCREF(callable);
    Py_XSETREF(before, callable);
    Py_RETURN_NONE;
}

static PyObject *py_look(PyObject *self, PyObject *arg)
{
    (void)self;
    Py_buffer view;
    if (PyObject_GetBuffer(arg, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    look_at(view.buf, (size_t)view.len);
    PyBuffer_Release(&view);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"ready", py_ready, METH_NOARGS, "Whether the real functions of libfuse were found."},
    {"seen", py_seen, METH_NOARGS, "Requests seen so far; 0 after the first one: not interposed."},
    {"tid", py_tid, METH_NOARGS, "Thread id of the current request's sender, 0: unknown."},
    {"flags", py_flags, METH_NOARGS, "write_flags, open_flags, valid or xattr flags, by opcode."},
    {"file_flags", py_file_flags, METH_NOARGS, "WRITE: the file's flags now (O_APPEND may come and go)."},
    {"unique", py_unique, METH_NOARGS, "The current request's number."},
    {"current", py_current, METH_NOARGS, "(opcode, unique, tid, flags) of the current request."},
    {"take_interrupts", py_take_interrupts, METH_NOARGS, "Numbers of the requests interrupted since."},
    {"answer", py_answer, METH_VARARGS, "Let a callable answer the opcodes of a bit mask (None: no more)."},
    {"take_from", py_take_from, METH_VARARGS,
     "(receive, pending, before): requests come from there; before() is called first when something is pending."},
    {"look", py_look, METH_O, "Take a raw request as the current one."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_request", "The FUSE request being handled.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__request(void)
{
    return PyModule_Create(&module);
}
