/* How many IDs ascending slices have (`Held.counts`), and the extremes of that (`sizing.Ordinary`).
 */

#ifndef RECONCILE_COUNTS_H
#define RECONCILE_COUNTS_H

#include "rows.h"

#define LARGE 4 /* by this part of the usual count more is looked into */

typedef struct {
    const rows_t *rows;
    int64_t usual;
    Py_ssize_t chunk;
    finger_t finger;
} counter_t;

static inline counter_t counter_of(const rows_t *rows, int64_t usual)
{
    return (counter_t){rows, usual, 0, {0, 0, 1}};
}

/* How many IDs have the time of the one in the middle of a slice. */
static inline int64_t alike(counter_t *counter, int64_t low, int64_t high)
{
    const rows_t *rows = counter->rows;
    Py_ssize_t place = (Py_ssize_t)(low + (high - low) / 2);
    go_on(rows, &counter->chunk, place);
    int64_t time = time_at(rows, counter->chunk, place);
    int64_t first = rank(rows, &counter->finger, time);
    return (time == MAX_TIME ? rows->length : rank(rows, &counter->finger, time + 1)) - first;
}

/* IDs of a slice between places, which is not before the last one; those of one time count as no
 * more than is usual. */
static inline int64_t count_of(counter_t *counter, int64_t low, int64_t high)
{
    int64_t count = high - low, usual = counter->usual;
    if (count <= usual + usual / LARGE)
        return count;
    int64_t same = alike(counter, low, high);
    same = (same < count ? same : count) - usual;
    return count - (same > 0 ? same : 0);
}

#define OUTSIDE 2 /* so many of the largest and the least are not looked at, a tenth at most */

typedef struct {
    Py_ssize_t count;
    int64_t least[OUTSIDE + 1], negated[OUTSIDE + 1]; /* negated: the largest ones */
} extremes_t;

#define NO_EXTREMES \
    {0, {INT64_MAX, INT64_MAX, INT64_MAX}, {INT64_MAX, INT64_MAX, INT64_MAX}}

/* Put a number where it belongs among the first few of ascending ones; the last one drops out. */
static inline void keep_least(int64_t *least, int64_t value)
{
    for (int i = 0; i <= OUTSIDE; i++)
        if (value < least[i]) {
            int64_t next = least[i];
            least[i] = value;
            value = next;
        }
}

static inline void see(extremes_t *seen, int64_t count)
{
    keep_least(seen->least, count);
    keep_least(seen->negated, -count);
    seen->count++;
}

/* Whether a count could be among the extremes, if those of one time in it, which are some look-ups to
 * find, leave no less than is usual of it. */
static inline bool may_show(const extremes_t *seen, int64_t count, int64_t usual)
{
    return -count < seen->negated[OUTSIDE] || usual < seen->least[OUTSIDE];
}

static inline Py_ssize_t outside_of(const extremes_t *seen)
{
    return seen->count / 10 < OUTSIDE ? seen->count / 10 : OUTSIDE;
}

static inline int64_t few_of(const extremes_t *seen)
{
    return seen->count ? seen->least[outside_of(seen)] : 0;
}

static inline int64_t many_of(const extremes_t *seen)
{
    return seen->count ? -seen->negated[outside_of(seen)] : 0;
}

#endif
