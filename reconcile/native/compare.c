/* Two ascending sequences of IDs beside each other. */

#include "kernel.h"

/* Before, equal or after, as -1, 0 or 1. */
static inline int compare(const uint8_t *times, const uint8_t *hashes, Py_ssize_t row,
                          const uint8_t *other_times, const uint8_t *other_hashes,
                          Py_ssize_t other)
{
    int64_t time = load(times, row), other_time = load(other_times, other);
    if (time != other_time)
        return time < other_time ? -1 : 1;
    if (same_hash(load_hash(hashes, row), load_hash(other_hashes, other)))
        return 0;
    int order = memcmp(hashes + row * HASH_BYTES, other_hashes + other * HASH_BYTES, HASH_BYTES);
    return (order > 0) - (order < 0);
}

enum { M_LOCAL, M_LOCAL_HASHES, M_REMOTE, M_REMOTE_HASHES, M_PLACES, M_FOUND };

static inline int compare_rows(const columns *held, Py_ssize_t local, Py_ssize_t remote)
{
    return compare(held->at[M_LOCAL], held->at[M_LOCAL_HASHES], local, held->at[M_REMOTE],
                   held->at[M_REMOTE_HASHES], remote);
}

/* The first local row, from one on, that is not before a remote one. */
static Py_ssize_t place_of(const columns *held, Py_ssize_t low, Py_ssize_t remote)
{
    Py_ssize_t high = held->rows[M_LOCAL];
    for (Py_ssize_t step = 1; step < high - low; step *= 2) {
        if (compare_rows(held, low + step - 1, remote) >= 0) {
            high = low + step - 1;
            break;
        }
        low += step;
    }
    while (low < high) {
        Py_ssize_t middle = low + (high - low) / 2;
        if (compare_rows(held, middle, remote) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* match(local times, local hashes, remote times, remote hashes, places, found) -> None */
static PyObject *work_match(const rows_t *rows, columns *held)
{
    (void)rows;
    bool fits = held->rows[M_LOCAL] == held->rows[M_LOCAL_HASHES];
    for (int i = M_REMOTE_HASHES; i <= M_FOUND; i++)
        fits &= held->rows[i] == held->rows[M_REMOTE];
    if (!fits)
        return NULL;
    PyThreadState *state = let_go(held->rows[M_REMOTE] * HASH_BYTES);
    Py_ssize_t place = 0;
    for (Py_ssize_t row = 0; row < held->rows[M_REMOTE]; row++) {
        place = place_of(held, place, row);
        store(held->at[M_PLACES], row, place);
        held->at[M_FOUND][row] =
            place < held->rows[M_LOCAL] && compare_rows(held, place, row) == 0;
    }
    take_back(state);
    return none_if(true);
}

CALL(match, ALONE, READ(8), READ(32), READ(8), READ(32), WRITTEN(8), WRITTEN(1))
