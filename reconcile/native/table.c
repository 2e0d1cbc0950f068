/* The compact mode's tables: short IDs are put in, and peeled. A cell is one word: the XOR of short
 * IDs in its lower 48 bits, the XOR of their checks above. What the shape of a table means,
 * `reconcile.compact.table` says.
 */

#include "short.h"

#define MAX_PLACES 5

#if defined(__GNUC__)
#define EVERYWHERE static inline __attribute__((always_inline))
#else
#define EVERYWHERE static inline
#endif

typedef struct {
    uint64_t salt, places, length, windows;
    uint64_t *cells;
} table_t;

/* What a shape has. The last one: compute one entry after the other, as processors without wide
 * lanes do. */
enum { SHAPE_SALT, SHAPE_PLACES, SHAPE_LENGTH, SHAPE_WINDOWS, SHAPE_NARROW, SHAPE_ROWS };

typedef struct {
    uint64_t value;
    uint32_t at[MAX_PLACES];
} entry_t;

#define FIELD_BITS 16
#define FIELD_MASK UINT64_C(0xFFFF)
#define FIELDS 4 /* of a word */

static inline uint64_t mixed(uint64_t value)
{
    value *= UINT64_C(0xBF58476D1CE4E5B9);
    value ^= value >> 29;
    value *= UINT64_C(0x94D049BB133111EB);
    return value ^ value >> 32;
}

/* A second word, of the check, the window, and a fifth place. */
static inline uint64_t mixed_again(uint64_t mix)
{
    return mix * UINT64_C(0x9E3779B97F4A7C15);
}

/* A number below `count` from a field of a word. */
static inline uint64_t below(uint64_t word, int field, uint64_t count)
{
    return (word >> field * FIELD_BITS & FIELD_MASK) * count >> FIELD_BITS;
}

enum { WINDOW_FIELD = 1, FIFTH_FIELD, CHECK_FIELD };

EVERYWHERE entry_t entry_of(table_t table, uint64_t short_id)
{
    entry_t entry = {0, {0}};
    uint64_t mix = mixed(short_id ^ table.salt), again = mixed_again(mix), start = 0;
    if (table.windows > 1)
        start = below(again, WINDOW_FIELD, table.windows) * table.length;
    for (uint64_t place = 0; place < MAX_PLACES && place < table.places;
         place++, start += table.length)
        entry.at[place] = (uint32_t)(start + (place < FIELDS
                                                  ? below(mix, (int)place, table.length)
                                                  : below(again, FIFTH_FIELD, table.length)));
    entry.value = short_id | again >> CHECK_FIELD * FIELD_BITS << SHORT_BITS;
    return entry;
}

/* Whether a shape is one, and the cells are as many as it says. */
static bool open_table(table_t *table, const uint8_t *shape, Py_ssize_t rows, uint8_t *cells,
                       Py_ssize_t count)
{
    if (rows != SHAPE_ROWS || (uintptr_t)cells % sizeof(uint64_t))
        return false;
    table->salt = (uint64_t)load(shape, SHAPE_SALT);
    table->places = (uint64_t)load(shape, SHAPE_PLACES);
    table->length = (uint64_t)load(shape, SHAPE_LENGTH);
    table->windows = (uint64_t)load(shape, SHAPE_WINDOWS);
    table->cells = (uint64_t *)cells;
    return table->places >= 1 && table->places <= MAX_PLACES && table->length >= 1 &&
           table->length < UINT32_MAX / 64 && table->windows >= 1 && table->windows < 1024 &&
           count < UINT32_MAX &&
           (table->windows + table->places - 1) * table->length == (uint64_t)count;
}

EVERYWHERE void toggle(table_t table, entry_t entry)
{
    for (uint64_t place = 0; place < MAX_PLACES && place < table.places; place++)
        table.cells[entry.at[place]] ^= entry.value;
}

/* With the numbers of places and windows as constants the compiler unrolls and skips. */
EVERYWHERE void toggle_all(table_t table, const uint8_t *shorts, Py_ssize_t count)
{
    for (Py_ssize_t row = 0; row < count; row++)
        toggle(table, entry_of(table, (uint64_t)load(shorts, row) & SHORT_MASK));
}

/* Call a function with the usual shapes as constants, and with any other as it is. */
#define BY_SHAPE(toggle_some, table, ...)              \
    if ((table).places == 4 && (table).windows == 1) { \
        (table).places = 4;                            \
        (table).windows = 1;                           \
        toggle_some(table, __VA_ARGS__);               \
    } else if ((table).places == 4) {                  \
        (table).places = 4;                            \
        toggle_some(table, __VA_ARGS__);               \
    } else if ((table).places == 5) {                  \
        (table).places = 5;                            \
        toggle_some(table, __VA_ARGS__);               \
    } else {                                           \
        toggle_some(table, __VA_ARGS__);               \
    }

#if defined(__x86_64__) && defined(__GNUC__)
#define HAS_LANES 1
#define WIDE __attribute__((target("avx512f,avx512dq,avx512vl")))
#define HALF_WIDE __attribute__((target("avx2")))
#define BLOCK 64 /* entries that are computed before any of them is toggled */

/* The same with four or eight entries side by side, and all fields of their words: the compiler
 * knows how by the target of the caller. A segment has fewer cells than a field has values. */
EVERYWHERE void toggle_blocks(table_t table, const uint8_t *shorts, Py_ssize_t count)
{
    uint64_t values[BLOCK], words[BLOCK], others[BLOCK];
    uint16_t at[BLOCK * FIELDS], length = (uint16_t)table.length;
    uint32_t starts[BLOCK], fifths[BLOCK];
    for (Py_ssize_t row = 0; row < count; row += BLOCK) {
        memcpy(values, shorts + row * TIME_BYTES, sizeof values);
        for (int i = 0; i < BLOCK; i++) {
            values[i] &= SHORT_MASK;
            words[i] = mixed(values[i] ^ table.salt);
            others[i] = mixed_again(words[i]);
            values[i] |= others[i] >> CHECK_FIELD * FIELD_BITS << SHORT_BITS;
        }
        memcpy(at, words, sizeof at);
        for (int i = 0; i < BLOCK * FIELDS; i++)
            at[i] = (uint16_t)((uint32_t)at[i] * length >> FIELD_BITS);
        for (int i = 0; i < BLOCK && table.windows > 1; i++)
            starts[i] = (uint32_t)(below(others[i], WINDOW_FIELD, table.windows) * table.length);
        for (int i = 0; i < BLOCK && table.places > FIELDS; i++)
            fifths[i] = (uint32_t)below(others[i], FIFTH_FIELD, table.length);
        for (int i = 0; i < BLOCK; i++) {
            uint64_t *cells = table.cells + (table.windows > 1 ? starts[i] : 0);
            for (int place = 0; place < FIELDS; place++)
                cells[(uint64_t)place * table.length + at[FIELDS * i + place]] ^= values[i];
            if (table.places > FIELDS)
                cells[FIELDS * table.length + fifths[i]] ^= values[i];
        }
    }
}

WIDE static void insert_blocks(table_t table, const uint8_t *shorts, Py_ssize_t count)
{
    BY_SHAPE(toggle_blocks, table, shorts, count)
}

HALF_WIDE static void insert_half_blocks(table_t table, const uint8_t *shorts, Py_ssize_t count)
{
    BY_SHAPE(toggle_blocks, table, shorts, count)
}

static bool has_lanes(void)
{
    return __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#else
#define HAS_LANES 0
#endif

/* Put short IDs in, and take those out that were in. */
static void insert_shorts(table_t table, const uint8_t *shorts, Py_ssize_t count, bool narrow)
{
    Py_ssize_t whole = 0;
#if HAS_LANES
    bool wide = !narrow && has_lanes();
    bool usual = table.places >= FIELDS && table.length <= FIELD_MASK;
    if (!narrow && usual && count >= BLOCK && (wide || __builtin_cpu_supports("avx2"))) {
        whole = count - count % BLOCK;
        (wide ? insert_blocks : insert_half_blocks)(table, shorts, whole);
    }
#else
    (void)narrow;
#endif
    shorts += whole * TIME_BYTES;
    BY_SHAPE(toggle_all, table, shorts, count - whole)
}

/* insert(shorts, shape, cells) -> None */
static PyObject *work_insert(const rows_t *rows, columns *held)
{
    (void)rows;
    table_t table;
    if (!open_table(&table, held->at[1], held->rows[1], held->at[2], held->rows[2]))
        return NULL;
    PyThreadState *state = let_go(held->rows[0] * HASH_BYTES);
    insert_shorts(table, held->at[0], held->rows[0], load(held->at[1], SHAPE_NARROW) != 0);
    take_back(state);
    return none_if(true);
}

CALL(insert, ALONE, READ(8), READ(8), WRITTEN(8))

/* ---- peeling ----------------------------------------------------------------------------- */

/* Whether a cell holds one short ID: its check agrees, and it belongs there. */
static inline bool pure(const table_t *table, uint64_t cell, entry_t *entry)
{
    uint64_t value = table->cells[cell];
    if (!value)
        return false;
    *entry = entry_of(*table, value & SHORT_MASK);
    if (entry->value != value)
        return false;
    bool belongs = false;
    for (uint64_t place = 0; place < MAX_PLACES && place < table->places; place++)
        belongs |= entry->at[place] == cell;
    return belongs;
}

/* Take one cell's short ID out, and those that become alone by it; how many there are then. */
static Py_ssize_t peel_from(const table_t *table, uint64_t cell, uint32_t *stack, uint8_t *out,
                            Py_ssize_t found, Py_ssize_t room)
{
    Py_ssize_t waiting = 0;
    stack[waiting++] = (uint32_t)cell;
    while (waiting) {
        entry_t entry;
        if (!pure(table, stack[--waiting], &entry))
            continue;
        if (found == room)
            return room + 1;
        store(out, found++, (int64_t)(entry.value & SHORT_MASK));
        toggle(*table, entry);
        for (uint64_t place = 0; place < MAX_PLACES && place < table->places; place++)
            stack[waiting++] = entry.at[place];
    }
    return found;
}

/* peel(cells, shape, shorts) -> how many were taken out, at most as many as there are rows for;
 * -1: there were more. */
static PyObject *work_peel(const rows_t *rows, columns *held)
{
    (void)rows;
    table_t table;
    if (!open_table(&table, held->at[1], held->rows[1], held->at[0], held->rows[0]))
        return NULL;
    Py_ssize_t room = held->rows[2], found = 0;
    uint32_t *stack = PyMem_Malloc(((size_t)room * MAX_PLACES + 2) * sizeof *stack);
    if (!stack)
        return PyErr_NoMemory();
    PyThreadState *state = let_go(held->rows[0] * HASH_BYTES);
    for (Py_ssize_t cell = 0; cell < held->rows[0] && found <= room; cell++)
        if (table.cells[cell])
            found = peel_from(&table, (uint64_t)cell, stack, held->at[2], found, room);
    take_back(state);
    PyMem_Free(stack);
    return PyLong_FromSsize_t(found > room ? -1 : found);
}

CALL(peel, ALONE, WRITTEN(8), READ(8), WRITTEN(8))
