/* Slices of an index in the compact mode (docs/spec/compact.md): where they are, and what is in them. */

#ifndef RECONCILE_SLICES_H
#define RECONCILE_SLICES_H

#include "short.h"

#define SAMPLE 4 /* IDs from one kept running balance to the next */

/* +1 or -1 by the lowest bit of the first byte of the hash behind a row. */
static inline int balance_at(const uint8_t *prefix, Py_ssize_t row)
{
    return 1 - 2 * ((prefix[row * HASH_BYTES] ^ prefix[(row + 1) * HASH_BYTES]) & 1);
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

/* Parts of the window, ascending, none of them empty. */
typedef struct {
    const uint8_t *starts, *ends;
    Py_ssize_t count;
} regions_t;

typedef struct {
    rows_t rows;
    Py_buffer *samples; /* the balances of each chunk */
    Py_ssize_t opened;  /* of them */
    const uint8_t *bases; /* the balance before each chunk */
    int64_t low, high;  /* places of the window */
    regions_t regions;
    hasher_t hasher;
    columns held;
    bool usual; /* the regions are such */
} slicer_t;

/* Arguments of both functions, in this order, behind the index and its samples. */
enum { A_NUMBERS, A_BASES, A_KEY, A_STARTS, A_ENDS, A_COLUMNS };
/* What is in the first of these. */
enum { N_LOW, N_HIGH, N_COUNT, N_PRINT_BYTES, NUMBERS };

/* 0, or -1 with an exception; then nothing is held. */
int open_slicer(slicer_t *slicer, PyObject *const *arguments);
void close_slicer(slicer_t *slicer);

/* Bounds on the axis of regions without what is between these, as multiples of a power of two. */
typedef struct {
    int exponent;
    Py_ssize_t count;
    int64_t *multiples;
} bounds_t;

/* Where slices begin and end, of each region all its bounds and both its edges, and what is between
 * each cut and the one before it: columns of 8 bytes a row, one behind the other. */
enum { CUT_COLUMNS = 4 };

typedef struct {
    int64_t *times, *places;
    uint64_t *prints; /* short IDs */
    int64_t *balances;
    Py_ssize_t count;
} cuts_t;

static inline Py_ssize_t cuts_for(const bounds_t *bounds, const regions_t *regions)
{
    return bounds->count + 2 * regions->count;
}

/* Goes from slice to slice: `cut` is where the next one begins. */
typedef struct {
    Py_ssize_t cut, region;
} course_t;

/* Where the next slice ends, which is the next cut. */
static inline Py_ssize_t next_end(course_t *course, const cuts_t *cuts, const regions_t *regions)
{
    Py_ssize_t end = ++course->cut;
    if (cuts->times[end] == load(regions->ends, course->region)) {
        course->cut++;
        course->region += course->region + 1 < regions->count;
    }
    return end;
}

/* Bounds of about so many slices with equal counts; `multiples` has room for as many. */
void choose_bounds(const slicer_t *slicer, Py_ssize_t count, bounds_t *bounds);

/* Fill the columns of cuts, for which there is room; false: a bound is no place between two slices. */
bool cut_slices(const slicer_t *slicer, const bounds_t *bounds, cuts_t *cuts);

#endif
