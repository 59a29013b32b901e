/* What Python's os module lacks for a keeper and its workers (keeper.py). */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <linux/sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef PR_GET_TID_ADDRESS
#define PR_GET_TID_ADDRESS 40
#endif

/* fork(2) with the table of descriptors shared. The C library does not offer that, so the one field in
 * which it keeps the thread's number is set by the kernel, as its own fork() has it done. */
static PyObject *clone_sharing(PyObject *self, PyObject *none)
{
    int *tid = NULL;
    (void)self, (void)none;
    if (prctl(PR_GET_TID_ADDRESS, &tid, 0, 0, 0) < 0 || tid == NULL || *tid != (int)syscall(SYS_gettid)) {
        errno = ENOSYS;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    PyOS_BeforeFork();
    /* Not clone3, which sandboxes refuse because they can't look into it (systemd's RestrictNamespaces=). The last
     * two arguments are in another order on each kind of processor; without CLONE_SETTLS one of them counts. */
    long pid = syscall(SYS_clone, CLONE_FILES | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID | SIGCHLD, NULL, NULL, tid, tid);
    int error = errno;
    if (pid == 0)
        PyOS_AfterFork_Child();
    else
        PyOS_AfterFork_Parent();
    if (pid < 0) {
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return PyLong_FromLong(pid);
}

static PyObject *die_with_parent(PyObject *self, PyObject *on)
{
    (void)self;
    int wanted = PyObject_IsTrue(on);
    if (wanted < 0)
        return NULL;
    if (prctl(PR_SET_PDEATHSIG, wanted ? SIGKILL : 0, 0, 0, 0) < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"clone_sharing", clone_sharing, METH_NOARGS,
     "clone_sharing() -> pid, 0 in the child\n\nAs os.fork(), with one table of descriptors for both: what either\n"
     "opens or closes, both have. For processes with one thread. OSError: it can't be had here."},
    {"die_with_parent", die_with_parent, METH_O, "die_with_parent(on): whether SIGKILL comes when the parent ends."},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "fsguard._clone", .m_size = -1, .m_methods = methods,
};
PyMODINIT_FUNC PyInit__clone(void) { return PyModule_Create(&module); }
