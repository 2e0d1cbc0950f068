/* Cutting an index into slices. */

#include "slices.h"

#define BOUND_BITS 6
#define SHORT_GAP 0.05

static inline const uint8_t *samples_of(const slicer_t *slicer, Py_ssize_t chunk)
{
    return slicer->samples[chunk].buf;
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
    if (slicer->opened != slicer->rows.count)
        return false;
    for (Py_ssize_t chunk = 0; chunk < slicer->rows.count; chunk++)
        if (slicer->samples[chunk].len != (size_of(&slicer->rows, chunk) / SAMPLE + 1) * 4)
            return false;
    if (held->rows[A_NUMBERS] != NUMBERS ||
        held->rows[A_BASES] != slicer->rows.count || held->rows[A_KEY] != KEY_ROWS ||
        held->rows[A_STARTS] != held->rows[A_ENDS])
        return false;
    slicer->low = load(held->at[A_NUMBERS], N_LOW);
    slicer->high = load(held->at[A_NUMBERS], N_HIGH);
    measure_regions(slicer);
    return slicer->low >= 0 && slicer->low <= slicer->high && slicer->high <= slicer->rows.length;
}

static int open_samples(slicer_t *slicer, PyObject *tuple)
{
    Py_ssize_t count = PyTuple_Check(tuple) ? PyTuple_Size(tuple) : 0;
    slicer->samples = PyMem_Calloc((size_t)count + 1, sizeof *slicer->samples);
    if (!slicer->samples) {
        PyErr_NoMemory();
        return -1;
    }
    for (; slicer->opened < count; slicer->opened++)
        if (PyObject_GetBuffer(PyTuple_GetItem(tuple, slicer->opened),
                               &slicer->samples[slicer->opened], PyBUF_SIMPLE) < 0)
            return -1;
    return 0;
}

int open_slicer(slicer_t *slicer, PyObject *const *arguments)
{
    static const column_kind kinds[] = {READ(8), READ(8), READ(8), READ(8), READ(8)};
    memset(slicer, 0, sizeof *slicer);
    if (open_rows(&slicer->rows, arguments[0]) < 0)
        return -1;
    if (open_samples(slicer, arguments[1]) == 0 &&
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
        PyBuffer_Release(&slicer->samples[--slicer->opened]);
    PyMem_Free(slicer->samples);
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

/* Times on the axis of regions: of the first ID of each slice but the first; each time once. */
static Py_ssize_t quantiles(const slicer_t *slicer, Py_ssize_t count, int64_t *times)
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
    Py_ssize_t number = 1, found = 0, chunk = 0;
    Py_ssize_t ahead = (Py_ssize_t)(AHEAD * total / parts);
    for (Py_ssize_t row = 0; row < regions->count && total; row++) {
        int64_t start = load(regions->starts, row), end = load(regions->ends, row);
        int64_t low = place_of(slicer, &again, start), high = place_of(slicer, &again, end);
        for (; number < count && rank < passed + high - low; number++) {
            Py_ssize_t place = (Py_ssize_t)(low + rank - passed);
            if (slicer->rows.count == 1 && place + ahead < slicer->rows.length)
                expect(slicer->rows.chunks[0].times, place + ahead, TIME_BYTES);
            go_on(&slicer->rows, &chunk, place);
            int64_t time = before + (time_at(&slicer->rows, chunk, place) - start);
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
static int exponent_for(const int64_t *times, Py_ssize_t count)
{
    Py_ssize_t of_length[65] = {0}, rank = (Py_ssize_t)(SHORT_GAP * (double)(count - 1));
    for (Py_ssize_t row = 1; row < count; row++)
        of_length[bit_length((uint64_t)(times[row] - times[row - 1]))]++;
    int bits = 0;
    for (; count > 1 && rank >= of_length[bits]; bits++)
        rank -= of_length[bits];
    return bits > BOUND_BITS ? bits - BOUND_BITS : 0;
}

void choose_bounds(const slicer_t *slicer, Py_ssize_t count, bounds_t *bounds)
{
    const regions_t *regions = &slicer->regions;
    int64_t *times = bounds->multiples, last = 0, end = 0;
    Py_ssize_t found = quantiles(slicer, count, times), region = 0;
    bounds->exponent = found ? exponent_for(times, found) : 0;
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

#define BLOCK 32 /* cuts whose prints are computed together */

/* Where we are in cutting; sums run up to the cut before the block, and to each in it. */
typedef struct {
    const slicer_t *slicer;
    cuts_t cuts;
    finger_t walk;
    Py_ssize_t chunk;
    hash_t running[BLOCK + 1];
    int64_t balances[BLOCK + 1];
} cutter_t;

/* Find the place of a cut, and what runs up to it. */
static void sum_to(cutter_t *cutter, Py_ssize_t row, int number)
{
    const slicer_t *slicer = cutter->slicer;
    const rows_t *rows = &slicer->rows;
    int64_t place = place_of(slicer, &cutter->walk, cutter->cuts.times[row]);
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
    cutter_t cutter = {.slicer = slicer, .cuts = *cuts, .walk = {0, 0, 1}};
    for (Py_ssize_t first = 0; first < cuts->count; first += BLOCK) {
        int count = cuts->count - first < BLOCK ? (int)(cuts->count - first) : BLOCK;
        for (int i = 0; i < count; i++)
            sum_to(&cutter, first + i, i + 1);
        slicer->hasher.of_rows(&slicer->hasher, (const uint8_t *)cutter.running, count,
                               cuts->prints + first);
        for (int i = 0; i < count; i++)
            cuts->balances[first + i] = cutter.balances[i + 1] - cutter.balances[i];
        cutter.running[0] = cutter.running[count];
        cutter.balances[0] = cutter.balances[count];
    }
    return true;
}
