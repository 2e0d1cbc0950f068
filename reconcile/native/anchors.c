/* Sums that are kept beside an index: balances, and what runs up to anchors. */

#include "slices.h"

#define ANCHOR_BITS 0x3E /* of the first byte of a hash: an anchor has none of them */
#define ANCHORS_APART 32 /* IDs from one anchor to the next, at least */

/* balance(prefix, samples) -> None; sample i is the balance of the first 4 i IDs. */
static PyObject *work_balance(const rows_t *rows, columns *held)
{
    (void)rows;
    Py_ssize_t count = held->rows[0] - 1;
    if (count < 0 || held->rows[1] != count / SAMPLE + 1)
        return NULL;
    PyThreadState *state = let_go(count * HASH_BYTES);
    int32_t sum = 0;
    for (Py_ssize_t row = 0; row <= count; row++) {
        if (row % SAMPLE == 0)
            memcpy(held->at[1] + row / SAMPLE * 4, &sum, sizeof sum);
        if (row < count)
            sum += balance_at(held->at[0], row);
    }
    take_back(state);
    return none_if(true);
}

CALL(balance, ALONE, READ(32), WRITTEN(4))

/* Choose anchors of a chunk, and say what is before them; how many there are. */
static Py_ssize_t choose_anchors(const uint8_t *times, const uint8_t *prefix,
                                 const uint8_t *samples, Py_ssize_t count, uint8_t *anchors)
{
    Py_ssize_t last = 0, found = 0;
    for (Py_ssize_t row = ANCHORS_APART; row < count; row++) {
        uint8_t octet = prefix[row * HASH_BYTES] ^ prefix[(row + 1) * HASH_BYTES];
        if (octet & ANCHOR_BITS || row - last < ANCHORS_APART ||
            load(times, row) <= load(times, row - 1))
            continue;
        uint8_t *to = anchors + found++ * ANCHOR_BYTES;
        store(to, R_TIME, load(times, row));
        store(to, R_PLACE, row);
        store(to, R_BEFORE, load(times, row - 1));
        store(to, R_BALANCE, balance_of(prefix, samples, row));
        memcpy(to + R_RUNNING * TIME_BYTES, prefix + row * HASH_BYTES, HASH_BYTES);
        last = row;
    }
    return found;
}

/* anchors(times, prefix, samples, anchors) -> how many anchors there are
 *   Each is a row, as slices.h says. */
static PyObject *work_anchors(const rows_t *rows, columns *held)
{
    (void)rows;
    Py_ssize_t count = held->rows[0];
    if (held->rows[1] != count + 1 || held->rows[2] != count / SAMPLE + 1 ||
        held->rows[3] != count / ANCHORS_APART)
        return NULL;
    PyThreadState *state = let_go(count * HASH_BYTES);
    Py_ssize_t found =
        choose_anchors(held->at[0], held->at[1], held->at[2], count, held->at[3]);
    take_back(state);
    return PyLong_FromSsize_t(found);
}

CALL(anchors, ALONE, READ(8), READ(32), READ(4), WRITTEN(ANCHOR_BYTES))
