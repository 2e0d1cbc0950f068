/* Looking for single hashes in an index. */

#include "rows.h"

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
