/* What a view answers beyond fingerprints and IDs: places of bounds, splits, single hashes. */

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

/* ---- split ------------------------------------------------------------------------------- */

enum { S_LOW, S_HIGH, S_OFFSETS, S_UPPER, S_UPPER_HASHES, S_TIMES, S_HASHES, S_COUNTS, S_PRINTS };

typedef enum { DONE, TIED, MISFIT } outcome_t;

typedef struct {
    const rows_t *rows;
    const columns *held;
    Py_ssize_t chunk, running_chunk; /* of the last cut, as a place and as an edge */
} splitter_t;

static inline void put_part(splitter_t *splitter, Py_ssize_t part, Py_ssize_t count,
                            hash_t fingerprint)
{
    store(splitter->held->at[S_COUNTS], part, count);
    store_hash(splitter->held->at[S_PRINTS], part, fingerprint);
}

/* Cut one span at equal counts; TIED: some cut would be between IDs of one time. */
static outcome_t split_span(splitter_t *splitter, Py_ssize_t span)
{
    const rows_t *rows = splitter->rows;
    const columns *held = splitter->held;
    Py_ssize_t low = (Py_ssize_t)load(held->at[S_LOW], span);
    Py_ssize_t count = (Py_ssize_t)load(held->at[S_HIGH], span) - low;
    Py_ssize_t part = (Py_ssize_t)load(held->at[S_OFFSETS], span);
    Py_ssize_t parts = (Py_ssize_t)load(held->at[S_OFFSETS], span + 1) - part;
    if (parts > (count > 1 ? count : 1))
        return MISFIT;
    static const hash_t none;
    hash_t before = rows->count ? running(rows, &splitter->running_chunk, low) : none;
    Py_ssize_t done = low;
    for (Py_ssize_t number = 1; number < parts; number++, part++) {
        Py_ssize_t place = low + count / parts * number + count % parts * number / parts;
        go_on(rows, &splitter->chunk, place - 1);
        int64_t last = time_at(rows, splitter->chunk, place - 1);
        go_on(rows, &splitter->chunk, place);
        int64_t time = time_at(rows, splitter->chunk, place);
        if (time == last)
            return TIED;
        hash_t after = running(rows, &splitter->running_chunk, place);
        store(held->at[S_TIMES], part, time);
        if (held->rows[S_HASHES])
            store_hash(held->at[S_HASHES], part, none);
        put_part(splitter, part, place - done, xored(before, after));
        done = place;
        before = after;
    }
    hash_t after = rows->count ? running(rows, &splitter->running_chunk, low + count) : none;
    store(held->at[S_TIMES], part, load(held->at[S_UPPER], span));
    if (held->rows[S_HASHES])
        store_hash(held->at[S_HASHES], part, load_hash(held->at[S_UPPER_HASHES], span));
    put_part(splitter, part, low + count - done, xored(before, after));
    return DONE;
}

/* Are places ascending and inside the index, and offsets ascending and inside the parts. */
static bool can_split(const rows_t *rows, const columns *held)
{
    Py_ssize_t spans = held->rows[S_LOW], parts = held->rows[S_TIMES];
    if (held->rows[S_HIGH] != spans || held->rows[S_UPPER] != spans ||
        held->rows[S_UPPER_HASHES] != spans || held->rows[S_OFFSETS] != spans + 1 ||
        (held->rows[S_HASHES] && held->rows[S_HASHES] != parts) ||
        held->rows[S_COUNTS] != parts || held->rows[S_PRINTS] != parts)
        return false;
    int64_t place = 0, part = 0;
    if (load(held->at[S_OFFSETS], 0) != 0)
        return false;
    for (Py_ssize_t span = 0; span < spans; span++) {
        int64_t low = load(held->at[S_LOW], span), high = load(held->at[S_HIGH], span);
        int64_t next = load(held->at[S_OFFSETS], span + 1);
        if (low < place || high < low || high > rows->length || next <= part)
            return false;
        place = high;
        part = next;
    }
    return part == parts;
}

/* split(index, low, high, offsets, upper times, upper hashes, times, hashes, counts, fingerprints)
 *   -> whether that is all: False if IDs of one time would be cut apart, which arrays do better.
 *   Span i becomes the parts from offsets[i] on, not more than it has IDs. Without rows in
 *   `hashes` the hashes of bounds are not written.
 */
static PyObject *work_split(const rows_t *rows, columns *held)
{
    splitter_t splitter = {rows, held, 0, 0};
    outcome_t outcome = can_split(rows, held) ? DONE : MISFIT;
    PyThreadState *state = let_go(held->rows[S_TIMES] * HASH_BYTES);
    for (Py_ssize_t span = 0; outcome == DONE && span < held->rows[S_LOW]; span++)
        outcome = split_span(&splitter, span);
    take_back(state);
    return outcome == MISFIT ? NULL : PyBool_FromLong(outcome == DONE);
}

CALL(split, INDEXED, READ(8), READ(8), READ(8), READ(8), READ(32), WRITTEN(8), WRITTEN(32),
     WRITTEN(8), WRITTEN(32))

/* ---- probe ------------------------------------------------------------------------------- */

enum { B_LOW, B_HIGH, B_WANTED, B_TIMES, B_HASHES, B_HIT, B_ALONE };

static bool probe_all(const rows_t *rows, const columns *held)
{
    static const hash_t none;
    around_t around = {0, 0, 0};
    Py_ssize_t chunk = 0;
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
            go_on(rows, &around.own, found);
            time = time_at(rows, around.own, found);
        }
        store(held->at[B_TIMES], row, time);
        store_hash(held->at[B_HASHES], row, hit ? wanted : none);
        held->at[B_HIT][row] = hit;
        held->at[B_ALONE][row] = hit && is_alone(rows, &around, found, time);
    }
    return true;
}

/* probe(index, low, high, wanted, times, hashes, hit, alone) -> None; intervals ascend. */
static PyObject *work_probe(const rows_t *rows, columns *held)
{
    for (int i = B_HIGH; i <= B_ALONE; i++)
        if (held->rows[i] != held->rows[B_LOW])
            return NULL;
    /* What is scanned is not known beforehand; usually it is much more than what is asked. */
    PyThreadState *state = let_go(held->rows[B_LOW] ? LONG_WORK_BYTES : 0);
    bool fits = probe_all(rows, held);
    take_back(state);
    return none_if(fits);
}

CALL(probe, INDEXED, READ(8), READ(8), READ(32), WRITTEN(8), WRITTEN(32), WRITTEN(1), WRITTEN(1))
