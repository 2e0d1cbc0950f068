/* Cutting an index into slices, and the sums that are kept beside it for that. */

#include "slices.h"

#define SAMPLE 4 /* IDs from one kept running balance to the next */
#define BOUND_BITS 6
#define ANCHOR_BOUND_BITS 13
#define SHORT_GAP 0.05
#define ANCHOR_BITS 0x3E /* of the first byte of a hash: an anchor has none of them */
#define ANCHORS_APART 32 /* IDs from one anchor to the next, at least */
#define ANCHOR_BYTES 64
#define ANCHOR_ROW_BYTES (ANCHOR_BYTES - 2 * TIME_BYTES)
#define TRIALS 64 /* cuts after which anchors are looked for only if that was worth it */
#define NEAR 8 /* places around a guess that are all compared, at both sides of it */

/* ---- balances ------------------------------------------------------------------------------ */

/* +1 or -1 by the lowest bit of the first byte of the hash behind a row. */
static inline int balance_at(const uint8_t *prefix, Py_ssize_t row)
{
    return 1 - 2 * ((prefix[row * HASH_BYTES] ^ prefix[(row + 1) * HASH_BYTES]) & 1);
}

/* balance(prefix, samples) -> None; sample i is the balance of the first 4 i IDs. */
PyObject *kernel_balance(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    static const column_kind kinds[] = {READ(32), WRITTEN(4)};
    columns held;
    if (check_arguments("balance", given, 2) < 0 || hold(&held, arguments, kinds, 2) < 0)
        return NULL;
    Py_ssize_t count = held.rows[0] - 1;
    bool fits = count >= 0 && held.rows[1] == count / SAMPLE + 1;
    PyThreadState *state = let_go(fits ? count * HASH_BYTES : 0);
    int32_t sum = 0;
    for (Py_ssize_t row = 0; fits && row <= count; row++) {
        if (row % SAMPLE == 0)
            memcpy(held.at[1] + row / SAMPLE * 4, &sum, sizeof sum);
        if (row < count)
            sum += balance_at(held.at[0], row);
    }
    take_back(state);
    release(&held);
    if (!fits) {
        misfit("balance");
        return NULL;
    }
    Py_RETURN_NONE;
}

/* Of the first IDs of a chunk. No branch depends on where between two samples the place is. */
static inline int64_t balance_of(const uint8_t *prefix, const uint8_t *samples, Py_ssize_t place)
{
    Py_ssize_t first = place / SAMPLE * SAMPLE;
    int32_t sample;
    memcpy(&sample, samples + place / SAMPLE * 4, sizeof sample);
    int64_t sum = sample;
    for (Py_ssize_t row = first; row < first + SAMPLE - 1; row++) {
        Py_ssize_t kept = row < place ? row : 0;
        sum += balance_at(prefix, kept) * (row < place);
    }
    return sum;
}

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
        store(to, 0, load(times, row));
        store(to, 1, row);
        store(to, 2, load(times, row - 1));
        store(to, 3, balance_of(prefix, samples, row));
        memcpy(to + 4 * TIME_BYTES, prefix + row * HASH_BYTES, HASH_BYTES);
        last = row;
    }
    return found;
}

/* anchors(times, prefix, samples, anchors) -> how many anchors there are
 *   Each is a row of its time and its place, and what slices.h says. */
PyObject *kernel_anchors(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    static const column_kind kinds[] = {READ(8), READ(32), READ(4), WRITTEN(ANCHOR_BYTES)};
    columns held;
    if (check_arguments("anchors", given, 4) < 0 || hold(&held, arguments, kinds, 4) < 0)
        return NULL;
    Py_ssize_t count = held.rows[0], found = 0;
    bool fits = held.rows[1] == count + 1 && held.rows[2] == count / SAMPLE + 1 &&
                held.rows[3] == count / ANCHORS_APART;
    PyThreadState *state = let_go(fits ? count * HASH_BYTES : 0);
    if (fits)
        found = choose_anchors(held.at[0], held.at[1], held.at[2], count, held.at[3]);
    take_back(state);
    release(&held);
    if (fits)
        return PyLong_FromSsize_t(found);
    misfit("anchors");
    return NULL;
}

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
            sums[1].len % ANCHOR_BYTES)
            return false;
        anchors_t *anchors = &slicer->anchors[chunk];
        anchors->count = sums[1].len / ANCHOR_BYTES;
        anchors->times = sums[1].buf;
        anchors->places = anchors->times + anchors->count * TIME_BYTES;
        anchors->rows = anchors->places + anchors->count * TIME_BYTES;
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
    Py_ssize_t number = 1, found = 0, chunk = 0;
    Py_ssize_t reach = (Py_ssize_t)(total / (2 * (count ? count : 1)));
    finger_t finger = {0, 0, 1};
    for (Py_ssize_t row = 0; row < regions->count && total; row++) {
        int64_t start = load(regions->starts, row), end = load(regions->ends, row);
        int64_t low = place_of(slicer, &again, start), high = place_of(slicer, &again, end);
        for (; number < count && number * total / count < passed + high - low; number++) {
            Py_ssize_t place = (Py_ssize_t)(low + number * total / count - passed);
            Py_ssize_t later = place + (Py_ssize_t)(AHEAD * total / count);
            if (!anchored && slicer->rows.count == 1 && later < slicer->rows.length)
                expect(slicer->rows.chunks[0].times, later, TIME_BYTES);
            go_on(&slicer->rows, &chunk, place);
            int64_t time = anchored ? anchored_time(slicer, &finger, chunk, place, reach)
                                    : time_at(&slicer->rows, chunk, place);
            time = before + ((time < end ? time : end) - start);
            if (!found || times[found - 1] != time)
                times[found++] = time;
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

/* Times of the slices; false: a bound is outside of regions, or where one begins or ends. */
static bool lay_out(const slicer_t *slicer, const bounds_t *bounds, slices_t *slices)
{
    const regions_t *regions = &slicer->regions;
    Py_ssize_t row = 0, next = 0;
    int64_t before = 0;
    for (Py_ssize_t region = 0; region < regions->count; region++) {
        int64_t lower = load(regions->starts, region), end = load(regions->ends, region);
        int64_t behind = before + (end - lower), shift = lower - before;
        for (; next < bounds->count; next++) {
            int64_t bound = bounds->multiples[next] << bounds->exponent;
            if (bound >= behind)
                break;
            if (bound <= before)
                return false;
            store(slices->columns, row, lower);
            lower = bound + shift;
            store(slices->columns, slices->rows + row++, lower);
        }
        store(slices->columns, row, lower);
        store(slices->columns, slices->rows + row++, end);
        before = behind;
    }
    return next == bounds->count;
}

typedef struct {
    int64_t *times, *places;
    uint64_t *prints; /* what runs up to it: short IDs */
    int64_t *balances;
    Py_ssize_t count;
} cuts_t;

/* Ask for what is read of a place. */
static inline void expect_place(const slicer_t *slicer, Py_ssize_t place)
{
    if (slicer->rows.count != 1)
        return;
    expect(slicer->rows.chunks[0].prefix, place, HASH_BYTES);
    expect(slicer->rows.chunks[0].prefix, place / SAMPLE * SAMPLE, HASH_BYTES);
    expect(samples_of(slicer, 0), place / SAMPLE, sizeof(int32_t));
}

static void sum_up_to(const slicer_t *slicer, Py_ssize_t *chunk, const cuts_t *cuts, Py_ssize_t row)
{
    const rows_t *rows = &slicer->rows;
    cuts->prints[row] = 0;
    cuts->balances[row] = 0;
    if (!rows->count)
        return;
    hash_t prefix = running(rows, chunk, (Py_ssize_t)cuts->places[row]);
    cuts->prints[row] = slicer->hasher.of_row(&slicer->hasher, (const uint8_t *)&prefix);
    Py_ssize_t own = (Py_ssize_t)(cuts->places[row] - load(rows->starts, *chunk));
    cuts->balances[row] = balance_to(slicer, *chunk, own);
}

/* An anchor where a cut may be; `row` is NULL: there is none. */
typedef struct {
    const uint8_t *row;
    Py_ssize_t chunk, at;
} anchor_t;

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
    const uint8_t *row = anchors->rows + found * ANCHOR_ROW_BYTES;
    expect(row, 0, 1);
    expect(row, ANCHOR_ROW_BYTES - 1, 1);
    return (anchor_t){row, finger->chunk, found};
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

/* What runs up to a cut, if no ID is between it and an anchor, which says it all. */
static bool sum_of_anchor(const slicer_t *slicer, anchor_t anchor, const cuts_t *cuts,
                          Py_ssize_t row)
{
    if (!anchor.row || load(anchor.row, 0) >= cuts->times[row])
        return false;
    int64_t place = load(slicer->rows.starts, anchor.chunk) +
                    load(slicer->anchors[anchor.chunk].places, anchor.at);
    if (place < slicer->low || place > slicer->high)
        return false;
    hash_t prefix = load_hash(anchor.row + 2 * TIME_BYTES, 0);
    if (slicer->rows.count > 1)
        prefix = xored(prefix, load_hash(slicer->rows.bases, anchor.chunk));
    cuts->places[row] = place;
    cuts->prints[row] = slicer->hasher.of_row(&slicer->hasher, (const uint8_t *)&prefix);
    cuts->balances[row] = load(slicer->bases, anchor.chunk) + load(anchor.row, 1);
    return true;
}

/* Where cuts are, and some steps later, when memory has come, what runs up to them. */
static void cut_all(const slicer_t *slicer, const cuts_t *cuts)
{
    walk_t walk = BEGIN;
    finger_t finger = {0, 0, 1};
    Py_ssize_t chunk = 0, hits = 0;
    anchor_t near[AHEAD];
    bool known[AHEAD];
    for (Py_ssize_t row = 0; row < cuts->count + 2 * AHEAD; row++) {
        Py_ssize_t own = row - AHEAD, slot = row % AHEAD;
        if (own >= AHEAD && !known[slot])
            sum_up_to(slicer, &chunk, cuts, own - AHEAD);
        if (own >= 0 && own < cuts->count) {
            hits += known[slot] = sum_of_anchor(slicer, near[slot], cuts, own);
            if (!known[slot]) {
                int64_t time = cuts->times[own];
                cuts->places[own] = near[slot].row ? place_before(slicer, near[slot], time)
                                                   : place_of(slicer, &walk, time);
                expect_place(slicer, (Py_ssize_t)cuts->places[own]);
            }
        }
        if (row < cuts->count) {
            near[slot] = (anchor_t){NULL, 0, 0};
            if (row < TRIALS || hits > TRIALS / 4)
                near[slot] = anchor_near(slicer, &finger, cuts->times[row]);
        }
    }
}

bool cut_slices(const slicer_t *slicer, const bounds_t *bounds, int64_t *room, slices_t *slices)
{
    if (!lay_out(slicer, bounds, slices))
        return false;
    uint8_t *columns = slices->columns;
    Py_ssize_t rows = slices->rows, most = rows + slicer->regions.count;
    cuts_t cuts = {room, room + most, (uint64_t *)room + 2 * most, room + 3 * most, 0};
    for (Py_ssize_t row = 0; row < rows; row++) {
        int64_t lower = slice_value(slices, S_LOWER, row);
        if (!row || slice_value(slices, S_UPPER, row - 1) != lower)
            cuts.times[cuts.count++] = lower;
        cuts.times[cuts.count++] = slice_value(slices, S_UPPER, row);
    }
    cut_all(slicer, &cuts);
    for (Py_ssize_t row = 0, cut = 0; row < rows; row++, cut++) {
        cut += cuts.times[cut] != slice_value(slices, S_LOWER, row);
        uint64_t print = (cuts.prints[cut + 1] ^ cuts.prints[cut]) & SHORT_MASK;
        store(columns, S_LOW * rows + row, cuts.places[cut]);
        store(columns, S_HIGH * rows + row, cuts.places[cut + 1]);
        store(columns, S_PRINTS * rows + row, (int64_t)print);
        store(columns, S_BALANCES * rows + row, cuts.balances[cut + 1] - cuts.balances[cut]);
    }
    return true;
}
