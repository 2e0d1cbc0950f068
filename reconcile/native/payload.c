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

/* survey(data, at, max_ranges, max_items)
 *   -> (ranges, items, some bound has a hash), or None: it is refused
 */
PyObject *kernel_survey(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    reader_t from;
    if (check_arguments("survey", given, 4) < 0 || open_at(&from, arguments[0], arguments[1]) < 0 ||
        size_argument(arguments[2], &from.most.ranges) < 0 ||
        size_argument(arguments[3], &from.most.items) < 0)
        return NULL;
    PyThreadState *state = let_go(left(&from));
    bool sound = read_all(&from, false);
    take_back(state);
    if (!sound)
        Py_RETURN_NONE;
    return Py_BuildValue("nni", from.done.ranges, from.done.items, (int)from.done.prefixed);
}

/* parse(data, at, times, hashes, kinds, fingerprints, counts, reconciled, item times, item hashes)
 *   -> None; fills columns that are as long as `survey` said. Without rows in `hashes` the hashes
 *   of bounds are not written; what a range does not have is not, either.
 */
PyObject *kernel_parse(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    static const column_kind kinds[] = {WRITTEN(8), WRITTEN(32), WRITTEN(1), WRITTEN(32),
                                        WRITTEN(8), WRITTEN(1),  WRITTEN(8), WRITTEN(32)};
    reader_t from;
    columns held;
    if (check_arguments("parse", given, 10) < 0 || open_at(&from, arguments[0], arguments[1]) < 0)
        return NULL;
    if (hold(&held, arguments + 2, kinds, 8) < 0)
        return NULL;
    from.most = (counts_t){held.rows[0], held.rows[6], false};
    from.to = (sinks_t){held.at[0], held.rows[1] ? held.at[1] : NULL, held.at[2], held.at[3],
                        held.at[4], held.at[5],                       held.at[6], held.at[7]};
    bool fits = held.rows[7] == held.rows[6] && (!held.rows[1] || held.rows[1] == held.rows[0]);
    for (int i = 2; i < 6; i++)
        fits &= held.rows[i] == held.rows[0];
    if (fits) {
        PyThreadState *state = let_go(left(&from));
        fits = read_all(&from, true);
        take_back(state);
    }
    release(&held);
    if (!fits) {
        misfit("parse");
        return NULL;
    }
    Py_RETURN_NONE;
}
