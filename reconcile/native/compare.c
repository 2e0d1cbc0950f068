/* Two ascending sequences of IDs beside each other, and the sets that show where they differ. */

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

/* ---- match ------------------------------------------------------------------------------- */

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
PyObject *kernel_match(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    static const column_kind kinds[] = {READ(8),  READ(32),   READ(8),
                                        READ(32), WRITTEN(8), WRITTEN(1)};
    columns held;
    if (check_arguments("match", given, 6) < 0 || hold(&held, arguments, kinds, 6) < 0)
        return NULL;
    bool fits = held.rows[M_LOCAL] == held.rows[M_LOCAL_HASHES];
    for (int i = M_REMOTE_HASHES; i <= M_FOUND; i++)
        fits &= held.rows[i] == held.rows[M_REMOTE];
    if (fits) {
        PyThreadState *state = let_go(held.rows[M_REMOTE] * HASH_BYTES);
        Py_ssize_t place = 0;
        for (Py_ssize_t row = 0; row < held.rows[M_REMOTE]; row++) {
            place = place_of(&held, place, row);
            bool inside = place < held.rows[M_LOCAL];
            store(held.at[M_PLACES], row, place);
            held.at[M_FOUND][row] = inside && compare_rows(&held, place, row) == 0;
        }
        take_back(state);
    }
    release(&held);
    if (!fits) {
        misfit("match");
        return NULL;
    }
    Py_RETURN_NONE;
}

/* ---- differences ------------------------------------------------------------------------- */

enum { D_LOCAL, D_LOCAL_HASHES, D_REMOTE, D_REMOTE_HASHES, D_MARKS, D_MERGED };

/* A mark is the row of a difference on its side, doubled, and one more if it is ours. */
static inline void put_mark(const columns *held, Py_ssize_t at, Py_ssize_t row, bool ours,
                            Py_ssize_t merged)
{
    store(held->at[D_MARKS], at, 2 * (int64_t)row + ours);
    store(held->at[D_MERGED], at, merged);
}

static Py_ssize_t find_differences(const columns *held)
{
    Py_ssize_t local = 0, remote = 0, theirs = 0, found = 0;
    while (local < held->rows[D_LOCAL] || remote < held->rows[D_REMOTE]) {
        int order = remote == held->rows[D_REMOTE] ? -1
                    : local == held->rows[D_LOCAL] ? 1
                                                   : compare_rows(held, local, remote);
        if (order < 0)
            put_mark(held, found++, local, true, local + theirs);
        else if (order > 0)
            put_mark(held, found++, remote, false, local + theirs);
        theirs += order > 0;
        local += order <= 0;
        remote += order >= 0;
    }
    return found;
}

/* differences(local times, local hashes, remote times, remote hashes, marks, merged)
 *   -> how many there are. The last two have room for all IDs of both sides; `merged` is the place
 *   of each among the IDs of both sides together.
 */
PyObject *kernel_differences(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    static const column_kind kinds[] = {READ(8),  READ(32),   READ(8),
                                        READ(32), WRITTEN(8), WRITTEN(8)};
    columns held;
    if (check_arguments("differences", given, 6) < 0 || hold(&held, arguments, kinds, 6) < 0)
        return NULL;
    Py_ssize_t all = held.rows[D_LOCAL] + held.rows[D_REMOTE], found = 0;
    bool fits = held.rows[D_LOCAL] == held.rows[D_LOCAL_HASHES] &&
                held.rows[D_REMOTE] == held.rows[D_REMOTE_HASHES] && held.rows[D_MARKS] == all &&
                held.rows[D_MERGED] == all;
    if (fits) {
        PyThreadState *state = let_go(all * HASH_BYTES);
        found = find_differences(&held);
        take_back(state);
    }
    release(&held);
    if (fits)
        return PyLong_FromSsize_t(found);
    misfit("differences");
    return NULL;
}

enum {
    C_LOCAL, C_LOCAL_HASHES, C_LOCAL_OFFSETS, C_REMOTE, C_REMOTE_HASHES, C_REMOTE_OFFSETS,
    C_MARKS, C_MERGED, C_TIMES, C_HASHES, C_OURS, C_SETS, C_NEXT_LOCAL
};

/* The set that a row is in, at `set` or behind it; -1: it is in none. */
static inline Py_ssize_t set_of(const uint8_t *offsets, Py_ssize_t count, Py_ssize_t set,
                                int64_t row)
{
    while (set < count && load(offsets, set + 1) <= row)
        set++;
    return set < count ? set : -1;
}

static bool describe_all(const columns *held)
{
    Py_ssize_t sets[2] = {0, 0}, theirs = 0;
    for (Py_ssize_t at = 0; at < held->rows[C_MARKS]; at++) {
        int64_t mark = load(held->at[C_MARKS], at), row = mark >> 1;
        bool ours = mark & 1;
        int side = ours ? C_LOCAL : C_REMOTE;
        if (row < 0 || row >= held->rows[side])
            return false;
        Py_ssize_t set = set_of(held->at[side + 2], held->rows[side + 2] - 1, sets[ours], row);
        if (set < 0)
            return false;
        sets[ours] = set;
        store(held->at[C_TIMES], at, load(held->at[side], (Py_ssize_t)row));
        store_hash(held->at[C_HASHES], at, load_hash(held->at[side + 1], (Py_ssize_t)row));
        held->at[C_OURS][at] = ours;
        store(held->at[C_SETS], at, set);
        store(held->at[C_NEXT_LOCAL], at, ours ? row : load(held->at[C_MERGED], at) - theirs);
        theirs += !ours;
    }
    return true;
}

/* describe(local times, local hashes, local offsets, remote times, remote hashes, remote offsets,
 *          marks, merged, times, hashes, ours, sets, next local) -> None
 *   What the differences are that were found: each an ID, whose it is, its set, and how many local
 *   IDs are before it.
 */
PyObject *kernel_describe(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    static const column_kind kinds[] = {READ(8),    READ(32),    READ(8),    READ(8),   READ(32),
                                        READ(8),    READ(8),     READ(8),    WRITTEN(8),
                                        WRITTEN(32), WRITTEN(1), WRITTEN(8), WRITTEN(8)};
    columns held;
    if (check_arguments("describe", given, 13) < 0 || hold(&held, arguments, kinds, 13) < 0)
        return NULL;
    bool fits = held.rows[C_LOCAL] == held.rows[C_LOCAL_HASHES] &&
                held.rows[C_REMOTE] == held.rows[C_REMOTE_HASHES] &&
                held.rows[C_LOCAL_OFFSETS] > 0 && held.rows[C_REMOTE_OFFSETS] > 0;
    for (int i = C_MERGED; i <= C_NEXT_LOCAL; i++)
        fits &= held.rows[i] == held.rows[C_MARKS];
    if (fits) {
        PyThreadState *state = let_go(held.rows[C_MARKS] * HASH_BYTES);
        fits = describe_all(&held);
        take_back(state);
    }
    release(&held);
    if (!fits) {
        misfit("describe");
        return NULL;
    }
    Py_RETURN_NONE;
}

/* ---- narrow ------------------------------------------------------------------------------ */

enum {
    N_TIMES, N_OURS, N_SETS, N_MERGED, N_NEXT_LOCAL, N_LOCAL, N_OFFSETS, N_SPAN_LOWER,
    N_SPAN_UPPER, N_STARTS, N_LOWER, N_UPPER, N_COUNTS
};

/* Is the local ID at a place in a set, and of a time. */
static inline bool has_time(const columns *held, int64_t place, int64_t set, int64_t time)
{
    return place >= load(held->at[N_OFFSETS], (Py_ssize_t)set) &&
           place < load(held->at[N_OFFSETS], (Py_ssize_t)set + 1) && place >= 0 &&
           place < held->rows[N_LOCAL] && load(held->at[N_LOCAL], (Py_ssize_t)place) == time;
}

/* Write the bounds of a run; false: it needs bounds inside a nanosecond. */
static bool put_run(const columns *held, Py_ssize_t run, Py_ssize_t first, Py_ssize_t last)
{
    int64_t set = load(held->at[N_SETS], first);
    int64_t lower = load(held->at[N_TIMES], first), upper = load(held->at[N_TIMES], last);
    if (set < 0 || set >= held->rows[N_SPAN_LOWER] || upper == MAX_TIME)
        return false;
    int64_t before = load(held->at[N_NEXT_LOCAL], first) - 1;
    int64_t after = load(held->at[N_NEXT_LOCAL], last) + held->at[N_OURS][last];
    if (has_time(held, before, set, lower) || has_time(held, after, set, upper))
        return false;
    int64_t least = load(held->at[N_SPAN_LOWER], (Py_ssize_t)set);
    int64_t most = load(held->at[N_SPAN_UPPER], (Py_ssize_t)set);
    upper++;
    store(held->at[N_STARTS], run, first);
    store(held->at[N_LOWER], run, lower < least ? least : lower);
    store(held->at[N_UPPER], run, upper > most ? most : upper);
    return true;
}

static inline bool goes_on(const columns *held, Py_ssize_t at)
{
    return load(held->at[N_MERGED], at) == load(held->at[N_MERGED], at - 1) + 1 &&
           load(held->at[N_SETS], at) == load(held->at[N_SETS], at - 1);
}

/* How many runs there are; -1: arrays must do it. */
static Py_ssize_t find_runs(const columns *held)
{
    Py_ssize_t runs = 0, count = held->rows[N_TIMES];
    for (Py_ssize_t first = 0, last; first < count; first = last + 1) {
        int64_t ours = held->at[N_OURS][first];
        for (last = first; last + 1 < count && goes_on(held, last + 1);)
            ours += held->at[N_OURS][++last];
        if (!put_run(held, runs, first, last))
            return -1;
        store(held->at[N_COUNTS], runs++, ours);
    }
    return runs;
}

/* narrow(times, ours, sets, merged, next local, local times, local offsets,
 *        lower times, upper times of the spans, starts, lower times, upper times, counts)
 *   -> how many runs of differences there are: where each starts, its bounds, and how many of it
 *   are ours; -1 where a bound must lie inside a nanosecond. The bounds of spans have no hashes.
 */
PyObject *kernel_narrow(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    static const column_kind kinds[] = {READ(8), READ(1), READ(8),    READ(8),    READ(8),
                                        READ(8), READ(8), READ(8),    READ(8),    WRITTEN(8),
                                        WRITTEN(8), WRITTEN(8), WRITTEN(8)};
    columns held;
    if (check_arguments("narrow", given, 13) < 0 || hold(&held, arguments, kinds, 13) < 0)
        return NULL;
    bool fits = held.rows[N_SPAN_LOWER] == held.rows[N_SPAN_UPPER] &&
                held.rows[N_OFFSETS] == held.rows[N_SPAN_LOWER] + 1;
    for (int i = N_OURS; i <= N_NEXT_LOCAL; i++)
        fits &= held.rows[i] == held.rows[N_TIMES];
    for (int i = N_STARTS; i <= N_COUNTS; i++)
        fits &= held.rows[i] == held.rows[N_TIMES];
    PyThreadState *state = let_go(held.rows[N_TIMES] * HASH_BYTES);
    Py_ssize_t runs = fits ? find_runs(&held) : 0;
    take_back(state);
    release(&held);
    if (fits)
        return PyLong_FromSsize_t(runs);
    misfit("narrow");
    return NULL;
}
