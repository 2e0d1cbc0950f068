/* The rows of an index, as the kernel sees them. */

#ifndef RECONCILE_ROWS_H
#define RECONCILE_ROWS_H

#include "kernel.h"

/* Ascending IDs: timestamps, and the running XOR of their hashes in one row more. */
typedef struct {
    const uint8_t *times, *prefix;
    Py_buffer views[2];
} chunk_t;

struct rows {
    chunk_t *chunks;
    Py_ssize_t count;      /* of chunks */
    Py_ssize_t length;     /* of all */
    const uint8_t *starts; /* the place of each chunk's first ID, then the length */
    const uint8_t *bases;  /* what makes each chunk's running XOR continue the one before it */
    columns places;
};

int open_rows(rows_t *rows, PyObject *index);
void close_rows(rows_t *rows);

/* So many rows ahead of what is worked on memory is asked for. */
#define AHEAD 12

/* Where to look for ascending times: the last place that was found, and how far on that was. */
typedef struct {
    Py_ssize_t chunk, place, step;
} finger_t;

/* The first place from `low` on, below `high`, whose time is `wanted` or later; else `high`. */
static inline Py_ssize_t search(const uint8_t *times, Py_ssize_t low, Py_ssize_t high,
                                int64_t wanted)
{
    while (low < high) {
        Py_ssize_t middle = low + (high - low) / 2;
        bool before = load(times, middle) < wanted;
        low = before ? middle + 1 : low;
        high = before ? high : middle;
    }
    return low;
}

/* The same, near a place where it may be: bounds come evenly spread. */
static inline Py_ssize_t search_near(const uint8_t *times, Py_ssize_t low, Py_ssize_t high,
                                     Py_ssize_t guess, int64_t wanted)
{
    Py_ssize_t step = 4;
    guess = guess < high ? guess : high;
    if (guess == high || load(times, guess) >= wanted) {
        for (high = guess; step <= guess - low; guess -= step, step *= 2) {
            if (load(times, guess - step) < wanted)
                return search(times, guess - step + 1, high, wanted);
            high = guess - step;
        }
        return search(times, low, high, wanted);
    }
    for (low = guess + 1; step < high - guess; guess += step, step *= 2) {
        if (load(times, guess + step) >= wanted)
            return search(times, low, guess + step, wanted);
        low = guess + step + 1;
    }
    return search(times, low, high, wanted);
}

static inline Py_ssize_t size_of(const rows_t *rows, Py_ssize_t chunk)
{
    return (Py_ssize_t)(load(rows->starts, chunk + 1) - load(rows->starts, chunk));
}

/* How many IDs are before a time, which is not before the one that was asked for last. */
static inline Py_ssize_t rank(const rows_t *rows, finger_t *finger, int64_t wanted)
{
    for (; finger->chunk < rows->count; finger->chunk++, finger->place = 0) {
        const uint8_t *times = rows->chunks[finger->chunk].times;
        Py_ssize_t count = size_of(rows, finger->chunk);
        if (load(times, count - 1) < wanted)
            continue;
        Py_ssize_t guess = finger->place + (finger->step < count ? finger->step : count);
        Py_ssize_t found = search_near(times, finger->place, count, guess, wanted);
        finger->step = found - finger->place;
        if (finger->step < (count - found) / AHEAD)
            expect(times, found + AHEAD * finger->step, TIME_BYTES);
        finger->place = found;
        return (Py_ssize_t)load(rows->starts, finger->chunk) + found;
    }
    return rows->length;
}

/* Go on to the chunk that a place below the length is in, if it is not an earlier one. */
static inline void go_on(const rows_t *rows, Py_ssize_t *chunk, Py_ssize_t place)
{
    while (*chunk + 1 < rows->count && load(rows->starts, *chunk + 1) <= place)
        ++*chunk;
}

static inline int64_t time_at(const rows_t *rows, Py_ssize_t chunk, Py_ssize_t place)
{
    return load(rows->chunks[chunk].times, place - (Py_ssize_t)load(rows->starts, chunk));
}

/* The hash of the ID at a place of a chunk. */
static inline hash_t hash_at(const rows_t *rows, Py_ssize_t chunk, Py_ssize_t place)
{
    const uint8_t *prefix = rows->chunks[chunk].prefix;
    place -= (Py_ssize_t)load(rows->starts, chunk);
    return xored(load_hash(prefix, place), load_hash(prefix, place + 1));
}

/* The running XOR up to a place, which is in or after the chunk of `*chunk`. */
static inline hash_t running(const rows_t *rows, Py_ssize_t *chunk, Py_ssize_t place)
{
    while (*chunk + 1 < rows->count && load(rows->starts, *chunk + 1) < place)
        ++*chunk;
    Py_ssize_t own_place = place - (Py_ssize_t)load(rows->starts, *chunk);
    hash_t own = load_hash(rows->chunks[*chunk].prefix, own_place);
    return rows->count > 1 ? xored(own, load_hash(rows->bases, *chunk)) : own;
}

/* Ask for the running XOR up to a place, where that is easy to find. */
static inline void expect_running(const rows_t *rows, int64_t place)
{
    if (rows->count == 1 && place >= 0 && place <= rows->length)
        expect(rows->chunks[0].prefix, (Py_ssize_t)place, HASH_BYTES);
}

/* ---- single hashes ------------------------------------------------------------------------ */

#define SCANNED_AT_ONCE 4
#define ROWS_AHEAD 32

/* The first place from `from` to `to` of a chunk whose hash is the wanted one; else `to`. */
static inline Py_ssize_t scan(const chunk_t *chunk, Py_ssize_t from, Py_ssize_t to, hash_t wanted)
{
    const uint8_t *prefix = chunk->prefix;
    while (from < to) {
        Py_ssize_t end = to - from < SCANNED_AT_ONCE ? to : from + SCANNED_AT_ONCE;
        uint64_t words[SCANNED_AT_ONCE + 1];
        bool some = end - from < SCANNED_AT_ONCE;
        if (!some) {
            expect(prefix, from + ROWS_AHEAD, HASH_BYTES);
            expect(prefix, from + ROWS_AHEAD + SCANNED_AT_ONCE / 2, HASH_BYTES);
            for (int i = 0; i <= SCANNED_AT_ONCE; i++)
                memcpy(&words[i], prefix + (from + i) * HASH_BYTES, sizeof *words);
            for (int i = 0; i < SCANNED_AT_ONCE; i++)
                some |= (words[i] ^ words[i + 1]) == wanted.words[0];
        }
        for (; some && from < end; from++)
            if (same_hash(xored(load_hash(prefix, from), load_hash(prefix, from + 1)), wanted))
                return from;
        from = end;
    }
    return to;
}

/* How many IDs of an interval have a hash, counted to two, and the place of the last one found. */
static inline int probe_span(const rows_t *rows, Py_ssize_t *chunk, int64_t low, int64_t high,
                      hash_t wanted, Py_ssize_t *found)
{
    int hits = 0;
    while (low < high && hits < 2) {
        go_on(rows, chunk, (Py_ssize_t)low);
        int64_t start = load(rows->starts, *chunk), end = load(rows->starts, *chunk + 1);
        Py_ssize_t last = (Py_ssize_t)((high < end ? high : end) - start);
        Py_ssize_t at = scan(&rows->chunks[*chunk], (Py_ssize_t)(low - start), last, wanted);
        low = start + at;
        if (at == last)
            continue;
        *found = (Py_ssize_t)low++;
        hits++;
    }
    return hits;
}

/* The chunks of the place before what is found, of the place itself, and of the one behind. */
typedef struct {
    Py_ssize_t before, own, after;
} around_t;

/* Has the ID at a place, greater than the ones asked for earlier, a time of its own. */
static inline bool is_alone(const rows_t *rows, around_t *around, Py_ssize_t place, int64_t time)
{
    if (place > 0) {
        go_on(rows, &around->before, place - 1);
        if (time_at(rows, around->before, place - 1) == time)
            return false;
    }
    if (place + 1 == rows->length)
        return true;
    go_on(rows, &around->after, place + 1);
    return time_at(rows, around->after, place + 1) != time;
}

#endif
