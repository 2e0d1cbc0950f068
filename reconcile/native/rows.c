/* Opening an index, and calls with one.
 *
 * An index is `reconcile.index.IndexView`: ascending IDs in chunks, each with its timestamps and
 * the running XOR of its hashes. A place is the number of IDs before something.
 */

#include "rows.h"

/* ---- opening ----------------------------------------------------------------------------- */

static int open_chunk(chunk_t *chunk, PyObject *times, PyObject *prefix)
{
    if (PyObject_GetBuffer(times, &chunk->views[0], PyBUF_SIMPLE) < 0)
        return -1;
    if (PyObject_GetBuffer(prefix, &chunk->views[1], PyBUF_SIMPLE) < 0) {
        PyBuffer_Release(&chunk->views[0]);
        return -1;
    }
    chunk->times = chunk->views[0].buf;
    chunk->prefix = chunk->views[1].buf;
    return 0;
}

static bool chunk_fits(const rows_t *rows, int number)
{
    const chunk_t *chunk = &rows->chunks[number];
    Py_ssize_t count = chunk->views[0].len / TIME_BYTES;
    return count > 0 && chunk->views[0].len == count * TIME_BYTES &&
           chunk->views[1].len == (count + 1) * HASH_BYTES &&
           load(rows->starts, number + 1) - load(rows->starts, number) == count;
}

static int open_chunks(rows_t *rows, PyObject *times, PyObject *prefixes)
{
    Py_ssize_t count = PyTuple_Size(times);
    rows->chunks = PyMem_Calloc((size_t)count + 1, sizeof *rows->chunks);
    if (!rows->chunks) {
        PyErr_NoMemory();
        return -1;
    }
    while (rows->count < count) {
        PyObject *own[] = {PyTuple_GetItem(times, rows->count),
                           PyTuple_GetItem(prefixes, rows->count)};
        if (open_chunk(&rows->chunks[rows->count], own[0], own[1]) < 0)
            return -1;
        rows->count++;
        if (!chunk_fits(rows, (int)rows->count - 1))
            return misfit("an index");
    }
    rows->length = count ? (Py_ssize_t)load(rows->starts, count) : 0;
    return 0;
}

/* An index is a tuple: timestamps of the chunks, their running XORs, where they start, bases. */
int open_rows(rows_t *rows, PyObject *index)
{
    static const column_kind kinds[] = {READ(8), READ(32)};
    PyObject *parts[4];
    memset(rows, 0, sizeof *rows);
    if (!PyTuple_Check(index) || PyTuple_Size(index) != 4)
        return misfit("an index");
    for (int i = 0; i < 4; i++)
        parts[i] = PyTuple_GetItem(index, i);
    if (!PyTuple_Check(parts[0]) || !PyTuple_Check(parts[1]) ||
        PyTuple_Size(parts[0]) != PyTuple_Size(parts[1]))
        return misfit("an index");
    if (hold(&rows->places, parts + 2, kinds, 2) < 0)
        return -1;
    rows->starts = rows->places.at[0];
    rows->bases = rows->places.at[1];
    Py_ssize_t count = PyTuple_Size(parts[0]);
    bool fits = rows->places.rows[0] == count + 1 && rows->places.rows[1] == count &&
                load(rows->starts, 0) == 0;
    if (fits && open_chunks(rows, parts[0], parts[1]) == 0)
        return 0;
    close_rows(rows);
    return PyErr_Occurred() ? -1 : misfit("an index");
}

void close_rows(rows_t *rows)
{
    while (rows->count) {
        chunk_t *chunk = &rows->chunks[--rows->count];
        PyBuffer_Release(&chunk->views[0]);
        PyBuffer_Release(&chunk->views[1]);
    }
    PyMem_Free(rows->chunks);
    rows->chunks = NULL;
    release(&rows->places);
}

PyObject *call(const char *name, PyObject *const *arguments, Py_ssize_t given, bool indexed,
               const column_kind *kinds, int count, work *done)
{
    rows_t rows;
    columns held;
    if (check_arguments(name, given, count + indexed) < 0 ||
        (indexed && open_rows(&rows, arguments[0]) < 0))
        return NULL;
    PyObject *found = NULL;
    if (hold(&held, arguments + indexed, kinds, count) == 0) {
        found = done(indexed ? &rows : NULL, &held);
        release(&held);
        if (!found && !PyErr_Occurred())
            misfit(name);
    }
    if (indexed)
        close_rows(&rows);
    return found;
}
