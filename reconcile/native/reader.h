/* Reading the ranges of a payload, one at a time (WAKU-SYNC, "Payload encoding"). */

#ifndef RECONCILE_READER_H
#define RECONCILE_READER_H

#include "kernel.h"

typedef struct {
    Py_ssize_t ranges, items;
    bool prefixed; /* some bound has a hash */
} counts_t;

/* Where to write what is read; none of it in the first walk. */
typedef struct {
    uint8_t *times, *hashes, *kinds, *fingerprints, *counts, *reconciled, *item_times, *item_hashes;
} sinks_t;

typedef struct {
    const uint8_t *at, *end;
    counts_t most; /* of ranges and items; in the second walk of all */
    counts_t done;
    sinks_t to;
    int64_t time; /* the upper bound of the range before */
    uint8_t hash[HASH_BYTES];
    uint8_t kind;           /* of the range that was read last */
    const uint8_t *content; /* what is behind its type */
} reader_t;

/* The same as below, byte by byte. */
static inline bool read_varint_slowly(reader_t *from, int64_t *value)
{
    const uint8_t *at = from->at;
    uint64_t sum = 0;
    for (int shift = 0; shift < 7 * MAX_VARINT_BYTES; shift += 7) {
        if (at == from->end)
            return false;
        uint64_t byte = *at++;
        sum |= (byte & 0x7F) << shift;
        if (byte < 0x80) {
            from->at = at;
            *value = (int64_t)sum;
            return byte || !shift;
        }
    }
    return false;
}

/* A minimal varint of at most 63 bits. */
static inline bool read_varint(reader_t *from, int64_t *value)
{
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    /* Eight bytes at once: what follows the first stop bit is somebody else's. */
    uint64_t word;
    if (from->end - from->at >= (Py_ssize_t)sizeof word) {
        memcpy(&word, from->at, sizeof word);
        uint64_t stops = ~word & 0x8080808080808080;
        if (stops) {
            int bits = __builtin_ctzll(stops) + 1;
            word &= stops ^ (stops - 1);
            if (bits > 8 && !(word >> (bits - 8)))
                return false;
            word &= 0x7F7F7F7F7F7F7F7F;
            word = (word & 0x007F007F007F007F) | (word & 0x7F007F007F007F00) >> 1;
            word = (word & 0x00003FFF00003FFF) | (word & 0x3FFF00003FFF0000) >> 2;
            word = (word & 0x000000000FFFFFFF) | (word & 0x0FFFFFFF00000000) >> 4;
            from->at += bits / 8;
            *value = (int64_t)word;
            return true;
        }
    }
#endif
    return read_varint_slowly(from, value);
}

static inline bool add_time(int64_t *time, int64_t difference)
{
    if (difference > MAX_TIME - *time)
        return false;
    *time += difference;
    return true;
}

static inline Py_ssize_t left(const reader_t *from)
{
    return from->end - from->at;
}

/* At least the lower bytes of a word; so many bytes are there. */
static inline uint64_t low_bytes(const uint8_t *at, Py_ssize_t count, Py_ssize_t there)
{
    uint64_t value = 0;
    if (there >= (Py_ssize_t)sizeof value)
        return word_at(at);
    for (; count; count--)
        value = value << 8 | at[count - 1];
    return value;
}

/* The prefix of a hash, which must make the bound greater. */
static inline bool read_prefix(reader_t *from)
{
    uint8_t hash[HASH_BYTES] = {0};
    if (!left(from))
        return false;
    int length = *from->at;
    if (length < 1 || length > HASH_BYTES || left(from) <= length)
        return false;
    memcpy(hash, from->at + 1, (size_t)length);
    if (memcmp(hash, from->hash, HASH_BYTES) <= 0)
        return false;
    memcpy(from->hash, hash, HASH_BYTES);
    from->at += 1 + length;
    from->done.prefixed = true;
    return true;
}

static inline bool read_bound(reader_t *from)
{
    int64_t difference;
    if (!read_varint(from, &difference))
        return false;
    if (!difference)
        return read_prefix(from);
    if (from->done.prefixed)
        memset(from->hash, 0, HASH_BYTES);
    return add_time(&from->time, difference);
}

typedef struct {
    int64_t time;
    const uint8_t *hash;
} item_t;

static inline bool item_below(item_t left_item, item_t right_item)
{
    if (left_item.time != right_item.time)
        return left_item.time < right_item.time;
    return memcmp(left_item.hash, right_item.hash, HASH_BYTES) < 0;
}

/* So many items, ascending, not below `lower` and below the range's upper bound. */
static inline bool read_items(reader_t *from, Py_ssize_t count, item_t lower, bool fills)
{
    item_t item = {0, NULL};
    for (Py_ssize_t number = 0; number < count; number++) {
        item_t before = item;
        int64_t difference;
        if (!read_varint(from, &difference) || !add_time(&item.time, difference))
            return false;
        if (left(from) < HASH_BYTES)
            return false;
        item.hash = from->at;
        from->at += HASH_BYTES;
        if (number ? !difference && !item_below(before, item) : item_below(item, lower))
            return false;
        if (fills) {
            store(from->to.item_times, from->done.items + number, item.time);
            memcpy(from->to.item_hashes + (from->done.items + number) * HASH_BYTES, item.hash,
                   HASH_BYTES);
        }
    }
    item_t upper = {from->time, from->hash};
    return !count || item_below(item, upper);
}

static inline bool read_set(reader_t *from, item_t lower, bool fills)
{
    int64_t count;
    if (!read_varint(from, &count))
        return false;
    /* An item has a byte of time at least, and behind the last one is the reconciled byte. */
    if (count && count >= left(from) / (1 + HASH_BYTES) + (left(from) % (1 + HASH_BYTES) != 0))
        return false;
    if (count > from->most.items - from->done.items)
        return false;
    if (!read_items(from, (Py_ssize_t)count, lower, fills) || !left(from) || *from->at > 1)
        return false;
    if (fills) {
        store(from->to.counts, from->done.ranges - 1, count);
        from->to.reconciled[from->done.ranges - 1] = *from->at;
    }
    from->at++;
    from->done.items += (Py_ssize_t)count;
    return true;
}

static inline bool read_fingerprint(reader_t *from, bool fills)
{
    if (left(from) < HASH_BYTES)
        return false;
    if (fills)
        memcpy(from->to.fingerprints + (from->done.ranges - 1) * HASH_BYTES, from->at, HASH_BYTES);
    from->at += HASH_BYTES;
    return true;
}

static inline bool read_range(reader_t *from, bool fills)
{
    uint8_t lower_hash[HASH_BYTES];
    item_t lower = {from->time, lower_hash};
    memcpy(lower_hash, from->hash, HASH_BYTES);
    if (from->done.ranges == from->most.ranges || !read_bound(from) || !left(from))
        return false;
    uint8_t kind = from->kind = *from->at++;
    from->content = from->at;
    if (fills) {
        store(from->to.times, from->done.ranges, from->time);
        from->to.kinds[from->done.ranges] = kind;
        if (from->to.hashes)
            memcpy(from->to.hashes + from->done.ranges * HASH_BYTES, from->hash, HASH_BYTES);
    }
    from->done.ranges++;
    if (kind == FINGERPRINT)
        return read_fingerprint(from, fills);
    if (kind == ITEM_SET)
        return read_set(from, lower, fills);
    return kind == SKIP;
}

#endif
