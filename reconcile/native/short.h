/* Short IDs of the compact mode: a linear function of a hash under the session's key, in GF(2^64)
 * (docs/spec/compact.md). The XOR of some hashes has the XOR of their short IDs.
 */

#ifndef RECONCILE_SHORT_H
#define RECONCILE_SHORT_H

#include "rows.h"

#define KEY_WORDS 4
#define KEY_ROWS (KEY_WORDS + 1)
#define SHORT_BITS 48
#define SHORT_MASK ((UINT64_C(1) << SHORT_BITS) - 1)

typedef struct hasher hasher_t;

struct hasher {
    uint64_t key[KEY_WORDS];
    uint64_t (*of_row)(const hasher_t *, const uint8_t *row);
    void (*of_rows)(const hasher_t *, const uint8_t *prefix, Py_ssize_t count, uint64_t *out);
    uint64_t (*tables)[256]; /* of every byte's products; NULL with the instruction */
};

/* From a column of `KEY_ROWS`; false with an exception: there is no memory. */
bool open_hasher(hasher_t *hasher, const uint8_t *key);
void close_hasher(hasher_t *hasher);

#endif
