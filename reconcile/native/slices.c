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

/* Where to look for ascending times that come at an even pace. */
typedef struct {
    finger_t finger;
    Py_ssize_t pace; /* places from one to the next on average, times PACE */
} walk_t;

#define PACE 16
#define WEIGHT 4 /* of what is known, beside what comes new */

static const walk_t BEGIN = {{0, 0, 1}, PACE};

/* Ask for the times around a guess. */
static inline void expect_around(const uint8_t *times, Py_ssize_t guess)
{
    for (Py_ssize_t at = guess - NEAR; at <= guess + NEAR; at += 64 / TIME_BYTES)
        expect(times, at, TIME_BYTES);
}

/* How many IDs are before a time, which is not before the one that was asked for last. All places
 * around where the pace leads are compared, without a branch that depends on which it is. */
static Py_ssize_t rank_near(const rows_t *rows, walk_t *walk, int64_t wanted)
{
    finger_t *finger = &walk->finger;
    Py_ssize_t from = finger->place, found = rows->length, chunk = finger->chunk, before = 0;
    if (chunk < rows->count) {
        const uint8_t *times = rows->chunks[chunk].times;
        Py_ssize_t first = from + walk->pace / PACE - NEAR;
        if (first >= from && first + 2 * NEAR < size_of(rows, chunk))
            for (int i = 0; i < 2 * NEAR; i++)
                before += load(times, first + i) < wanted;
        if (before && before < 2 * NEAR) {
            finger->place = first + before;
            found = (Py_ssize_t)load(rows->starts, chunk) + finger->place;
        } else {
            finger->step = walk->pace / PACE;
            found = rank(rows, finger, wanted);
        }
        if (finger->chunk != chunk)
            from = 0;
        walk->pace += (PACE * (finger->place - from) - walk->pace) / WEIGHT;
        Py_ssize_t later = finger->place + AHEAD * walk->pace / PACE;
        if (finger->chunk < rows->count && later + NEAR < size_of(rows, finger->chunk) &&
            later >= NEAR)
            expect_around(rows->chunks[finger->chunk].times, later);
    }
    return found;
}

static inline int64_t clipped(const slicer_t *slicer, int64_t place)
{
    return place < slicer->low ? slicer->low : place > slicer->high ? slicer->high : place;
}

/* The place of a time in the window; the last time there is stands for the end. */
static inline int64_t place_of(const slicer_t *slicer, walk_t *walk, int64_t time)
{
    int64_t place = slicer->rows.length;
    if (time != MAX_TIME)
        place = rank_near(&slicer->rows, walk, time);
    return clipped(slicer, place);
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
    walk_t walk = BEGIN, again = BEGIN;
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

/* Cuts are worked on in blocks, by steps: a step of one block comes between two of another, and
 * meanwhile the memory arrives that the first one has asked for. */
#define BLOCK 24
enum { LOOK, TAKE, SEARCH, FINISH, STEPS };

typedef struct {
    anchor_t near[BLOCK];
    int missed[BLOCK]; /* which of the cuts are not where an anchor says all */
    int misses;
    hash_t running[BLOCK + 1]; /* up to the cut before the first one, and up to each */
    int64_t balances[BLOCK + 1];
} block_t;

typedef struct {
    const slicer_t *slicer;
    cuts_t cuts;
    walk_t walk;
    finger_t finger;
    Py_ssize_t chunk, hits;
    block_t blocks[STEPS];
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

static void look_for_anchors(cutter_t *cutter, block_t *block, Py_ssize_t first, int count)
{
    for (int i = 0; i < count; i++) {
        block->near[i] = (anchor_t){NULL, 0, 0};
        if (first < TRIALS || cutter->hits > TRIALS / 4)
            block->near[i] =
                anchor_near(cutter->slicer, &cutter->finger, cutter->cuts.times[first + i]);
    }
}

/* What runs up to a cut, if no ID is between it and an anchor, which says it all. */
static inline bool sum_of_anchor(const slicer_t *slicer, block_t *block, int number,
                                 const cuts_t *cuts, Py_ssize_t row)
{
    anchor_t anchor = block->near[number];
    if (!anchor.row || load(anchor.row, R_BEFORE) >= cuts->times[row])
        return false;
    int64_t place = load(slicer->rows.starts, anchor.chunk) + load(anchor.row, R_PLACE);
    if (place < slicer->low || place > slicer->high)
        return false;
    hash_t sum = load_hash(anchor.row + R_RUNNING * TIME_BYTES, 0);
    if (slicer->rows.count > 1)
        sum = xored(sum, load_hash(slicer->rows.bases, anchor.chunk));
    block->running[number + 1] = sum;
    block->balances[number + 1] =
        load(slicer->bases, anchor.chunk) + load(anchor.row, R_BALANCE);
    cuts->places[row] = place;
    return true;
}

/* Note which cuts no anchor says, and ask for the times around them. */
static void take_anchors(cutter_t *cutter, block_t *block, Py_ssize_t first, int count)
{
    const slicer_t *slicer = cutter->slicer;
    block->misses = 0;
    for (int i = 0; i < count; i++) {
        if (sum_of_anchor(slicer, block, i, &cutter->cuts, first + i))
            continue;
        anchor_t near = block->near[i];
        block->missed[block->misses++] = i;
        if (near.row && load(near.row, R_PLACE) >= NEAR)
            expect(slicer->rows.chunks[near.chunk].times,
                   (Py_ssize_t)load(near.row, R_PLACE) - NEAR / 2, TIME_BYTES);
    }
    cutter->hits += count - block->misses;
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

/* Find the places of cuts that no anchor says, and ask for what runs up to them. */
static void search_missed(cutter_t *cutter, block_t *block, Py_ssize_t first)
{
    const slicer_t *slicer = cutter->slicer;
    for (int miss = 0; miss < block->misses; miss++) {
        anchor_t near = block->near[block->missed[miss]];
        Py_ssize_t row = first + block->missed[miss];
        int64_t time = cutter->cuts.times[row];
        int64_t place = near.row ? place_before(slicer, near, time)
                                 : place_of(slicer, &cutter->walk, time);
        cutter->cuts.places[row] = place;
        if (slicer->rows.count != 1)
            continue;
        expect(slicer->rows.chunks[0].prefix, (Py_ssize_t)place, HASH_BYTES);
        expect(slicer->rows.chunks[0].prefix, (Py_ssize_t)place / SAMPLE * SAMPLE, HASH_BYTES);
        expect(samples_of(slicer, 0), (Py_ssize_t)place / SAMPLE, sizeof(int32_t));
    }
}

static void sum_missed(cutter_t *cutter, block_t *block, Py_ssize_t first)
{
    const rows_t *rows = &cutter->slicer->rows;
    for (int miss = 0; miss < block->misses; miss++) {
        int i = block->missed[miss];
        block->balances[i + 1] = 0;
        block->running[i + 1] = (hash_t){{0}};
        if (!rows->count)
            continue;
        Py_ssize_t place = (Py_ssize_t)cutter->cuts.places[first + i];
        block->running[i + 1] = running(rows, &cutter->chunk, place);
        place -= (Py_ssize_t)load(rows->starts, cutter->chunk);
        block->balances[i + 1] = balance_to(cutter->slicer, cutter->chunk, place);
    }
}

/* Say what is between cuts. */
static void finish(cutter_t *cutter, block_t *block, block_t *next, Py_ssize_t first, int count)
{
    const hasher_t *hasher = &cutter->slicer->hasher;
    sum_missed(cutter, block, first);
    hasher->of_rows(hasher, (const uint8_t *)block->running, count, cutter->cuts.prints + first);
    for (int i = 0; i < count; i++)
        cutter->cuts.balances[first + i] = block->balances[i + 1] - block->balances[i];
    next->running[0] = block->running[count];
    next->balances[0] = block->balances[count];
}

/* A step of a block of cuts, if there is such. */
static void step(cutter_t *cutter, int number, Py_ssize_t block_number)
{
    Py_ssize_t first = block_number * BLOCK, left = cutter->cuts.count - first;
    if (block_number < 0 || left <= 0)
        return;
    int count = left < BLOCK ? (int)left : BLOCK;
    block_t *block = &cutter->blocks[block_number % STEPS];
    if (number == LOOK)
        look_for_anchors(cutter, block, first, count);
    else if (number == TAKE)
        take_anchors(cutter, block, first, count);
    else if (number == SEARCH)
        search_missed(cutter, block, first);
    else
        finish(cutter, block, &cutter->blocks[(block_number + 1) % STEPS], first, count);
}

bool cut_slices(const slicer_t *slicer, const bounds_t *bounds, cuts_t *cuts)
{
    if (!lay_out(slicer, bounds, cuts))
        return false;
    cutter_t cutter = {.slicer = slicer, .cuts = *cuts, .walk = BEGIN, .finger = {0, 0, 1}};
    for (Py_ssize_t block = 0; (block - STEPS) * BLOCK < cuts->count; block++)
        for (int number = 0; number < STEPS; number++)
            step(&cutter, number, block - number);
    return true;
}
