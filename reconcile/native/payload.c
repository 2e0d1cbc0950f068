/* Reading the ranges of a payload (WAKU-SYNC, "Payload encoding").
 *
 * A payload is walked twice: first only to check all of it and to count, then to fill columns of
 * the right length. What is wrong with it is not said here:
 * `reconcile.codec.decoding` reads it again and knows.
 */

#include "reader.h"

static bool read_all(reader_t *from, bool fills)
{
    while (left(from))
        if (!read_range(from, fills))
            return false;
    return true;
}

/* Begin to read at an offset of some bytes; -1 with an exception if there is no such place. */
static int open_at(reader_t *from, PyObject *data, PyObject *offset)
{
    char *bytes;
    Py_ssize_t size, at;
    /* Bytes cannot change between the two walks, or while other threads run. */
    if (PyBytes_AsStringAndSize(data, &bytes, &size) < 0 || size_argument(offset, &at) < 0)
        return -1;
    if (at > size)
        return misfit("parse");
    memset(from, 0, sizeof *from);
    from->at = (const uint8_t *)bytes + at;
    from->end = (const uint8_t *)bytes + size;
    return 0;
}

/* In the order of the columns of `sinks_t`. */
enum { COLUMNS = 8 };

/* Columns of all that `done` counts, filled by a second walk. */
static PyObject *columns_of(reader_t *from, counts_t done)
{
    const Py_ssize_t sizes[COLUMNS] = {
        done.ranges * TIME_BYTES, done.prefixed ? done.ranges * HASH_BYTES : 0,
        done.ranges,              done.ranges * HASH_BYTES,
        done.ranges * TIME_BYTES, done.ranges,
        done.items * TIME_BYTES,  done.items * HASH_BYTES};
    uint8_t *at[COLUMNS];
    PyObject *found = PyTuple_New(COLUMNS);
    for (int i = 0; found && i < COLUMNS; i++) {
        PyObject *column = PyBytes_FromStringAndSize(NULL, sizes[i]);
        if (!column) {
            Py_DECREF(found);
            return NULL;
        }
        at[i] = memset(PyBytes_AsString(column), 0, (size_t)sizes[i]);
        PyTuple_SetItem(found, i, column);
    }
    if (!found)
        return NULL;
    from->to = (sinks_t){at[0], done.prefixed ? at[1] : NULL, at[2], at[3], at[4], at[5], at[6],
                         at[7]};
    PyThreadState *state = let_go(left(from));
    read_all(from, true);
    take_back(state);
    return found;
}

/* parse(data, at, max_ranges, max_items)
 *   -> columns as bytes: times and hashes of bounds, kinds, fingerprints, counts, reconciled, times
 *   and hashes of items; or None: it is refused. Where all bounds begin a nanosecond there are no
 *   hashes of bounds; what a range does not have is zero.
 */
PyObject *kernel_parse(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    reader_t from;
    if (check_arguments("parse", given, 4) < 0 || open_at(&from, arguments[0], arguments[1]) < 0 ||
        size_argument(arguments[2], &from.most.ranges) < 0 ||
        size_argument(arguments[3], &from.most.items) < 0)
        return NULL;
    reader_t again = from;
    PyThreadState *state = let_go(left(&from));
    bool sound = read_all(&from, false);
    take_back(state);
    if (!sound)
        Py_RETURN_NONE;
    return columns_of(&again, from.done);
}
