/* Cutting an index into slices. */

#include "slices.h"

#define BOUND_BITS 6
#define ANCHOR_BOUND_BITS 13
#define SHORT_GAP 0.05
#define TRIALS 64 /* cuts after which anchors are looked for only if that was worth it */
#define NEAR 8 /* places around a guess that are all compared, at both sides of it */

static inline const uint8_t *samples_of(const slicer_t *slicer, Py_ssize_t chunk)
{
    return slicer->sums[2 * chunk].buf;
}

/* Of the IDs before a place of a chunk, and of all earlier chunks. */
static inline int64_t balance_to(const slicer_t *slicer, Py_ssize_t chunk, Py_ssize_t place)
{
    const uint8_t *prefix = slicer->rows.chunks[chunk].prefix;
    return load(slicer->bases, chunk) + balance_of(prefix, samples_of(slicer, chunk), place);
}

/* ---- opening ------------------------------------------------------------------------------- */

static void measure_regions(slicer_t *slicer)
{
    regions_t *regions = &slicer->regions;
    int64_t before = 0;
    slicer->usual = true;
    for (Py_ssize_t row = 0; row < regions->count; row++) {
        int64_t start = load(regions->starts, row), end = load(regions->ends, row);
        slicer->usual &= start >= before && end > start;
        before = end;
    }
}

static bool slicer_fits(slicer_t *slicer)
{
    const columns *held = &slicer->held;
    if (slicer->opened != 2 * slicer->rows.count)
        return false;
    for (Py_ssize_t chunk = 0; chunk < slicer->rows.count; chunk++) {
        const Py_buffer *sums = &slicer->sums[2 * chunk];
        if (sums[0].len != (size_of(&slicer->rows, chunk) / SAMPLE + 1) * 4 ||
            sums[1].len % KEPT_BYTES)
            return false;
        anchors_t *anchors = &slicer->anchors[chunk];
        anchors->count = sums[1].len / KEPT_BYTES;
        anchors->rows = sums[1].buf;
        anchors->times = anchors->rows + anchors->count * ANCHOR_BYTES;
        anchors->places = anchors->times + anchors->count * TIME_BYTES;
    }
    if (held->rows[A_NUMBERS] != NUMBERS ||
        held->rows[A_BASES] != slicer->rows.count || held->rows[A_KEY] != KEY_ROWS ||
        held->rows[A_STARTS] != held->rows[A_ENDS])
        return false;
    slicer->low = load(held->at[A_NUMBERS], N_LOW);
    slicer->high = load(held->at[A_NUMBERS], N_HIGH);
    measure_regions(slicer);
    return slicer->low >= 0 && slicer->low <= slicer->high && slicer->high <= slicer->rows.length;
}

static int open_sums(slicer_t *slicer, PyObject *tuple)
{
    Py_ssize_t count = PyTuple_Check(tuple) ? PyTuple_Size(tuple) : 0;
    slicer->sums = PyMem_Calloc((size_t)count + 1, sizeof *slicer->sums);
    slicer->anchors = PyMem_Calloc((size_t)count / 2 + 1, sizeof *slicer->anchors);
    if (!slicer->sums || !slicer->anchors) {
        PyErr_NoMemory();
        return -1;
    }
    for (; slicer->opened < count; slicer->opened++)
        if (PyObject_GetBuffer(PyTuple_GetItem(tuple, slicer->opened),
                               &slicer->sums[slicer->opened], PyBUF_SIMPLE) < 0)
            return -1;
    return 0;
}

int open_slicer(slicer_t *slicer, PyObject *const *arguments)
{
    static const column_kind kinds[] = {READ(8), READ(8), READ(8), READ(8), READ(8)};
    memset(slicer, 0, sizeof *slicer);
    if (open_rows(&slicer->rows, arguments[0]) < 0)
        return -1;
    if (open_sums(slicer, arguments[1]) == 0 &&
        hold(&slicer->held, arguments + 2, kinds, A_COLUMNS) == 0) {
        uint8_t **at = slicer->held.at;
        slicer->bases = at[A_BASES];
        slicer->regions = (regions_t){at[A_STARTS], at[A_ENDS], slicer->held.rows[A_STARTS]};
        if (!slicer_fits(slicer))
            misfit("slices");
        else if (open_hasher(&slicer->hasher, at[A_KEY]))
            return 0;
    }
    close_slicer(slicer);
    return -1;
}

void close_slicer(slicer_t *slicer)
{
    close_hasher(&slicer->hasher);
    release(&slicer->held);
    while (slicer->opened)
        PyBuffer_Release(&slicer->sums[--slicer->opened]);
    PyMem_Free(slicer->sums);
    PyMem_Free(slicer->anchors);
    close_rows(&slicer->rows);
}

/* ---- places -------------------------------------------------------------------------------- */

static inline int64_t clipped(const slicer_t *slicer, int64_t place)
{
    return place < slicer->low ? slicer->low : place > slicer->high ? slicer->high : place;
}

/* The place of a time in the window; the last time there is stands for the end. */
static inline int64_t place_of(const slicer_t *slicer, finger_t *finger, int64_t time)
{
    return clipped(slicer, time == MAX_TIME ? slicer->rows.length
                                            : rank(&slicer->rows, finger, time));
}

/* ---- choosing bounds ----------------------------------------------------------------------- */

static inline int bit_length(uint64_t value)
{
#if defined(__GNUC__)
    return value ? 64 - __builtin_clzll(value) : 0;
#endif
    int bits = 0;
    for (; value; value >>= 1)
        bits++;
    return bits;
}

/* The first of ascending numbers, from a finger on, that is not below one. The next few are
 * compared without a branch that depends on which it is. */
static inline Py_ssize_t next_of(const uint8_t *numbers, Py_ssize_t count, finger_t *finger,
                                 int64_t wanted)
{
    Py_ssize_t from = finger->place, found = from;
    if (from + NEAR <= count && finger->step <= NEAR)
        for (int i = 0; i < NEAR; i++)
            found += load(numbers, from + i) < wanted;
    if (found == from || found == from + NEAR)
        found = search_near(numbers, found, count, from + finger->step, wanted);
    finger->step = found - from;
    return finger->place = found;
}

/* The time of the first anchor at or behind a place of a chunk, if it is at most so many IDs away,
 * else of the ID there. Places ascend. */
static int64_t anchored_time(const slicer_t *slicer, finger_t *finger, Py_ssize_t chunk,
                             Py_ssize_t place, Py_ssize_t reach)
{
    const anchors_t *anchors = &slicer->anchors[chunk];
    Py_ssize_t own = place - (Py_ssize_t)load(slicer->rows.starts, chunk);
    if (finger->chunk != chunk)
        *finger = (finger_t){chunk, 0, 1};
    Py_ssize_t found = next_of(anchors->places, anchors->count, finger, own);
    if (found < anchors->count && load(anchors->places, found) - own <= reach)
        return load(anchors->times, found);
    return time_at(&slicer->rows, chunk, place);
}

/* Times on the axis of regions: of the first ID of each slice but the first; each time once. */
static Py_ssize_t quantiles(const slicer_t *slicer, Py_ssize_t count, bool anchored,
                            int64_t *times)
{
    const regions_t *regions = &slicer->regions;
    finger_t walk = {0, 0, 1}, again = {0, 0, 1};
    int64_t total = 0, passed = 0, before = 0;
    for (Py_ssize_t row = 0; row < regions->count; row++) {
        total -= place_of(slicer, &walk, load(regions->starts, row));
        total += place_of(slicer, &walk, load(regions->ends, row));
    }
    /* The rank of the next one is number * total / count, without a division for each. */
    int64_t parts = count ? count : 1, whole = total / parts, rest = total % parts;
    int64_t rank = whole, carried = rest;
    Py_ssize_t number = 1, found = 0, chunk = 0, reach = (Py_ssize_t)(total / (2 * parts));
    Py_ssize_t ahead = (Py_ssize_t)(AHEAD * total / parts);
    finger_t finger = {0, 0, 1};
    for (Py_ssize_t row = 0; row < regions->count && total; row++) {
        int64_t start = load(regions->starts, row), end = load(regions->ends, row);
        int64_t low = place_of(slicer, &again, start), high = place_of(slicer, &again, end);
        for (; number < count && rank < passed + high - low; number++) {
            Py_ssize_t place = (Py_ssize_t)(low + rank - passed);
            if (!anchored && slicer->rows.count == 1 && place + ahead < slicer->rows.length)
                expect(slicer->rows.chunks[0].times, place + ahead, TIME_BYTES);
            go_on(&slicer->rows, &chunk, place);
            int64_t time = anchored ? anchored_time(slicer, &finger, chunk, place, reach)
                                    : time_at(&slicer->rows, chunk, place);
            time = before + ((time < end ? time : end) - start);
            if (!found || times[found - 1] != time)
                times[found++] = time;
            carried += rest;
            rank += whole + (carried >= parts);
            carried -= carried >= parts ? parts : 0;
        }
        passed += high - low;
        before += end - start;
    }
    return found;
}

/* The exponent with which all but the shortest gaps keep some bits. */
static int exponent_for(const int64_t *times, Py_ssize_t count, int kept)
{
    Py_ssize_t of_length[65] = {0}, rank = (Py_ssize_t)(SHORT_GAP * (double)(count - 1));
    for (Py_ssize_t row = 1; row < count; row++)
        of_length[bit_length((uint64_t)(times[row] - times[row - 1]))]++;
    int bits = 0;
    for (; count > 1 && rank >= of_length[bits]; bits++)
        rank -= of_length[bits];
    return bits > kept ? bits - kept : 0;
}

void choose_bounds(const slicer_t *slicer, Py_ssize_t count, bool anchored, bounds_t *bounds)
{
    const regions_t *regions = &slicer->regions;
    int64_t *times = bounds->multiples, last = 0, end = 0;
    Py_ssize_t found = quantiles(slicer, count, anchored, times), region = 0;
    int kept = anchored ? ANCHOR_BOUND_BITS : BOUND_BITS;
    bounds->exponent = found ? exponent_for(times, found, kept) : 0;
    for (Py_ssize_t row = 0; row < found; row++) {
        int64_t multiple = times[row] >> bounds->exponent, bound = multiple << bounds->exponent;
        for (; region < regions->count && end < bound; region++)
            end += load(regions->ends, region) - load(regions->starts, region);
        if (multiple == last || bound == end)
            continue;
        bounds->multiples[bounds->count++] = last = multiple;
    }
}

/* ---- cutting ------------------------------------------------------------------------------- */

/* Where slices begin and end; false: a bound is outside of regions, or where one begins or ends. */
static bool lay_out(const slicer_t *slicer, const bounds_t *bounds, cuts_t *cuts)
{
    const regions_t *regions = &slicer->regions;
    Py_ssize_t next = 0;
    int64_t before = 0;
    for (Py_ssize_t region = 0; region < regions->count; region++) {
        int64_t start = load(regions->starts, region), end = load(regions->ends, region);
        int64_t behind = before + (end - start), shift = start - before;
        cuts->times[cuts->count++] = start;
        for (; next < bounds->count; next++) {
            int64_t bound = bounds->multiples[next] << bounds->exponent;
            if (bound >= behind)
                break;
            if (bound <= before)
                return false;
            cuts->times[cuts->count++] = bound + shift;
        }
        cuts->times[cuts->count++] = end;
        before = behind;
    }
    return next == bounds->count;
}

/* An anchor where a cut may be; `row` is NULL: there is none. */
typedef struct {
    const uint8_t *row;
    Py_ssize_t chunk, at;
} anchor_t;

#define BLOCK 32 /* cuts whose prints are computed together */

/* Where we are in cutting; sums run up to the cut before the block, and to each in it. */
typedef struct {
    const slicer_t *slicer;
    cuts_t cuts;
    finger_t walk, finger;
    Py_ssize_t chunk, hits;
    hash_t running[BLOCK + 1];
    int64_t balances[BLOCK + 1];
} cutter_t;

/* The first anchor whose time is not before one, which is not before what was asked for last. */
static anchor_t anchor_near(const slicer_t *slicer, finger_t *finger, int64_t wanted)
{
    const rows_t *rows = &slicer->rows;
    while (finger->chunk < rows->count &&
           load(rows->chunks[finger->chunk].times, size_of(rows, finger->chunk) - 1) < wanted)
        *finger = (finger_t){finger->chunk + 1, 0, 1};
    if (finger->chunk == rows->count)
        return (anchor_t){NULL, 0, 0};
    const anchors_t *anchors = &slicer->anchors[finger->chunk];
    Py_ssize_t found = next_of(anchors->times, anchors->count, finger, wanted);
    if (found == anchors->count)
        return (anchor_t){NULL, 0, 0};
    expect(anchors->rows, found, ANCHOR_BYTES);
    return (anchor_t){anchors->rows + found * ANCHOR_BYTES, finger->chunk, found};
}

/* What runs up to a cut, if no ID is between it and an anchor, which says it all. */
static inline bool sum_of_anchor(cutter_t *cutter, anchor_t anchor, Py_ssize_t row, int number)
{
    const slicer_t *slicer = cutter->slicer;
    if (!anchor.row || load(anchor.row, R_BEFORE) >= cutter->cuts.times[row])
        return false;
    int64_t place = load(slicer->rows.starts, anchor.chunk) + load(anchor.row, R_PLACE);
    if (place < slicer->low || place > slicer->high)
        return false;
    hash_t sum = load_hash(anchor.row + R_RUNNING * TIME_BYTES, 0);
    if (slicer->rows.count > 1)
        sum = xored(sum, load_hash(slicer->rows.bases, anchor.chunk));
    cutter->running[number] = sum;
    cutter->balances[number] = load(slicer->bases, anchor.chunk) + load(anchor.row, R_BALANCE);
    cutter->cuts.places[row] = place;
    return true;
}

/* The place of a time that is not behind an anchor, and behind the anchors before. */
static int64_t place_before(const slicer_t *slicer, anchor_t anchor, int64_t time)
{
    const anchors_t *anchors = &slicer->anchors[anchor.chunk];
    int64_t high = load(anchors->places, anchor.at), size = size_of(&slicer->rows, anchor.chunk);
    int64_t low = anchor.at ? load(anchors->places, anchor.at - 1) : 0;
    high = high < 0 ? 0 : high > size ? size : high; /* never outside, whatever is in a column */
    low = low < 0 || low > high ? 0 : low;
    low = search_near(slicer->rows.chunks[anchor.chunk].times, (Py_ssize_t)low, (Py_ssize_t)high,
                      (Py_ssize_t)high, time);
    return clipped(slicer, load(slicer->rows.starts, anchor.chunk) + low);
}

/* Find the place of a cut, and what runs up to it. */
static void sum_to(cutter_t *cutter, anchor_t near, Py_ssize_t row, int number)
{
    const slicer_t *slicer = cutter->slicer;
    const rows_t *rows = &slicer->rows;
    int64_t time = cutter->cuts.times[row];
    if (sum_of_anchor(cutter, near, row, number)) {
        cutter->hits++;
        return;
    }
    int64_t place = near.row ? place_before(slicer, near, time)
                             : place_of(slicer, &cutter->walk, time);
    cutter->cuts.places[row] = place;
    cutter->running[number] = (hash_t){{0}};
    cutter->balances[number] = 0;
    if (!rows->count)
        return;
    cutter->running[number] = running(rows, &cutter->chunk, (Py_ssize_t)place);
    place -= load(rows->starts, cutter->chunk);
    cutter->balances[number] = balance_to(slicer, cutter->chunk, (Py_ssize_t)place);
}

bool cut_slices(const slicer_t *slicer, const bounds_t *bounds, cuts_t *cuts)
{
    if (!lay_out(slicer, bounds, cuts))
        return false;
    cutter_t cutter = {.slicer = slicer, .cuts = *cuts, .walk = {0, 0, 1}, .finger = {0, 0, 1}};
    for (Py_ssize_t first = 0; first < cuts->count; first += BLOCK) {
        int count = cuts->count - first < BLOCK ? (int)(cuts->count - first) : BLOCK;
        anchor_t near[BLOCK] = {{NULL, 0, 0}};
        /* The memory of all anchors of a block is asked for before the first is read. */
        for (int i = 0; i < count && (first < TRIALS || cutter.hits > TRIALS / 4); i++)
            near[i] = anchor_near(slicer, &cutter.finger, cuts->times[first + i]);
        for (int i = 0; i < count; i++)
            sum_to(&cutter, near[i], first + i, i + 1);
        slicer->hasher.of_rows(&slicer->hasher, (const uint8_t *)cutter.running, count,
                               cuts->prints + first);
        for (int i = 0; i < count; i++)
            cuts->balances[first + i] = cutter.balances[i + 1] - cutter.balances[i];
        cutter.running[0] = cutter.running[count];
        cutter.balances[0] = cutter.balances[count];
    }
    return true;
}
