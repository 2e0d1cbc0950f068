/* Writing the ranges of a payload (WAKU-SYNC, "Payload encoding"). */

#include "kernel.h"

/* A bound with the prefix of a hash, a type, and a fingerprint: a set's own bytes are fewer. */
#define MAX_RANGE_BYTES (MAX_VARINT_BYTES + 1 + HASH_BYTES + 1 + HASH_BYTES)
#define MAX_ITEM_BYTES (MAX_VARINT_BYTES + HASH_BYTES)
#define MAX_ROWS (PY_SSIZE_T_MAX / 4 / MAX_RANGE_BYTES)

static inline uint8_t *put_hash(uint8_t *at, const uint8_t *hashes, Py_ssize_t row)
{
    memcpy(at, hashes + row * HASH_BYTES, HASH_BYTES);
    return at + HASH_BYTES;
}

/* Items from row to row, the first time in full; NULL: they do not ascend in time. */
static inline uint8_t *put_items(uint8_t *at, const uint8_t *times, const uint8_t *hashes,
                                 Py_ssize_t row, Py_ssize_t end)
{
    int64_t before = 0;
    for (; row < end; row++) {
        int64_t time = load(times, row);
        if (time < before)
            return NULL;
        at = put_varint(at, (uint64_t)(time - before));
        at = put_hash(at, hashes, row);
        before = time;
    }
    return at;
}

enum { E_HEAD, E_TIMES, E_HASHES, E_KINDS, E_PRINTS, E_COUNTS, E_RECONCILED, E_ITEMS, E_ITEM_HASHES };

typedef struct {
    const columns *from;
    Py_ssize_t item;
    int64_t time;
    uint8_t hash[HASH_BYTES];
} writer_t;

static const uint8_t no_hash[HASH_BYTES];

/* The prefix of a hash after a bound of the same time; NULL: it cannot be expressed. */
static uint8_t *put_prefix(uint8_t *at, const uint8_t *before, const uint8_t *hash)
{
    int length = 0;
    while (length < HASH_BYTES && hash[length] == before[length])
        length++;
    if (length == HASH_BYTES || hash[length] < before[length])
        return NULL;
    length++;
    if (memcmp(hash + length, no_hash, (size_t)(HASH_BYTES - length)) != 0)
        return NULL;
    *at++ = (uint8_t)length;
    memcpy(at, hash, (size_t)length);
    return at + length;
}

static uint8_t *put_bound(uint8_t *at, writer_t *writer, Py_ssize_t row)
{
    int64_t time = load(writer->from->at[E_TIMES], row);
    const uint8_t *hash = writer->from->at[E_HASHES] + row * HASH_BYTES;
    if (time < writer->time)
        return NULL;
    at = put_varint(at, (uint64_t)(time - writer->time));
    if (time == writer->time)
        at = put_prefix(at, writer->hash, hash);
    else if (memcmp(hash, no_hash, HASH_BYTES) != 0)
        return NULL;
    writer->time = time;
    memcpy(writer->hash, hash, HASH_BYTES);
    return at;
}

static uint8_t *put_set(uint8_t *at, writer_t *writer, Py_ssize_t row)
{
    const columns *from = writer->from;
    int64_t count = load(from->at[E_COUNTS], row);
    Py_ssize_t first = writer->item;
    if (count < 0 || count > from->rows[E_ITEMS] - first)
        return NULL;
    writer->item += (Py_ssize_t)count;
    at = put_varint(at, (uint64_t)count);
    at = put_items(at, from->at[E_ITEMS], from->at[E_ITEM_HASHES], first, writer->item);
    if (at)
        *at++ = from->at[E_RECONCILED][row] != 0;
    return at;
}

static uint8_t *put_range(uint8_t *at, writer_t *writer, Py_ssize_t row)
{
    const columns *from = writer->from;
    uint8_t kind = from->at[E_KINDS][row];
    at = put_bound(at, writer, row);
    if (!at || kind > ITEM_SET || (kind != ITEM_SET && load(from->at[E_COUNTS], row)))
        return NULL;
    *at++ = kind;
    if (kind == ITEM_SET)
        return put_set(at, writer, row);
    return kind == FINGERPRINT ? put_hash(at, from->at[E_PRINTS], row) : at;
}

static uint8_t *put_ranges(uint8_t *at, const columns *from)
{
    writer_t writer = {.from = from};
    memcpy(at, from->at[E_HEAD], (size_t)from->rows[E_HEAD]);
    at += from->rows[E_HEAD];
    for (Py_ssize_t row = 0; at && row < from->rows[E_KINDS]; row++)
        at = put_range(at, &writer, row);
    return writer.item == from->rows[E_ITEMS] ? at : NULL;
}

/* The payload, None if there is none, or NULL with an exception. */
static PyObject *encoded(const columns *held)
{
    Py_ssize_t most = held->rows[E_HEAD] + held->rows[E_TIMES] * MAX_RANGE_BYTES +
                      held->rows[E_ITEMS] * MAX_ITEM_BYTES;
    uint8_t *begin = PyMem_Malloc((size_t)most + 1);
    if (!begin)
        return PyErr_NoMemory();
    PyThreadState *state = let_go(most);
    uint8_t *end = put_ranges(begin, held);
    take_back(state);
    PyObject *payload =
        end ? PyBytes_FromStringAndSize((char *)begin, end - begin) : Py_BuildValue("");
    PyMem_Free(begin);
    return payload;
}

/* encode(head, times, hashes, kinds, fingerprints, counts, reconciled, item times, item hashes)
 *   -> the payload, or None: something in it cannot be encoded
 */
static PyObject *work_encode(const rows_t *index, columns *held)
{
    (void)index;
    const Py_ssize_t *rows = held->rows;
    bool fits = rows[E_ITEMS] == rows[E_ITEM_HASHES] && rows[E_TIMES] < MAX_ROWS &&
                rows[E_ITEMS] < MAX_ROWS && rows[E_HEAD] < MAX_ROWS;
    for (int i = E_HASHES; i <= E_RECONCILED; i++)
        fits &= rows[i] == rows[E_TIMES];
    return fits ? encoded(held) : NULL;
}

CALL(encode, ALONE, READ(1), READ(8), READ(32), READ(1), READ(32), READ(8), READ(1), READ(8),
     READ(32))
