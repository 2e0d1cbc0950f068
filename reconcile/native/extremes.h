/* The least and the largest of some counts, but for a few of either: `sizing.Ordinary`. */

#ifndef RECONCILE_EXTREMES_H
#define RECONCILE_EXTREMES_H

#include "kernel.h"

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
