/* A whole payload answered at once: what `reconcile.algorithm.turn` does, where nothing is unusual.
 *
 * The payload is read, its ranges are compared with the index, and what differs is named, sent or
 * split, as the plan says that Python makes in between. Bounds inside a nanosecond, IDs of one time
 * where a range would have to be cut, and answers beyond a limit are left to Python.
 */

#include "reply.h"

#define MAX_RANGE_BYTES (2 * (MAX_VARINT_BYTES + 1) + HASH_BYTES)
#define MAX_ITEM_BYTES (MAX_VARINT_BYTES + HASH_BYTES)

/* As in `reconcile.algorithm.answer`. */
#define GAUGE_PARTS 64
#define MIN_GAUGED_ITEMS 64
#define LARGEST_MERGED_SET 256

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
static bool put_all(reply_t *reply, int64_t wanted, const uint8_t *head, size_t size)
{
    gauges_t gauges = gauges_of(reply, wanted);
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
    return Py_BuildValue("NLLLNNNN", made[0], (long long)reply->held,
                         (long long)reply->asked_lower, (long long)reply->asked_upper, made[1],
                         made[2], made[3], made[4]);
}

/* The answer, None if Python must find it, or NULL with an exception. */
static PyObject *answered(reply_t *reply, PyObject *planner, const uint8_t *head, size_t size)
{
    int64_t gauges = 0;
    PyThreadState *state = let_go(reply->end - head);
    bool usual = read_questions(reply) && measure(reply);
    take_back(state);
    if (!usual)
        Py_RETURN_NONE;
    if (reply->differing) {
        if (plan_search(reply, planner) < 0)
            return NULL;
        state = let_go(reply->held * HASH_BYTES);
        usual = probe_all(reply);
        take_back(state);
        if (!usual)
            Py_RETURN_NONE;
        gauges = plan_parts(reply, planner);
        if (gauges < 0)
            return NULL;
    }
    if (reply->open) {
        /* What is read is about what is held in the open ranges. */
        state = let_go(reply->held * HASH_BYTES);
        usual = put_all(reply, gauges, head, size);
        take_back(state);
    }
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
 *   -> (payload, IDs held, lower and upper time of what was asked, times and hashes of the IDs
 *   to send, and of those to receive), or None: Python must do it
 *
 * Ranges begin at `at`; what is before is the head of the answer, too. Numbers: the most ranges,
 * items and bytes of a payload, how many differences may still be found, the times of the
 * territory's bounds, and the time from which on the index has everything. The planner is asked
 * twice, if fingerprints differ: see `plan_search` and `plan_parts`.
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
