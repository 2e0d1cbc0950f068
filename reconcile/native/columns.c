/* Taking columns from Python, with every size checked. */

#include "kernel.h"

int hold(columns *held, PyObject *const *arguments, const column_kind *kinds, int count)
{
    held->count = 0;
    for (int i = 0; i < count; i++) {
        Py_buffer *view = &held->views[i];
        int flags = kinds[i].written ? PyBUF_WRITABLE : PyBUF_SIMPLE;
        if (PyObject_GetBuffer(arguments[i], view, flags) < 0) {
            release(held);
            return -1;
        }
        held->count = i + 1;
        held->at[i] = view->buf;
        held->rows[i] = view->len / kinds[i].row_bytes;
        if (view->len % kinds[i].row_bytes) {
            release(held);
            PyErr_Format(PyExc_ValueError, "column %d has no whole rows of %zd bytes: pass others",
                         i, kinds[i].row_bytes);
            return -1;
        }
    }
    return 0;
}

void release(columns *held)
{
    while (held->count)
        PyBuffer_Release(&held->views[--held->count]);
}

int check_arguments(const char *name, Py_ssize_t given, Py_ssize_t expected)
{
    if (given == expected)
        return 0;
    PyErr_Format(PyExc_TypeError, "%s takes %zd arguments and got %zd: pass all of them", name,
                 expected, given);
    return -1;
}

int misfit(const char *name)
{
    PyErr_Format(PyExc_ValueError, "the columns of %s do not fit each other: pass ones that do",
                 name);
    return -1;
}

int size_argument(PyObject *argument, Py_ssize_t *value)
{
    *value = PyLong_AsSsize_t(argument);
    if (*value >= 0)
        return 0;
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "a size is negative: pass 0 or more");
    return -1;
}
