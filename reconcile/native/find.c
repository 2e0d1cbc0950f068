/* Looking up what a compact session found: short IDs among one's own, and the IDs that they are of.
 *
 * What is looked for may be chosen by a peer, so that nothing here depends on how it is spread: at
 * worst each of one's own takes a search by halving.
 */

#include "short.h"

#define NOWHERE (-1)
#define SEVERAL (-2)
#define BLOCK 512
#define SEEN_PER_WANTED 32
#define WORD 64

typedef struct {
    const uint8_t *wanted; /* ascending */
    Py_ssize_t count;
    uint64_t *seen;   /* a bit for some values of which one may be wanted: it stays in the cache */
    uint32_t *starts; /* of the wanted with the same upper bits, where they begin */
    uint64_t mask, seen_mask;
    int shift; /* to the upper bits */
} finder_t;

/* Sizes; false: the mask has not only lower bits, or what is wanted does not ascend below it. */
static bool size_finder(finder_t *finder, uint64_t mask)
{
    int bits = 0;
    while (bits < WORD - 1 && mask >> bits & 1)
        bits++;
    if (!bits || mask >> bits)
        return false;
    finder->mask = mask;
    for (finder->shift = bits; finder->shift && finder->count >> (bits - finder->shift);)
        finder->shift--;
    finder->seen_mask = 8 * WORD - 1;
    while (finder->seen_mask < SEEN_PER_WANTED * (uint64_t)finder->count)
        finder->seen_mask = 2 * finder->seen_mask + 1;
    for (Py_ssize_t row = 0; row < finder->count; row++) {
        int64_t value = load(finder->wanted, row);
        if (value < 0 || (uint64_t)value > mask)
            return false;
        if (row && value <= load(finder->wanted, row - 1))
            return false;
    }
    return true;
}

static void note_wanted(finder_t *finder)
{
    uint64_t next = 0;
    for (Py_ssize_t row = 0; row < finder->count; row++) {
        uint64_t value = (uint64_t)load(finder->wanted, row), bit = value & finder->seen_mask;
        finder->seen[bit / WORD] |= UINT64_C(1) << bit % WORD;
        for (; next <= value >> finder->shift; next++)
            finder->starts[next] = (uint32_t)row;
    }
    for (; next <= (finder->mask >> finder->shift) + 1; next++)
        finder->starts[next] = (uint32_t)finder->count;
}

static void look_for(const finder_t *finder, uint64_t value, Py_ssize_t row, uint8_t *places)
{
    uint64_t upper = value >> finder->shift;
    Py_ssize_t end = finder->starts[upper + 1];
    Py_ssize_t at = search(finder->wanted, finder->starts[upper], end, (int64_t)value);
    if (at < end && (uint64_t)load(finder->wanted, at) == value)
        store(places, at, load(places, at) == NOWHERE ? row : SEVERAL);
}

/* Most are not wanted: which may be is noted without a branch, and looked at afterwards. */
static void look_up(const finder_t *finder, const uint8_t *own, Py_ssize_t count, uint8_t *places)
{
    uint16_t noted[BLOCK];
    for (Py_ssize_t from = 0; from < count; from += BLOCK) {
        int rows = count - from < BLOCK ? (int)(count - from) : BLOCK, some = 0;
        for (int row = 0; row < rows; row++) {
            uint64_t bit = (uint64_t)load(own, from + row) & finder->mask & finder->seen_mask;
            noted[some] = (uint16_t)row;
            some += (int)(finder->seen[bit / WORD] >> bit % WORD & 1);
        }
        for (int row = 0; row < some; row++)
            look_for(finder, (uint64_t)load(own, from + noted[row]) & finder->mask,
                     from + noted[row], places);
    }
}

/* 0, or -1 with an exception: what is wanted or the mask does not fit, or there is no memory. */
static int open_finder(finder_t *finder, const uint8_t *wanted, Py_ssize_t count, uint64_t mask)
{
    *finder = (finder_t){.wanted = wanted, .count = count};
    if (count >= INT32_MAX || !size_finder(finder, mask))
        return misfit("find");
    size_t words = (size_t)(finder->seen_mask / WORD + 1);
    size_t starts = (size_t)(finder->mask >> finder->shift) + 2;
    finder->seen = PyMem_Calloc(words * sizeof *finder->seen + starts * sizeof *finder->starts, 1);
    if (!finder->seen) {
        PyErr_NoMemory();
        return -1;
    }
    finder->starts = (uint32_t *)(finder->seen + words);
    return 0;
}

/* Where all that is wanted is among the own ones. */
static void find_all(const finder_t *finder, const uint8_t *own, Py_ssize_t count, uint8_t *places)
{
    for (Py_ssize_t row = 0; row < finder->count; row++)
        store(places, row, NOWHERE);
    look_up(finder, own, count, places);
}

/* find(wanted, own, mask, places) -> None; where each wanted short ID, which ascend, is among the
 * own ones cut by a mask; -1: nowhere, -2: at several places. */
static PyObject *work_find(const rows_t *rows, columns *held)
{
    (void)rows;
    finder_t finder;
    if (held->rows[2] != 1 || held->rows[3] != held->rows[0] ||
        open_finder(&finder, held->at[0], held->rows[0], (uint64_t)load(held->at[2], 0)) < 0)
        return NULL;
    PyThreadState *state = let_go(held->rows[1] * TIME_BYTES);
    note_wanted(&finder);
    find_all(&finder, held->at[1], held->rows[1], held->at[3]);
    take_back(state);
    PyMem_Free(finder.seen);
    return none_if(true);
}

CALL(find, ALONE, READ(8), READ(8), READ(8), WRITTEN(8))

/* ---- the IDs ------------------------------------------------------------------------------ */

enum { G_LOW, G_HIGH, G_AT, G_TIMES, G_HASHES, G_XOR };

/* Rows of what is gathered from intervals as places; false: there are no such. */
static bool rows_to_places(const rows_t *rows, const columns *held)
{
    Py_ssize_t interval = -1;
    int64_t passed = 0, low = 0, high = 0, before = -1;
    for (Py_ssize_t row = 0; row < held->rows[G_AT]; row++) {
        int64_t at = load(held->at[G_AT], row);
        if (at <= before)
            return false;
        before = at;
        while (at - passed >= high - low) {
            passed += high - low;
            if (++interval == held->rows[G_LOW])
                return false;
            int64_t from = load(held->at[G_LOW], interval);
            if (from < high)
                return false;
            low = from;
            high = load(held->at[G_HIGH], interval);
            if (high < low || high > rows->length)
                return false;
        }
        int64_t place = low + at - passed;
        store(held->at[G_TIMES], row, place);
        expect_running(rows, place);
        if (rows->count == 1)
            expect(rows->chunks[0].times, (Py_ssize_t)place, TIME_BYTES);
    }
    return true;
}

static void take_ids(const rows_t *rows, const columns *held)
{
    hash_t xor = {{0}};
    Py_ssize_t chunk = 0;
    for (Py_ssize_t row = 0; row < held->rows[G_AT]; row++) {
        if (row + AHEAD < held->rows[G_AT]) {
            int64_t later = load(held->at[G_TIMES], row + AHEAD);
            expect_running(rows, later);
            expect_running(rows, later + 1);
            if (rows->count == 1)
                expect(rows->chunks[0].times, (Py_ssize_t)later, TIME_BYTES);
        }
        Py_ssize_t place = (Py_ssize_t)load(held->at[G_TIMES], row);
        go_on(rows, &chunk, place);
        hash_t hash = hash_at(rows, chunk, place);
        store(held->at[G_TIMES], row, time_at(rows, chunk, place));
        store_hash(held->at[G_HASHES], row, hash);
        xor = xored(xor, hash);
    }
    store_hash(held->at[G_XOR], 0, xor);
}

/* gather(index, low, high, at, times, hashes, xor) -> None
 *   The IDs at ascending rows of what ascending intervals of places have together, and the XOR of
 *   their hashes.
 */
static PyObject *work_gather(const rows_t *rows, columns *held)
{
    if (held->rows[G_LOW] != held->rows[G_HIGH] || held->rows[G_AT] != held->rows[G_TIMES] ||
        held->rows[G_AT] != held->rows[G_HASHES] || held->rows[G_XOR] != 1)
        return NULL;
    PyThreadState *state = let_go(held->rows[G_AT] * HASH_BYTES);
    bool fits = rows_to_places(rows, held);
    if (fits)
        take_ids(rows, held);
    take_back(state);
    return none_if(fits);
}

CALL(gather, INDEXED, READ(8), READ(8), READ(8), WRITTEN(8), WRITTEN(32), WRITTEN(32))
