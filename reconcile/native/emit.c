/* Writing the ranges of a payload (WAKU-SYNC, "Payload encoding").
 *
 * `encode` writes ranges that are given as they are. `compose` first puts them together from the
 * pieces of an answer, as `reconcile.algorithm.answer` does, where no bound has a hash.
 */

#include "kernel.h"

/* A bound with the prefix of a hash, a type, and a fingerprint: a set's own bytes are fewer. */
#define MAX_RANGE_BYTES (MAX_VARINT_BYTES + 1 + HASH_BYTES + 1 + HASH_BYTES)
#define MAX_ITEM_BYTES (MAX_VARINT_BYTES + HASH_BYTES)
#define MAX_ROWS (PY_SSIZE_T_MAX / 4 / MAX_RANGE_BYTES)

/* Items, about, up to which touching sets are put together: as in `reconcile.algorithm.answer`. */
#define LARGEST_MERGED_SET 256

#define MAX_GROUPS 8

static inline Py_ssize_t varint_bytes(uint64_t value)
{
#if defined(__GNUC__)
    return (70 - __builtin_clzll(value | 1)) / 7;
#else
    Py_ssize_t bytes = 1;
    while (value >>= 7)
        bytes++;
    return bytes;
#endif
}

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

/* ---- encode ------------------------------------------------------------------------------ */

enum { E_HEAD, E_TIMES, E_HASHES, E_KINDS, E_PRINTS, E_COUNTS, E_RECONCILED, E_ITEMS, E_ITEM_HASHES };

typedef struct {
    const columns *from;
    Py_ssize_t fingerprint, set, item;
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

static uint8_t *put_set(uint8_t *at, writer_t *writer)
{
    const columns *from = writer->from;
    if (writer->set == from->rows[E_COUNTS])
        return NULL;
    int64_t count = load(from->at[E_COUNTS], writer->set);
    Py_ssize_t first = writer->item;
    if (count < 0 || count > from->rows[E_ITEMS] - first)
        return NULL;
    writer->item += (Py_ssize_t)count;
    at = put_varint(at, (uint64_t)count);
    at = put_items(at, from->at[E_ITEMS], from->at[E_ITEM_HASHES], first, writer->item);
    if (at)
        *at++ = from->at[E_RECONCILED][writer->set] != 0;
    writer->set++;
    return at;
}

static uint8_t *put_range(uint8_t *at, writer_t *writer, Py_ssize_t row)
{
    const columns *from = writer->from;
    uint8_t kind = from->at[E_KINDS][row];
    at = put_bound(at, writer, row);
    if (!at || kind > ITEM_SET)
        return NULL;
    *at++ = kind;
    if (kind == ITEM_SET)
        return put_set(at, writer);
    if (kind == FINGERPRINT) {
        if (writer->fingerprint == from->rows[E_PRINTS])
            return NULL;
        at = put_hash(at, from->at[E_PRINTS], writer->fingerprint++);
    }
    return at;
}

static uint8_t *put_ranges(uint8_t *at, const columns *from)
{
    writer_t writer = {.from = from};
    memcpy(at, from->at[E_HEAD], (size_t)from->rows[E_HEAD]);
    at += from->rows[E_HEAD];
    for (Py_ssize_t row = 0; at && row < from->rows[E_KINDS]; row++)
        at = put_range(at, &writer, row);
    bool all = writer.fingerprint == from->rows[E_PRINTS] && writer.set == from->rows[E_COUNTS] &&
               writer.item == from->rows[E_ITEMS];
    return all ? at : NULL;
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
PyObject *kernel_encode(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    static const column_kind kinds[] = {READ(1), READ(8), READ(32), READ(1), READ(32),
                                        READ(8), READ(1), READ(8),  READ(32)};
    columns held;
    if (check_arguments("encode", given, 9) < 0 || hold(&held, arguments, kinds, 9) < 0)
        return NULL;
    const Py_ssize_t *rows = held.rows;
    bool fits = rows[E_TIMES] == rows[E_HASHES] && rows[E_TIMES] == rows[E_KINDS] &&
                rows[E_COUNTS] == rows[E_RECONCILED] && rows[E_ITEMS] == rows[E_ITEM_HASHES] &&
                rows[E_TIMES] < MAX_ROWS && rows[E_ITEMS] < MAX_ROWS && rows[E_HEAD] < MAX_ROWS;
    PyObject *payload = fits ? encoded(&held) : NULL;
    release(&held);
    if (!fits)
        misfit("encode");
    return payload;
}

/* ---- compose ----------------------------------------------------------------------------- */

enum { G_KEYS, G_LOWER, G_LOWER_HASHES, G_UPPER, G_UPPER_HASHES, G_PRINTS };
enum { G_COUNTS = G_PRINTS, G_ITEMS, G_ITEM_HASHES };

/* Pieces of one making, in the order of their keys; of sets, touching ones are put together. */
typedef struct {
    columns from;
    bool is_set, reconciled;
    Py_ssize_t row, end; /* the next piece is made of these rows */
    Py_ssize_t item;     /* the first item of it */
    int64_t items, done; /* how many it has, and how many are before it */
} group_t;

typedef struct {
    int count;
    group_t groups[MAX_GROUPS];
} pieces_t;

static inline int64_t count_of(const group_t *group, Py_ssize_t row)
{
    return load(group->from.at[G_COUNTS], row);
}

/* Find out where the next piece ends that begins at `row`. */
static inline void gather(group_t *group)
{
    const columns *from = &group->from;
    group->end = group->row;
    if (group->row == from->rows[G_KEYS])
        return;
    group->end++;
    if (!group->is_set)
        return;
    int64_t total = group->done, block = total / LARGEST_MERGED_SET;
    total += group->items = count_of(group, group->row);
    while (group->end < from->rows[G_KEYS] && total / LARGEST_MERGED_SET == block &&
           load(from->at[G_LOWER], group->end) == load(from->at[G_UPPER], group->end - 1)) {
        int64_t count = count_of(group, group->end++);
        group->items += count;
        total += count;
    }
}

static inline void advance(group_t *group)
{
    group->row = group->end;
    if (group->is_set) {
        group->item += (Py_ssize_t)group->items;
        group->done += group->items;
    }
    gather(group);
}

static void rewind_all(pieces_t *pieces)
{
    for (int i = 0; i < pieces->count; i++) {
        group_t *group = &pieces->groups[i];
        group->row = group->item = 0;
        group->done = 0;
        gather(group);
    }
}

/* The group whose piece comes next, the first of several with one key; NULL: none is left. */
static inline group_t *next_group(pieces_t *pieces)
{
    group_t *next = NULL;
    int64_t least = 0;
    for (int i = 0; i < pieces->count; i++) {
        group_t *group = &pieces->groups[i];
        if (group->row == group->end)
            continue;
        int64_t key = load(group->from.at[G_KEYS], group->row);
        if (!next || key < least) {
            next = group;
            least = key;
        }
    }
    return next;
}

static inline int64_t lower_of(const group_t *group)
{
    return load(group->from.at[G_LOWER], group->row);
}

static inline int64_t upper_of(const group_t *group)
{
    return load(group->from.at[G_UPPER], group->end - 1);
}

/* What pieces come to. */
typedef struct {
    Py_ssize_t ranges, items, bytes;
} extent_t;

/* Bytes of the piece that a group is at, behind its type; -1: its items do not ascend in time. */
static inline Py_ssize_t piece_bytes(const group_t *group)
{
    if (!group->is_set)
        return HASH_BYTES;
    const uint8_t *times = group->from.at[G_ITEMS];
    Py_ssize_t bytes = varint_bytes((uint64_t)group->items) + 1, row = group->item;
    int64_t before = 0;
    for (Py_ssize_t end = row + (Py_ssize_t)group->items; row < end; row++) {
        int64_t time = load(times, row);
        if (time < before)
            return -1;
        bytes += varint_bytes((uint64_t)(time - before)) + HASH_BYTES;
        before = time;
    }
    return bytes;
}

/* Measure the pieces; false: a bound or an item does not ascend. */
static bool measure(pieces_t *pieces, extent_t *extent)
{
    int64_t before = 0;
    *extent = (extent_t){0, 0, 0};
    rewind_all(pieces);
    for (group_t *group; (group = next_group(pieces)); advance(group)) {
        int64_t lower = lower_of(group), upper = upper_of(group);
        Py_ssize_t bytes = piece_bytes(group);
        if (lower < before || upper <= lower || bytes < 0)
            return false;
        bool apart = lower != before;
        extent->ranges += 1 + apart;
        extent->items += group->is_set ? (Py_ssize_t)group->items : 0;
        extent->bytes += varint_bytes((uint64_t)(upper - lower)) + 1 + bytes;
        extent->bytes += apart ? varint_bytes((uint64_t)(lower - before)) + 1 : 0;
        before = upper;
    }
    return true;
}

static uint8_t *put_piece(uint8_t *at, const group_t *group)
{
    const columns *from = &group->from;
    *at++ = group->is_set ? ITEM_SET : FINGERPRINT;
    if (!group->is_set)
        return put_hash(at, from->at[G_PRINTS], group->row);
    at = put_varint(at, (uint64_t)group->items);
    at = put_items(at, from->at[G_ITEMS], from->at[G_ITEM_HASHES], group->item,
                   group->item + (Py_ssize_t)group->items);
    *at++ = group->reconciled;
    return at;
}

/* Write pieces that were measured. */
static void put_pieces(uint8_t *at, pieces_t *pieces)
{
    int64_t before = 0;
    rewind_all(pieces);
    for (group_t *group; (group = next_group(pieces)); advance(group)) {
        int64_t lower = lower_of(group), upper = upper_of(group);
        if (lower != before) {
            at = put_varint(at, (uint64_t)(lower - before));
            *at++ = SKIP;
        }
        at = put_varint(at, (uint64_t)(upper - lower));
        at = put_piece(at, group);
        before = upper;
    }
}

/* Do the columns of a group fit each other, and the counts the items. */
static bool is_sound(const group_t *group)
{
    const Py_ssize_t *rows = group->from.rows;
    for (int i = G_LOWER; i <= G_PRINTS; i++)
        if (rows[i] != rows[G_KEYS] || rows[i] >= MAX_ROWS)
            return false;
    if (!group->is_set)
        return true;
    int64_t total = 0;
    for (Py_ssize_t row = 0; row < rows[G_KEYS]; row++) {
        int64_t count = count_of(group, row);
        if (count < 0 || count > rows[G_ITEMS] - total)
            return false;
        total += count;
    }
    return total == rows[G_ITEMS] && total == rows[G_ITEM_HASHES] && total < MAX_ROWS;
}

/* A group from a tuple of columns, and for sets whether they are reconciled. */
static int open_group(group_t *group, PyObject *given, bool is_set)
{
    static const column_kind prints[] = {READ(8), READ(8), READ(32), READ(8), READ(32), READ(32)};
    static const column_kind sets[] = {READ(8),  READ(8), READ(32), READ(8),
                                       READ(32), READ(8), READ(8),  READ(32)};
    int columns_count = is_set ? 8 : 6;
    PyObject *arguments[9];
    if (!PyTuple_Check(given) || PyTuple_Size(given) != columns_count + is_set)
        return misfit("compose");
    for (int i = 0; i < columns_count + is_set; i++)
        arguments[i] = PyTuple_GetItem(given, i);
    memset(group, 0, sizeof *group);
    group->is_set = is_set;
    group->reconciled = is_set && PyObject_IsTrue(arguments[8]) == 1;
    if (hold(&group->from, arguments, is_set ? sets : prints, columns_count) < 0)
        return -1;
    if (is_sound(group))
        return 0;
    release(&group->from);
    return misfit("compose");
}

static void release_all(pieces_t *pieces)
{
    while (pieces->count)
        release(&pieces->groups[--pieces->count].from);
}

static int open_groups(pieces_t *pieces, PyObject *given, bool is_set)
{
    if (!PyTuple_Check(given) || PyTuple_Size(given) > MAX_GROUPS - pieces->count)
        return misfit("compose");
    for (Py_ssize_t i = 0; i < PyTuple_Size(given); i++) {
        if (open_group(&pieces->groups[pieces->count], PyTuple_GetItem(given, i), is_set) < 0)
            return -1;
        pieces->count++;
    }
    return 0;
}

/* Does no bound have a hash. */
static bool is_plain(const pieces_t *pieces)
{
    for (int i = 0; i < pieces->count; i++) {
        const columns *from = &pieces->groups[i].from;
        if (!all_zero(from->at[G_LOWER_HASHES], from->rows[G_KEYS]) ||
            !all_zero(from->at[G_UPPER_HASHES], from->rows[G_KEYS]))
            return false;
    }
    return true;
}

/* The payload behind a head, or NULL with an exception. */
static PyObject *written(PyObject *head, pieces_t *pieces, Py_ssize_t bytes)
{
    char *start;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(head, &start, &size) < 0)
        return NULL;
    PyObject *payload = PyBytes_FromStringAndSize(NULL, size + bytes);
    if (!payload)
        return NULL;
    uint8_t *begin = (uint8_t *)PyBytes_AsString(payload);
    memcpy(begin, start, (size_t)size);
    PyThreadState *state = let_go(bytes);
    put_pieces(begin + size, pieces);
    take_back(state);
    return payload;
}

static PyObject *composed(PyObject *const *arguments, pieces_t *pieces)
{
    Py_ssize_t most_ranges, most_items;
    extent_t extent;
    if (size_argument(arguments[3], &most_ranges) < 0 ||
        size_argument(arguments[4], &most_items) < 0)
        return NULL;
    if (!is_plain(pieces) || !measure(pieces, &extent))
        Py_RETURN_NONE;
    if (!extent.ranges || extent.ranges > most_ranges || extent.items > most_items)
        return Py_BuildValue("nny", extent.ranges, extent.items, "");
    PyObject *payload = written(arguments[0], pieces, extent.bytes);
    return payload ? Py_BuildValue("nnN", extent.ranges, extent.items, payload) : NULL;
}

/* compose(head, fingerprint groups, set groups, max_ranges, max_items)
 *   -> (ranges, items, payload), the payload empty if there are no ranges or too many of either;
 *   or None: arrays must do it
 *
 * A group is a tuple of columns: keys, lower times and hashes, upper times and hashes, then of
 * fingerprints these, or of sets counts, item times, item hashes and whether they are reconciled.
 */
PyObject *kernel_compose(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    if (check_arguments("compose", given, 5) < 0)
        return NULL;
    pieces_t *pieces = PyMem_Malloc(sizeof *pieces);
    if (!pieces)
        return PyErr_NoMemory();
    pieces->count = 0;
    PyObject *result = NULL;
    if (open_groups(pieces, arguments[1], false) == 0 &&
        open_groups(pieces, arguments[2], true) == 0)
        result = composed(arguments, pieces);
    release_all(pieces);
    PyMem_Free(pieces);
    return result;
}
