/* Balances that are kept beside an index. */

#include "slices.h"

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
