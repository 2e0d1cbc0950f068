/* Frames of the compact mode that have no slices, as columns: what an answer begins with, a table,
 * and what was found (docs/spec/compact.md).
 *
 * None stands for a frame that is malformed or beyond a limit.
 */

#include "reader.h"
#include "short.h"

#define SHORT_BYTES (SHORT_BITS / 8)
#define CELL_BYTES 8
#define TABLE_KIND 7
#define MOST_CELLS 1048576
#define MOST_WINDOWS 128
#define MOST_PLACES 5
#define SIFTED_BYTES 4

/* What a table's first byte says: which slices it is about, and what is beside it. */
enum { ALL, CHOSEN, EXPLAINED, LISTED, BY_PRINTS };

static bool take_byte(reader_t *from, int *value)
{
    if (!left(from))
        return false;
    *value = *from->at++;
    return true;
}

/* So many bits, each as a byte, and how many are set; NULL: they are cut off, or one stands for
 * nothing, or with an exception there is no memory. */
static PyObject *take_bits(reader_t *from, Py_ssize_t count, Py_ssize_t *set)
{
    Py_ssize_t bytes = count / 8 + (count % 8 != 0);
    if (bytes > left(from) || (count % 8 && from->at[bytes - 1] >> count % 8))
        return NULL;
    PyObject *found = PyBytes_FromStringAndSize(NULL, count);
    uint8_t *to = found ? (uint8_t *)PyBytes_AsString(found) : NULL;
    *set = 0;
    for (Py_ssize_t row = 0; to && row < count; row++)
        *set += to[row] = from->at[row / 8] >> row % 8 & 1;
    from->at += bytes;
    return found;
}

/* So many numbers of some bytes each, as words; NULL: they are cut off, or do not ascend although
 * they must, or with an exception there is no memory. */
static PyObject *take_words(reader_t *from, int64_t count, Py_ssize_t size, bool ascend)
{
    if (count > left(from) / size)
        return NULL;
    PyObject *found = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)count * 8);
    uint64_t *to = found ? (uint64_t *)PyBytes_AsString(found) : NULL;
    uint64_t mask = UINT64_MAX >> (64 - 8 * size);
    bool fits = true;
    for (Py_ssize_t row = 0; to && row < count; row++, from->at += size) {
        to[row] = low_bytes(from->at, size, left(from)) & mask;
        fits &= !ascend || !row || to[row - 1] < to[row];
    }
    if (fits)
        return found;
    Py_DECREF(found);
    return NULL;
}

/* The answer of a function whose parts are there, or are not; an exception, or None: it is malformed. */
static PyObject *answer(PyObject *found)
{
    return found || PyErr_Occurred() ? found : Py_BuildValue("");
}

/* From a frame behind its first byte; -1 with an exception. */
static int open_frame(reader_t *from, PyObject *data)
{
    char *begin;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(data, &begin, &size) < 0)
        return -1;
    from->at = (const uint8_t *)begin + (size > 0);
    from->end = (const uint8_t *)begin + size;
    return 0;
}

/* read_head(data, slices)
 *   -> (XOR, count, which slices differ, bytes of prints, bytes read), or None: it is malformed
 *   What an answer begins with.
 */
PyObject *kernel_read_head(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    reader_t from = {0};
    Py_ssize_t slices, set;
    if (check_arguments("read_head", given, 2) < 0 || open_frame(&from, arguments[0]) < 0 ||
        size_argument(arguments[1], &slices) < 0)
        return NULL;
    const uint8_t *xor = from.at;
    int64_t count;
    int print_bytes;
    PyObject *differs = NULL, *found = NULL;
    if (left(&from) >= HASH_BYTES) {
        from.at += HASH_BYTES;
        if (read_varint(&from, &count))
            differs = take_bits(&from, slices, &set);
    }
    if (differs && take_byte(&from, &print_bytes) && print_bytes <= SIFTED_BYTES)
        found = Py_BuildValue("y#LOin", (const char *)xor, (Py_ssize_t)HASH_BYTES,
                              (long long)count, differs, print_bytes,
                              1 + (Py_ssize_t)(from.at - xor));
    Py_XDECREF(differs);
    return answer(found);
}

/* A table's shape and cells, with what is beside it. */
typedef struct {
    PyObject *differs, *explained, *told, *listed, *named; /* NULL: nothing is said of it */
    int flag, places;
    int64_t windows, length;
    PyObject *cells;
} filled_t;

/* What is not in a table; false: it is unusual, or there is an exception. */
static bool read_beside(reader_t *from, Py_ssize_t slices, filled_t *to)
{
    Py_ssize_t chosen, explained, listed;
    int64_t named;
    if (!take_byte(from, &to->flag) || to->flag > BY_PRINTS)
        return false;
    if (to->flag == ALL)
        return true;
    to->differs = take_bits(from, slices, &chosen);
    if (to->flag == CHOSEN || !to->differs)
        return to->differs;
    to->explained = take_bits(from, chosen, &explained);
    to->told = to->explained ? take_words(from, explained, SHORT_BYTES, false) : NULL;
    if (to->flag != LISTED || !to->told)
        return to->told;
    to->listed = take_bits(from, chosen - explained, &listed);
    if (!to->listed || !read_varint(from, &named) || named > MOST_CELLS)
        return false;
    to->named = take_words(from, named, SHORT_BYTES, true);
    return to->named;
}

static bool read_cells(reader_t *from, filled_t *to)
{
    if (!take_byte(from, &to->places) || to->places < 1 || to->places > MOST_PLACES ||
        !read_varint(from, &to->windows) || to->windows < 1 || to->windows > MOST_WINDOWS ||
        !read_varint(from, &to->length) || to->length < 1 || to->length > MOST_CELLS)
        return false;
    int64_t cells = (to->windows + to->places - 1) * to->length;
    if (cells > MOST_CELLS || cells * CELL_BYTES != left(from))
        return false;
    to->cells = PyByteArray_FromStringAndSize((const char *)from->at, left(from));
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    uint8_t *words = to->cells ? (uint8_t *)PyByteArray_AsString(to->cells) : NULL;
    for (Py_ssize_t cell = 0; words && cell < cells; cell++)
        store(words, cell, (int64_t)word_at(words + cell * CELL_BYTES));
#endif
    return to->cells;
}

static PyObject *or_none(PyObject *part)
{
    return part ? part : Py_None;
}

/* read_table(data, slices)
 *   -> (which slices differ, places, length, windows, cells, which are explained, what is told of
 *   them, which are listed, what is named of them, whether prints explain), or None: it is malformed
 *   Flags are a byte each, short IDs and cells a word; cells can be written. None: nothing is said.
 */
PyObject *kernel_read_table(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    reader_t from = {0};
    Py_ssize_t slices;
    if (check_arguments("read_table", given, 2) < 0 || open_frame(&from, arguments[0]) < 0 ||
        size_argument(arguments[1], &slices) < 0)
        return NULL;
    filled_t to = {0};
    PyObject *found = NULL;
    if (read_beside(&from, slices, &to) && read_cells(&from, &to))
        found = Py_BuildValue("OiLLOOOOOi", or_none(to.differs), to.places, (long long)to.length,
                              (long long)to.windows, to.cells, or_none(to.explained),
                              or_none(to.told), or_none(to.listed), or_none(to.named),
                              to.flag == BY_PRINTS);
    PyObject *parts[] = {to.differs, to.explained, to.told, to.listed, to.named, to.cells};
    for (size_t part = 0; part < sizeof parts / sizeof *parts; part++)
        Py_XDECREF(parts[part]);
    return answer(found);
}

/* read_result(data) -> (XOR, wanted, bytes of these, offered), or None: it is malformed
 *   Short IDs are a word each.
 */
PyObject *kernel_read_result(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    reader_t from = {0};
    if (check_arguments("read_result", given, 1) < 0 || open_frame(&from, arguments[0]) < 0)
        return NULL;
    const uint8_t *xor = from.at;
    int64_t wanted, offered;
    int size;
    PyObject *columns[2] = {NULL, NULL}, *found = NULL;
    if (left(&from) >= HASH_BYTES) {
        from.at += HASH_BYTES;
        if (read_varint(&from, &wanted) && read_varint(&from, &offered) && wanted <= MOST_CELLS &&
            offered <= MOST_CELLS - wanted && take_byte(&from, &size) && size >= 1 &&
            size <= SHORT_BYTES && (columns[0] = take_words(&from, wanted, size, true)))
            columns[1] = take_words(&from, offered, SHORT_BYTES, true);
    }
    if (columns[1] && !left(&from))
        found = Py_BuildValue("y#OiO", (const char *)xor, (Py_ssize_t)HASH_BYTES, columns[0], size,
                              columns[1]);
    Py_XDECREF(columns[0]);
    Py_XDECREF(columns[1]);
    return answer(found);
}

/* ---- writing ------------------------------------------------------------------------------- */

static uint8_t *put_bits(uint8_t *at, const uint8_t *flags, Py_ssize_t count)
{
    for (Py_ssize_t row = 0; row < count; row++) {
        if (row % 8 == 0)
            at[row / 8] = 0;
        at[row / 8] |= (uint8_t)((flags[row] != 0) << row % 8);
    }
    return at + count / 8 + (count % 8 != 0);
}

/* There must be room for a whole word behind the last one. */
static uint8_t *put_words(uint8_t *at, const uint8_t *words, Py_ssize_t count, Py_ssize_t size)
{
    for (Py_ssize_t row = 0; row < count; row++, at += size) {
        uint64_t word = word_at(words + row * 8);
        memcpy(at, &word, sizeof word);
    }
    return at;
}

enum { W_NUMBERS, W_DIFFERS, W_EXPLAINED, W_TOLD, W_LISTED, W_NAMED, W_CELLS, W_COLUMNS };
enum { T_FLAG, T_PLACES, T_WINDOWS, T_LENGTH, T_NUMBERS };

static uint8_t *put_table(uint8_t *at, const columns *held)
{
    int64_t numbers[T_NUMBERS];
    for (int number = 0; number < T_NUMBERS; number++)
        numbers[number] = load(held->at[W_NUMBERS], number);
    *at++ = TABLE_KIND;
    *at++ = (uint8_t)numbers[T_FLAG];
    at = put_bits(at, held->at[W_DIFFERS], held->rows[W_DIFFERS]);
    at = put_bits(at, held->at[W_EXPLAINED], held->rows[W_EXPLAINED]);
    at = put_words(at, held->at[W_TOLD], held->rows[W_TOLD], SHORT_BYTES);
    if (numbers[T_FLAG] == LISTED) {
        at = put_bits(at, held->at[W_LISTED], held->rows[W_LISTED]);
        at = put_varint(at, (uint64_t)held->rows[W_NAMED]);
        at = put_words(at, held->at[W_NAMED], held->rows[W_NAMED], SHORT_BYTES);
    }
    *at++ = (uint8_t)numbers[T_PLACES];
    at = put_varint(at, (uint64_t)numbers[T_WINDOWS]);
    at = put_varint(at, (uint64_t)numbers[T_LENGTH]);
    return put_words(at, held->at[W_CELLS], held->rows[W_CELLS], CELL_BYTES);
}

/* write_table(numbers, which slices differ, explained, told, listed, named, cells) -> a frame
 *   The numbers are the first byte behind the kind, places, windows, and length.
 */
PyObject *kernel_write_table(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    static const column_kind kinds[] = {READ(8), READ(1), READ(1), READ(8),
                                        READ(1), READ(8), READ(8)};
    columns held;
    if (check_arguments("write_table", given, W_COLUMNS) < 0 ||
        hold(&held, arguments, kinds, W_COLUMNS) < 0)
        return NULL;
    Py_ssize_t bytes = 64;
    for (int column = W_DIFFERS; column < W_COLUMNS; column++)
        bytes += held.rows[column] * kinds[column].row_bytes;
    PyObject *found = NULL;
    uint8_t *frame = PyMem_Malloc((size_t)bytes);
    if (!frame)
        PyErr_NoMemory();
    else if (held.rows[W_NUMBERS] != T_NUMBERS)
        misfit("write_table");
    else
        found = PyBytes_FromStringAndSize((const char *)frame, put_table(frame, &held) - frame);
    PyMem_Free(frame);
    release(&held);
    return found;
}

/* pack(words, size) -> the lower bytes of each, one after the other. */
PyObject *kernel_pack(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    static const column_kind kinds[] = {READ(8)};
    columns held;
    Py_ssize_t size;
    if (check_arguments("pack", given, 2) < 0 || size_argument(arguments[1], &size) < 0 ||
        hold(&held, arguments, kinds, 1) < 0)
        return NULL;
    PyObject *found = NULL;
    if (size > (Py_ssize_t)sizeof(uint64_t))
        misfit("pack");
    else
        found = PyBytes_FromStringAndSize(NULL, held.rows[0] * size);
    uint8_t *to = found ? (uint8_t *)PyBytes_AsString(found) : NULL;
    const uint8_t *end = to + held.rows[0] * size;
    for (Py_ssize_t row = 0; to && row < held.rows[0]; row++, to += size) {
        uint64_t word = word_at(held.at[0] + row * 8);
        memcpy(to, &word, end - to < (Py_ssize_t)sizeof word ? (size_t)size : sizeof word);
    }
    release(&held);
    return found;
}
