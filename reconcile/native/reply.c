/* A whole payload answered at once: what `reconcile.algorithm.turn` does, where nothing is unusual.
 *
 * The payload is read, its ranges are compared with the index, and what differs is named, sent or
 * split, as the plan says that Python makes in between. Bounds inside a nanosecond, IDs of one time
 * where a range would have to be cut, and answers beyond a limit are left to Python.
 */

#include "reader.h"
#include "rows.h"

#include <stdlib.h>

#define MAX_QUESTIONS 262144
#define MAX_RANGE_BYTES (2 * (MAX_VARINT_BYTES + 1) + HASH_BYTES)
#define MAX_ITEM_BYTES (MAX_VARINT_BYTES + HASH_BYTES)

/* As in `reconcile.algorithm`: of plan, turn, pieces and answer. */
#define PROBE_FREELY 30000
#define FINISHING_BYTES 4096
#define ITEM_BYTES 36.5
#define FORCED_PARTS 16
#define LEAST_LATE_PARTS 16
#define GAUGE_PARTS 64
#define MIN_GAUGED_ITEMS 64
#define LARGEST_MERGED_SET 256

#define MAGNITUDES 64

enum { A_RANGES, A_ITEMS, A_BYTES, A_LEFT, A_LOWER, A_UPPER, A_START, A_COUNT };

/* ---- memory ------------------------------------------------------------------------------- */

typedef struct {
    uint8_t *at;
    size_t used, room;
} bytes_t;

static bool reserve(bytes_t *bytes, size_t more)
{
    if (bytes->room - bytes->used >= more)
        return true;
    size_t room = 2 * bytes->room + more + 256;
    uint8_t *at = realloc(bytes->at, room);
    if (!at)
        return false;
    bytes->at = at;
    bytes->room = room;
    return true;
}

/* ---- questions ---------------------------------------------------------------------------- */

/* A range to answer: bounds, places of its IDs, our fingerprint, and what is to be done. */
typedef struct {
    int64_t lower, upper;
    Py_ssize_t low, high;
    const uint8_t *content; /* what the peer says of it */
    hash_t print;
    int64_t parts;
    Py_ssize_t named; /* the place of the one ID that is all the difference; -1: there is none */
    uint8_t is_set, told, whole, differs, probed;
} question_t;

typedef enum { WHOLE, SHOWN, NARROW, KINDS_OF_SETS } set_kind_t;

/* A set that may still grow: sets of one kind that touch are put together. */
typedef struct {
    bool is_open;
    set_kind_t kind;
    int64_t lower, upper, block;
    Py_ssize_t from, to; /* places */
} open_set_t;

typedef struct {
    rows_t rows;
    reader_t from;
    const uint8_t *end; /* of the payload */
    int64_t most[A_COUNT];
    bytes_t memory; /* of the questions */
    Py_ssize_t count, open;
    int64_t held, differing;
    /* what was asked about, before it was cut to the territory */
    int64_t asked_lower, asked_upper;
    Py_ssize_t first_range, last_range, opened;
    /* the answer */
    bytes_t out, sent_times, sent_hashes, got_times, got_hashes;
    Py_ssize_t ranges, items;
    int64_t time; /* the upper bound written last */
    open_set_t set;
    int64_t totals[KINDS_OF_SETS];
    Py_ssize_t chunk, item_chunk; /* where we are in the index: of places, of items written */
} reply_t;

static inline question_t *question(const reply_t *reply, Py_ssize_t number)
{
    return (question_t *)reply->memory.at + number;
}

/* Note the range that was read last; false: Python must do it. */
static bool add_question(reply_t *reply, int64_t lower)
{
    const reader_t *from = &reply->from;
    int64_t upper = from->time;
    if (!reply->opened++) {
        reply->asked_lower = lower;
        reply->first_range = from->done.ranges;
    }
    reply->asked_upper = upper;
    reply->last_range = from->done.ranges;
    bool whole = lower >= reply->most[A_LOWER] && upper <= reply->most[A_UPPER];
    if (!whole) {
        lower = lower < reply->most[A_LOWER] ? reply->most[A_LOWER] : lower;
        upper = upper > reply->most[A_UPPER] ? reply->most[A_UPPER] : upper;
        if (lower >= upper)
            return true;
    }
    bool is_set = from->kind == ITEM_SET;
    if ((is_set && !whole) || lower < reply->most[A_START] || reply->count == MAX_QUESTIONS ||
        !reserve(&reply->memory, sizeof(question_t)))
        return false;
    question_t *asked = question(reply, reply->count++);
    *asked = (question_t){.lower = lower, .upper = upper, .content = from->content, .named = -1,
                          .is_set = is_set, .told = is_set && from->at[-1], .whole = whole};
    reply->memory.used += sizeof *asked;
    return true;
}

static bool read_questions(reply_t *reply)
{
    reader_t *from = &reply->from;
    while (left(from)) {
        int64_t lower = from->time;
        if (!read_range(from, false) || from->done.prefixed)
            return false;
        if (from->kind != SKIP && !add_question(reply, lower))
            return false;
    }
    return reply->count > 0;
}

/* Find out what is held where; false: more than can be read at once. */
static bool measure(reply_t *reply)
{
    const rows_t *rows = &reply->rows;
    finger_t finger = {0, 0, 1 + rows->length / (2 * reply->count + 1)};
    int64_t readable = reply->most[A_ITEMS] + reply->most[A_LEFT], in_sets = 0, before = -1;
    Py_ssize_t place = 0, chunk = 0;
    for (Py_ssize_t number = 0; number < reply->count; number++) {
        question_t *asked = question(reply, number);
        asked->low = asked->lower == before ? place : rank(rows, &finger, asked->lower);
        asked->high = place = rank(rows, &finger, asked->upper);
        before = asked->upper;
        reply->held += asked->high - asked->low;
        in_sets += asked->is_set ? asked->high - asked->low : 0;
        expect_running(rows, asked->is_set ? asked->low : asked->high);
    }
    for (Py_ssize_t number = 0; number < reply->count; number++) {
        question_t *asked = question(reply, number);
        if (!asked->is_set && rows->count) {
            hash_t lower = running(rows, &chunk, asked->low);
            asked->print = xored(lower, running(rows, &chunk, asked->high));
        }
        asked->differs = !asked->is_set && !same_hash(asked->print, load_hash(asked->content, 0));
        reply->differing += asked->differs;
        reply->open += asked->differs || asked->is_set;
    }
    return in_sets <= readable;
}

/* ---- the plan ------------------------------------------------------------------------------ */

enum { P_NUMBERS, P_DENSITY, P_SIZES, P_RATES, P_PROBE, P_AFTER, P_UNPROBED, P_LATE, P_COLUMNS };
enum { N_KNOWN, N_WANTED, N_MIN_PARTS, N_LARGEST_LATE, N_GAUGES, N_COUNT };

typedef struct {
    columns from;
    int64_t numbers[N_COUNT];
    double density;
} plan_t;

/* What ranges of each magnitude say: how many there are, how many differ, how many IDs they have. */
typedef struct {
    int64_t count, least, most;
    int64_t total[MAGNITUDES], different[MAGNITUDES], items[MAGNITUDES];
} sample_t;

static void take_sample(const reply_t *reply, sample_t *sample)
{
    memset(sample, 0, sizeof *sample);
    for (Py_ssize_t number = 0; number < reply->count; number++) {
        const question_t *asked = question(reply, number);
        if (asked->is_set || !asked->whole)
            continue;
        int64_t size = asked->high - asked->low, items = size ? size : 1;
        int magnitude = 0;
        while (items >> magnitude)
            magnitude++;
        sample->least = !sample->count || size < sample->least ? size : sample->least;
        sample->most = size > sample->most ? size : sample->most;
        sample->count++;
        sample->total[magnitude]++;
        sample->different[magnitude] += asked->differs;
        sample->items[magnitude] += items;
    }
}

/* Ask Python how to go on; 0, or -1 with an exception. */
static int make_plan(const reply_t *reply, PyObject *planner, plan_t *plan)
{
    static const column_kind kinds[P_COLUMNS] = {READ(8), READ(8), READ(8), READ(8),
                                                 READ(1), READ(8), READ(8), READ(8)};
    sample_t sample;
    PyObject *given[P_COLUMNS];
    take_sample(reply, &sample);
    PyObject *made = PyObject_CallFunction(planner, "Ly#", (long long)reply->held,
                                           (const char *)&sample, (Py_ssize_t)sizeof sample);
    if (!made)
        return -1;
    int outcome = -1;
    if (PyTuple_Check(made) && PyTuple_Size(made) == P_COLUMNS) {
        for (int i = 0; i < P_COLUMNS; i++)
            given[i] = PyTuple_GetItem(made, i);
        outcome = hold(&plan->from, given, kinds, P_COLUMNS);
    } else
        misfit("reply");
    Py_DECREF(made); /* The views of its columns keep what they need. */
    if (outcome < 0)
        return -1;
    const Py_ssize_t *rows = plan->from.rows;
    Py_ssize_t cells = (rows[P_SIZES] + 1) * (rows[P_RATES] + 1);
    if (rows[P_NUMBERS] != N_COUNT || rows[P_DENSITY] != 1 || rows[P_PROBE] != cells ||
        rows[P_AFTER] != cells || rows[P_UNPROBED] != cells || rows[P_LATE] != cells) {
        release(&plan->from);
        return misfit("reply");
    }
    memcpy(plan->numbers, plan->from.at[P_NUMBERS], sizeof plan->numbers);
    memcpy(&plan->density, plan->from.at[P_DENSITY], sizeof plan->density);
    return 0;
}

/* How many of ascending edges are below a value. */
static Py_ssize_t below(const uint8_t *edges, Py_ssize_t count, double value)
{
    Py_ssize_t low = 0;
    while (low < count) {
        Py_ssize_t middle = low + (count - low) / 2;
        double edge;
        memcpy(&edge, edges + middle * (Py_ssize_t)sizeof edge, sizeof edge);
        if (edge < value)
            low = middle + 1;
        else
            count = middle;
    }
    return low;
}

/* Where in the tables a size is. */
static Py_ssize_t cell(const plan_t *plan, int64_t size)
{
    const columns *from = &plan->from;
    double items = size < 1 ? 1.0 : (double)size;
    return below(from->at[P_SIZES], from->rows[P_SIZES], items) * (from->rows[P_RATES] + 1) +
           below(from->at[P_RATES], from->rows[P_RATES], items * plan->density);
}

/* Search for the one ID of ours that may be all of a difference; false: Python must do it. */
static bool probe_all(reply_t *reply, const plan_t *plan)
{
    around_t around = {0, 0, 0};
    Py_ssize_t chunk = 0;
    int64_t seen = 0;
    for (Py_ssize_t number = 0; number < reply->count; number++) {
        question_t *asked = question(reply, number);
        if (number + AHEAD < reply->count)
            expect_running(&reply->rows, question(reply, number + AHEAD)->low);
        if (!asked->differs || !asked->whole || all_zero(asked->content, 1))
            continue;
        int64_t size = asked->high - asked->low;
        seen += size;
        bool worth = plan->numbers[N_KNOWN]
                         ? plan->from.at[P_PROBE][cell(plan, size)] || seen <= PROBE_FREELY
                         : size <= PROBE_FREELY;
        if (!size || !worth)
            continue;
        asked->probed = true;
        hash_t wanted = xored(asked->print, load_hash(asked->content, 0));
        Py_ssize_t found = 0;
        if (probe_span(&reply->rows, &chunk, asked->low, asked->high, wanted, &found) != 1)
            continue;
        go_on(&reply->rows, &around.own, found);
        int64_t time = time_at(&reply->rows, around.own, found);
        if (time == MAX_TIME || !is_alone(&reply->rows, &around, found, time))
            return false;
        asked->named = found;
    }
    return true;
}

/* Into how many parts to split a range of so many items, of `count` ranges; 0: send the items. */
static int64_t parts_of(const plan_t *plan, int64_t size, int64_t count, bool probed)
{
    const int64_t *numbers = plan->numbers;
    int64_t most = size / 8, parts;
    if (!numbers[N_KNOWN]) {
        parts = (numbers[N_WANTED] + count - 1) / count;
        parts = parts > most ? most : parts;
        return parts < 3 ? 0 : parts;
    }
    Py_ssize_t at = cell(plan, size);
    parts = load(plan->from.at[probed ? P_AFTER : P_UNPROBED], at);
    if (parts > 0 && count < numbers[N_MIN_PARTS]) {
        int64_t floor = (numbers[N_MIN_PARTS] + count - 1) / count;
        floor = floor > most ? most : floor;
        parts = parts < floor ? floor : parts;
    }
    if (numbers[N_LARGEST_LATE] >= 0 && size > numbers[N_LARGEST_LATE]) {
        parts = load(plan->from.at[P_LATE], at);
        parts = parts < LEAST_LATE_PARTS ? LEAST_LATE_PARTS : parts;
    }
    return parts;
}

static inline bool is_unsettled(const question_t *asked)
{
    return asked->differs && asked->named < 0;
}

/* Decide what to do about each range that is not settled; false: Python must do it. */
static bool choose_all(reply_t *reply, const plan_t *plan)
{
    int64_t items = 0, count = 0, in_sets = 0, parts = 0;
    for (Py_ssize_t number = 0; number < reply->count; number++) {
        const question_t *asked = question(reply, number);
        if (is_unsettled(asked)) {
            items += asked->high - asked->low;
            count++;
        }
    }
    bool finishing = plan->numbers[N_KNOWN] && (double)items * ITEM_BYTES < FINISHING_BYTES;
    int64_t most = reply->most[A_RANGES] / 4, number_of = 0;
    most = most < 2 ? 2 : most;
    for (Py_ssize_t number = 0; number < reply->count; number++) {
        question_t *asked = question(reply, number);
        if (!is_unsettled(asked))
            continue;
        int64_t size = asked->high - asked->low;
        bool hollow = asked->whole && all_zero(asked->content, 1);
        if (size > 1 && !finishing && !hollow)
            asked->parts = parts_of(plan, size, count, asked->probed);
        if (!asked->parts && items > reply->most[A_ITEMS] && size > reply->most[A_ITEMS])
            asked->parts = FORCED_PARTS;
        asked->parts = asked->parts > most ? most : asked->parts;
        in_sets += asked->parts ? 0 : size;
        parts += asked->parts;
        if (number_of++ && (in_sets > reply->most[A_ITEMS] || parts > reply->most[A_RANGES] / 2))
            return false;
    }
    return true;
}

/* ---- writing ------------------------------------------------------------------------------- */

/* A bound, led to by a Skip where the one before it is not `lower`. */
static bool put_bounds(reply_t *reply, int64_t lower, int64_t upper, enum kind kind)
{
    bytes_t *out = &reply->out;
    if (!reserve(out, MAX_RANGE_BYTES))
        return false;
    uint8_t *at = out->at + out->used;
    if (lower != reply->time) {
        at = put_varint(at, (uint64_t)(lower - reply->time));
        *at++ = SKIP;
        reply->ranges++;
    }
    at = put_varint(at, (uint64_t)(upper - lower));
    *at++ = (uint8_t)kind;
    out->used = (size_t)(at - out->at);
    reply->time = upper;
    reply->ranges++;
    return true;
}

/* Write the set that is open, if there is one. */
static bool close_set(reply_t *reply)
{
    open_set_t *set = &reply->set;
    bytes_t *out = &reply->out;
    if (!set->is_open)
        return true;
    set->is_open = false;
    Py_ssize_t count = set->to - set->from;
    reply->items += count;
    if (reply->items > reply->most[A_ITEMS] ||
        !put_bounds(reply, set->lower, set->upper, ITEM_SET) ||
        !reserve(out, (size_t)count * MAX_ITEM_BYTES + MAX_VARINT_BYTES + 1))
        return false;
    uint8_t *at = put_varint(out->at + out->used, (uint64_t)count);
    int64_t before = 0;
    for (Py_ssize_t place = set->from; place < set->to; place++) {
        go_on(&reply->rows, &reply->item_chunk, place);
        int64_t time = time_at(&reply->rows, reply->item_chunk, place);
        at = put_varint(at, (uint64_t)(time - before));
        store_hash(at, 0, hash_at(&reply->rows, reply->item_chunk, place));
        at += HASH_BYTES;
        before = time;
    }
    *at++ = set->kind != WHOLE;
    out->used = (size_t)(at - out->at);
    return out->used <= (size_t)reply->most[A_BYTES];
}

/* A set of the IDs from place to place. */
static bool put_set(reply_t *reply, set_kind_t kind, int64_t lower, int64_t upper, Py_ssize_t from,
                    Py_ssize_t to)
{
    open_set_t *set = &reply->set;
    int64_t block = reply->totals[kind] / LARGEST_MERGED_SET;
    reply->totals[kind] += to - from;
    if (set->is_open && set->kind == kind && set->upper == lower && set->block == block) {
        set->upper = upper;
        set->to = to;
        return true;
    }
    if (!close_set(reply))
        return false;
    *set = (open_set_t){true, kind, lower, upper, block, from, to};
    return true;
}

static bool put_print(reply_t *reply, int64_t lower, int64_t upper, hash_t print)
{
    if (!close_set(reply) || !put_bounds(reply, lower, upper, FINGERPRINT))
        return false;
    store_hash(reply->out.at + reply->out.used, 0, print);
    reply->out.used += HASH_BYTES;
    return reply->out.used <= (size_t)reply->most[A_BYTES];
}

/* ---- parts --------------------------------------------------------------------------------- */

/* A range of places cut at equal counts: where we are in it. */
typedef struct {
    Py_ssize_t low, count, parts, number; /* of the next cut */
    int64_t lower, upper;
    Py_ssize_t from; /* the place where the part begins */
    hash_t before;   /* the running XOR there */
    Py_ssize_t chunk;
} cutter_t;

/* A part: bounds, places, and its fingerprint. */
typedef struct {
    int64_t lower, upper;
    Py_ssize_t from, to;
    hash_t before, print;
} part_t;

static inline Py_ssize_t cut_place(const cutter_t *cutter, Py_ssize_t number)
{
    return cutter->low + cutter->count / cutter->parts * number +
           cutter->count % cutter->parts * number / cutter->parts;
}

static cutter_t cutter_of(const rows_t *rows, int64_t lower, int64_t upper, Py_ssize_t from,
                          Py_ssize_t to, Py_ssize_t parts, Py_ssize_t chunk)
{
    cutter_t cutter = {from, to - from, parts < to - from ? parts : to - from, 1, lower, upper,
                       from, {{0}}, chunk};
    cutter.before = running(rows, &cutter.chunk, from);
    return cutter;
}

/* The next part, so many of those that the range is cut into; false: IDs of one time are in the way. */
static bool next_part(const rows_t *rows, cutter_t *cutter, Py_ssize_t last, part_t *part)
{
    Py_ssize_t to = cutter->low + cutter->count;
    int64_t upper = cutter->upper;
    if (last < cutter->parts) {
        to = cut_place(cutter, last);
        go_on(rows, &cutter->chunk, to - 1);
        int64_t before = time_at(rows, cutter->chunk, to - 1);
        go_on(rows, &cutter->chunk, to);
        upper = time_at(rows, cutter->chunk, to);
        if (before == upper)
            return false;
    }
    hash_t after = running(rows, &cutter->chunk, to);
    *part = (part_t){cutter->lower, upper,          cutter->from,
                     to,            cutter->before, xored(cutter->before, after)};
    cutter->lower = upper;
    cutter->from = to;
    cutter->before = after;
    cutter->number = last + 1;
    return true;
}

/* Instead of one part finer ones that grow by doubling, to show how dense the differences are. */
static bool put_gauge(reply_t *reply, const part_t *part, Py_ssize_t chunk)
{
    cutter_t cutter = cutter_of(&reply->rows, part->lower, part->upper, part->from, part->to,
                                GAUGE_PARTS, chunk);
    /* Every cut must be possible, as if all of them were made. */
    cutter_t every = cutter;
    part_t finer;
    for (Py_ssize_t last = 1; last <= GAUGE_PARTS; last++)
        if (!next_part(&reply->rows, &every, last, &finer))
            return false;
    for (Py_ssize_t last = 1; last <= GAUGE_PARTS; last *= 2)
        if (!next_part(&reply->rows, &cutter, last, &finer) ||
            !put_print(reply, finer.lower, finer.upper, finer.print))
            return false;
    return true;
}

/* Parts that are large enough for a gauge. */
typedef struct {
    int64_t seen, step; /* one in so many is used */
} gauges_t;

static gauges_t gauges_of(const reply_t *reply, int64_t wanted)
{
    int64_t large = 0;
    for (Py_ssize_t number = 0; wanted && number < reply->count; number++) {
        const question_t *asked = question(reply, number);
        if (!is_unsettled(asked) || asked->parts < 2)
            continue;
        cutter_t cutter = {.count = asked->high - asked->low, .parts = (Py_ssize_t)asked->parts};
        cutter.parts = cutter.parts < cutter.count ? cutter.parts : cutter.count;
        for (Py_ssize_t part = 0; part < cutter.parts; part++)
            large += cut_place(&cutter, part + 1) - cut_place(&cutter, part) >= MIN_GAUGED_ITEMS;
    }
    return (gauges_t){0, large && wanted ? (large + wanted - 1) / wanted : 0};
}

static bool put_parts(reply_t *reply, const question_t *asked, gauges_t *gauges)
{
    const rows_t *rows = &reply->rows;
    cutter_t cutter = cutter_of(rows, asked->lower, asked->upper, asked->low, asked->high,
                                (Py_ssize_t)asked->parts, reply->chunk);
    part_t part;
    for (Py_ssize_t last = 1; last <= cutter.parts; last++) {
        Py_ssize_t chunk = cutter.chunk;
        if (last + AHEAD < cutter.parts && rows->count == 1) {
            Py_ssize_t later = cut_place(&cutter, last + AHEAD);
            expect(rows->chunks[0].times, later, TIME_BYTES);
            expect_running(rows, later);
        }
        if (!next_part(rows, &cutter, last, &part))
            return false;
        bool large = gauges->step && part.to - part.from >= MIN_GAUGED_ITEMS;
        bool put = large && gauges->seen++ % gauges->step == 0
                       ? put_gauge(reply, &part, chunk)
                       : put_print(reply, part.lower, part.upper, part.print);
        if (!put)
            return false;
    }
    reply->chunk = cutter.chunk;
    return true;
}

/* ---- sets ---------------------------------------------------------------------------------- */

static bool found(const reply_t *reply, bytes_t *times, bytes_t *hashes, int64_t time, hash_t hash)
{
    size_t all = (reply->sent_times.used + reply->got_times.used) / TIME_BYTES;
    if (all + 1 >= (size_t)reply->most[A_LEFT] || !reserve(times, TIME_BYTES) ||
        !reserve(hashes, HASH_BYTES))
        return false;
    store(times->at + times->used, 0, time);
    store_hash(hashes->at + hashes->used, 0, hash);
    times->used += TIME_BYTES;
    hashes->used += HASH_BYTES;
    return true;
}

static bool found_here(reply_t *reply, Py_ssize_t place)
{
    go_on(&reply->rows, &reply->chunk, place);
    return found(reply, &reply->sent_times, &reply->sent_hashes,
                 time_at(&reply->rows, reply->chunk, place),
                 hash_at(&reply->rows, reply->chunk, place));
}

/* Two sets beside each other. */
typedef struct {
    reader_t theirs;
    int64_t left; /* of theirs, the next one included */
    item_t item;  /* that one */
    Py_ssize_t place;
    int64_t time; /* of ours at that place */
    /* differences with nothing in common between them */
    bool is_run;
    int64_t first, last;
    Py_ssize_t from;
} comparison_t;

static void next_item(comparison_t *sides)
{
    int64_t difference = 0;
    if (!sides->left)
        return;
    read_varint(&sides->theirs, &difference); /* It was checked before. */
    sides->item.time += difference;
    sides->item.hash = sides->theirs.at;
    sides->theirs.at += HASH_BYTES;
}

static inline int compare_items(reply_t *reply, comparison_t *sides, const question_t *asked)
{
    if (sides->place == asked->high)
        return 1;
    go_on(&reply->rows, &reply->chunk, sides->place);
    sides->time = time_at(&reply->rows, reply->chunk, sides->place);
    if (!sides->left || sides->time != sides->item.time)
        return !sides->left || sides->time < sides->item.time ? -1 : 1;
    hash_t own = hash_at(&reply->rows, reply->chunk, sides->place);
    return memcmp(&own, sides->item.hash, HASH_BYTES);
}

/* Has one of our IDs in the range a time. */
static inline bool has_time(const reply_t *reply, const question_t *asked, Py_ssize_t place,
                            int64_t time)
{
    Py_ssize_t chunk = reply->chunk;
    if (place < asked->low || place >= asked->high)
        return false;
    while (load(reply->rows.starts, chunk) > place)
        chunk--;
    go_on(&reply->rows, &chunk, place);
    return time_at(&reply->rows, chunk, place) == time;
}

/* Show a run of differences to the peer; false: IDs of its first or last time are at both sides. */
static bool end_run(reply_t *reply, comparison_t *sides, const question_t *asked)
{
    if (!sides->is_run || asked->told)
        return true;
    sides->is_run = false;
    if (sides->last == MAX_TIME || has_time(reply, asked, sides->from - 1, sides->first) ||
        has_time(reply, asked, sides->place, sides->last))
        return false;
    int64_t lower = sides->first < asked->lower ? asked->lower : sides->first;
    int64_t upper = sides->last + 1 > asked->upper ? asked->upper : sides->last + 1;
    return put_set(reply, NARROW, lower, upper, sides->from, sides->place);
}

static bool compare_set(reply_t *reply, const question_t *asked)
{
    comparison_t sides = {.theirs = {.at = asked->content, .end = reply->end},
                          .place = asked->low};
    read_varint(&sides.theirs, &sides.left);
    next_item(&sides);
    while (sides.place < asked->high || sides.left) {
        int order = compare_items(reply, &sides, asked);
        if (order && !sides.is_run) {
            sides.is_run = true;
            sides.first = order < 0 ? sides.time : sides.item.time;
            sides.from = sides.place;
        }
        if (!order && !end_run(reply, &sides, asked))
            return false;
        if (order)
            sides.last = order < 0 ? sides.time : sides.item.time;
        hash_t hash;
        if (order > 0)
            memcpy(&hash, sides.item.hash, HASH_BYTES);
        if ((order < 0 && !found_here(reply, sides.place)) ||
            (order > 0 && !found(reply, &reply->got_times, &reply->got_hashes, sides.item.time,
                                 hash)))
            return false;
        sides.place += order <= 0;
        if (order >= 0) {
            sides.left--;
            next_item(&sides);
        }
    }
    return end_run(reply, &sides, asked);
}

/* ---- the answer ---------------------------------------------------------------------------- */

static bool put_answer(reply_t *reply, const question_t *asked, gauges_t *gauges)
{
    if (asked->is_set)
        return compare_set(reply, asked);
    if (asked->named >= 0) {
        if (!found_here(reply, asked->named))
            return false;
        int64_t time = time_at(&reply->rows, reply->chunk, asked->named);
        return put_set(reply, SHOWN, time, time + 1, asked->named, asked->named + 1);
    }
    if (!asked->differs)
        return true;
    if (asked->parts > 1)
        return put_parts(reply, asked, gauges);
    if (asked->parts == 1)
        return put_print(reply, asked->lower, asked->upper, asked->print);
    return put_set(reply, WHOLE, asked->lower, asked->upper, asked->low, asked->high);
}

/* Write the answer behind the head; false: Python must do it. */
static bool put_all(reply_t *reply, const plan_t *plan, const uint8_t *head, size_t size)
{
    gauges_t gauges = {0, 0};
    if (reply->differing) {
        if (!probe_all(reply, plan) || !choose_all(reply, plan))
            return false;
        gauges = gauges_of(reply, plan->numbers[N_GAUGES]);
    }
    if (!reserve(&reply->out, size))
        return false;
    memcpy(reply->out.at, head, size);
    reply->out.used = size;
    for (Py_ssize_t number = 0; number < reply->count; number++)
        if (!put_answer(reply, question(reply, number), &gauges))
            return false;
    if (!close_set(reply))
        return false;
    if (!reply->ranges)
        reply->out.used = 0;
    /* The next answer needs room to split. */
    int64_t share = reply->open > 1 ? 2 : 1;
    return reply->ranges <= reply->most[A_RANGES] / share &&
           reply->out.used <= (size_t)(reply->most[A_BYTES] / share);
}

static PyObject *said(const reply_t *reply)
{
    const bytes_t *parts[] = {&reply->out, &reply->sent_times, &reply->sent_hashes,
                              &reply->got_times, &reply->got_hashes};
    PyObject *made[5] = {NULL};
    for (int i = 0; i < 5; i++) {
        made[i] = PyBytes_FromStringAndSize((const char *)parts[i]->at,
                                            (Py_ssize_t)parts[i]->used);
        if (!made[i]) {
            while (i--)
                Py_DECREF(made[i]);
            return NULL;
        }
    }
    bool all = reply->opened == reply->last_range - reply->first_range + 1;
    return Py_BuildValue("NLLLiNNNN", made[0], (long long)reply->held,
                         (long long)reply->asked_lower, (long long)reply->asked_upper, (int)all,
                         made[1], made[2], made[3], made[4]);
}

/* The answer, None if Python must find it, or NULL with an exception. */
static PyObject *answered(reply_t *reply, PyObject *planner, const uint8_t *head, size_t size)
{
    plan_t plan = {.from = {.count = 0}};
    PyThreadState *state = let_go(reply->end - head);
    bool usual = read_questions(reply) && measure(reply);
    take_back(state);
    if (!usual)
        Py_RETURN_NONE;
    if (reply->differing && make_plan(reply, planner, &plan) < 0)
        return NULL;
    if (reply->open) {
        /* What is read is about what is held in the open ranges. */
        state = let_go(reply->held * HASH_BYTES);
        usual = put_all(reply, &plan, head, size);
        take_back(state);
    }
    release(&plan.from);
    if (!usual)
        Py_RETURN_NONE;
    return said(reply);
}

static void free_all(reply_t *reply)
{
    bytes_t *parts[] = {&reply->memory, &reply->out, &reply->sent_times, &reply->sent_hashes,
                        &reply->got_times, &reply->got_hashes};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        free(parts[i]->at);
}

/* reply(index, payload, at, numbers, planner)
 *   -> (payload, IDs held, lower and upper time of what was asked, whether no Skip is in it, times
 *   and hashes of the IDs to send, and of those to receive), or None: Python must do it
 *
 * Ranges begin at `at`; what is before is the head of the answer, too. Numbers: the most ranges,
 * items and bytes of a payload, how many differences may still be found, the times of the
 * territory's bounds, and the time from which on the index has everything. The planner is given
 * how many IDs are held in the ranges, and a sample, and returns columns: see `make_plan`.
 */
PyObject *kernel_reply(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    static const column_kind kinds[] = {READ(8)};
    columns held;
    reply_t reply;
    char *data;
    Py_ssize_t size, at;
    memset(&reply, 0, sizeof reply);
    if (check_arguments("reply", given, 5) < 0 ||
        PyBytes_AsStringAndSize(arguments[1], &data, &size) < 0 ||
        size_argument(arguments[2], &at) < 0 || hold(&held, arguments + 3, kinds, 1) < 0)
        return NULL;
    bool fits = at <= size && held.rows[0] == A_COUNT;
    if (fits)
        memcpy(reply.most, held.at[0], sizeof reply.most);
    release(&held);
    for (int i = 0; i < A_COUNT; i++)
        fits &= reply.most[i] >= 0;
    if (!fits) {
        misfit("reply");
        return NULL;
    }
    if (reply.most[A_LEFT] == 0)
        Py_RETURN_NONE;
    if (open_rows(&reply.rows, arguments[0]) < 0)
        return NULL;
    reply.end = (const uint8_t *)data + size;
    reply.from = (reader_t){.at = (const uint8_t *)data + at, .end = reply.end};
    reply.from.most.ranges = (Py_ssize_t)reply.most[A_RANGES];
    reply.from.most.items = (Py_ssize_t)reply.most[A_ITEMS];
    PyObject *result = answered(&reply, arguments[4], (const uint8_t *)data, (size_t)at);
    free_all(&reply);
    close_rows(&reply.rows);
    return result;
}
