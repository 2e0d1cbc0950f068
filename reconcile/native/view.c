/* What a view answers beyond fingerprints and IDs: places of bounds, single hashes. */

#include "rows.h"

/* ---- places ------------------------------------------------------------------------------ */

enum { P_LOWER, P_LOWER_HASHES, P_UPPER, P_UPPER_HASHES, P_LOW, P_HIGH };

static void find_places(const rows_t *rows, const columns *held)
{
    Py_ssize_t count = held->rows[P_LOWER];
    finger_t finger = {0, 0, 1 + rows->length / (2 * count + 1)};
    int64_t before = 0;
    Py_ssize_t place = 0;
    for (Py_ssize_t row = 0; row < count; row++) {
        int64_t lower = load(held->at[P_LOWER], row), upper = load(held->at[P_UPPER], row);
        if (!row || lower != before)
            place = rank(rows, &finger, lower);
        store(held->at[P_LOW], row, place);
        place = rank(rows, &finger, upper);
        store(held->at[P_HIGH], row, place);
        before = upper;
    }
}

/* places(index, lower times, lower hashes, upper times, upper hashes, low, high)
 *   -> whether that is all: False if a bound has a hash, and nothing was written. Spans ascend.
 */
static PyObject *work_places(const rows_t *rows, columns *held)
{
    for (int i = P_LOWER_HASHES; i <= P_HIGH; i++)
        if (held->rows[i] != held->rows[P_LOWER])
            return NULL;
    bool plain = all_zero(held->at[P_LOWER_HASHES], held->rows[P_LOWER]) &&
                 all_zero(held->at[P_UPPER_HASHES], held->rows[P_LOWER]);
    if (plain) {
        PyThreadState *state = let_go(held->rows[P_LOWER] * HASH_BYTES);
        find_places(rows, held);
        take_back(state);
    }
    return PyBool_FromLong(plain);
}

CALL(places, INDEXED, READ(8), READ(32), READ(8), READ(32), WRITTEN(8), WRITTEN(8))

/* ---- probe ------------------------------------------------------------------------------- */

enum { B_LOW, B_HIGH, B_WANTED, B_TIMES, B_HASHES, B_HIT };

static bool probe_all(const rows_t *rows, const columns *held)
{
    static const hash_t none;
    Py_ssize_t chunk = 0, own = 0;
    int64_t before = 0;
    for (Py_ssize_t row = 0; row < held->rows[B_LOW]; row++) {
        int64_t low = load(held->at[B_LOW], row), high = load(held->at[B_HIGH], row), time = 0;
        if (row + AHEAD < held->rows[B_LOW])
            expect_running(rows, load(held->at[B_LOW], row + AHEAD));
        if (low < before || high < low || high > rows->length)
            return false;
        before = high;
        hash_t wanted = load_hash(held->at[B_WANTED], row);
        Py_ssize_t found = 0;
        bool hit = probe_span(rows, &chunk, low, high, wanted, &found) == 1;
        if (hit) {
            go_on(rows, &own, found);
            time = time_at(rows, own, found);
        }
        store(held->at[B_TIMES], row, time);
        store_hash(held->at[B_HASHES], row, hit ? wanted : none);
        held->at[B_HIT][row] = hit;
    }
    return true;
}

/* probe(index, low, high, wanted, times, hashes, hit) -> None; intervals ascend. */
static PyObject *work_probe(const rows_t *rows, columns *held)
{
    for (int i = B_HIGH; i <= B_HIT; i++)
        if (held->rows[i] != held->rows[B_LOW])
            return NULL;
    /* What is scanned is not known beforehand; usually it is much more than what is asked. */
    PyThreadState *state = let_go(held->rows[B_LOW] ? LONG_WORK_BYTES : 0);
    bool fits = probe_all(rows, held);
    take_back(state);
    return none_if(fits);
}

CALL(probe, INDEXED, READ(8), READ(8), READ(32), WRITTEN(8), WRITTEN(32), WRITTEN(1))
