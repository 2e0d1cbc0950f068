/* What the parts of the kernel share: columns handed in from Python, and small helpers.
 *
 * The kernel does in compiled code what arrays do in `reconcile`, and nothing else: it has no
 * state, and it reads and writes only columns whose sizes it has checked. A function that meets
 * anything unusual says so and leaves the case to Python. Only the compact mode has no other form.
 */

#ifndef RECONCILE_KERNEL_H
#define RECONCILE_KERNEL_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Raised with every change of this directory; `reconcile.kernel` takes no other. */
#define KERNEL_VERSION 30

#define HASH_BYTES 32
#define TIME_BYTES 8
#define MAX_VARINT_BYTES 9
#define MAX_TIME INT64_MAX

enum kind { SKIP = 0, FINGERPRINT = 1, ITEM_SET = 2 };

/* From about so many bytes on, other threads may run meanwhile. */
#define LONG_WORK_BYTES 65536

typedef struct {
    uint64_t words[4];
} hash_t;

/* ---- columns ---------------------------------------------------------------------------- */

#define MAX_COLUMNS 16

typedef struct {
    Py_ssize_t row_bytes;
    bool written;
} column_kind;

#define READ(bytes) {(bytes), false}
#define WRITTEN(bytes) {(bytes), true}

/* Arguments that are columns, held until `release`. */
typedef struct {
    int count;
    uint8_t *at[MAX_COLUMNS];
    Py_ssize_t rows[MAX_COLUMNS];
    Py_buffer views[MAX_COLUMNS];
} columns;

/* 0, or -1 with an exception: an argument is no buffer of whole rows, or cannot be written. */
int hold(columns *held, PyObject *const *arguments, const column_kind *kinds, int count);
void release(columns *held);

/* -1 with an exception unless `given` is `expected`. */
int check_arguments(const char *name, Py_ssize_t given, Py_ssize_t expected);

/* -1 with an exception: the columns do not fit each other. */
int misfit(const char *name);

/* What most functions do: hold columns, behind an index or alone (then `rows` is NULL), and have
 * `work` done with them. NULL from it without an exception: they do not fit each other. */
typedef struct rows rows_t;
typedef PyObject *work(const rows_t *rows, columns *held);

PyObject *call(const char *name, PyObject *const *arguments, Py_ssize_t given, bool indexed,
               const column_kind *kinds, int count, work *done);

/* What Python sees of `work_<name>`; the rest says which columns it takes. */
#define CALL(name, indexed, ...)                                                                  \
    PyObject *kernel_##name(PyObject *module, PyObject *const *arguments, Py_ssize_t given)       \
    {                                                                                             \
        (void)module;                                                                             \
        static const column_kind kinds[] = {__VA_ARGS__};                                         \
        return call(#name, arguments, given, indexed, kinds, sizeof kinds / sizeof *kinds,        \
                    work_##name);                                                                 \
    }

enum { ALONE, INDEXED };

/* None, or NULL. */
static inline PyObject *none_if(bool fits)
{
    return fits ? Py_BuildValue("") : NULL;
}

/* 0, or -1 with an exception: it is no number from 0 to PY_SSIZE_T_MAX. */
int size_argument(PyObject *argument, Py_ssize_t *value);

/* Columns come from arrays that may begin anywhere: no load or store relies on alignment. */
static inline int64_t load(const uint8_t *column, Py_ssize_t row)
{
    int64_t value;
    memcpy(&value, column + row * TIME_BYTES, sizeof value);
    return value;
}

static inline void store(uint8_t *column, Py_ssize_t row, int64_t value)
{
    memcpy(column + row * TIME_BYTES, &value, sizeof value);
}

/* A word of eight bytes, the lowest one first. */
static inline uint64_t word_at(const uint8_t *bytes)
{
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

static inline hash_t load_hash(const uint8_t *column, Py_ssize_t row)
{
    hash_t hash;
    memcpy(&hash, column + row * HASH_BYTES, sizeof hash);
    return hash;
}

static inline void store_hash(uint8_t *column, Py_ssize_t row, hash_t hash)
{
    memcpy(column + row * HASH_BYTES, &hash, sizeof hash);
}

static inline hash_t xored(hash_t left, hash_t right)
{
    for (int word = 0; word < 4; word++)
        left.words[word] ^= right.words[word];
    return left;
}

static inline bool is_zero(hash_t hash)
{
    return !(hash.words[0] | hash.words[1] | hash.words[2] | hash.words[3]);
}

static inline bool same_hash(hash_t left, hash_t right)
{
    return is_zero(xored(left, right));
}

/* Ask for memory that will be read soon: rows of an index lie far apart. */
static inline void expect(const uint8_t *column, Py_ssize_t row, Py_ssize_t row_bytes)
{
#if defined(__GNUC__)
    __builtin_prefetch(column + row * row_bytes);
#else
    (void)column, (void)row, (void)row_bytes;
#endif
}

static inline uint8_t *put_varint(uint8_t *at, uint64_t value)
{
    while (value >= 0x80) {
        *at++ = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    *at++ = (uint8_t)value;
    return at;
}

/* ---- threads ---------------------------------------------------------------------------- */

/* Let other threads run during long work; what it returns goes to `take_back`. */
static inline PyThreadState *let_go(Py_ssize_t bytes)
{
    return bytes >= LONG_WORK_BYTES ? PyEval_SaveThread() : NULL;
}

static inline void take_back(PyThreadState *state)
{
    if (state)
        PyEval_RestoreThread(state);
}

/* ---- what Python sees -------------------------------------------------------------------- */

typedef PyObject *function(PyObject *, PyObject *const *, Py_ssize_t);

function kernel_parse, kernel_reply, kernel_encode;
function kernel_probe;
function kernel_balance, kernel_cut, kernel_compare;
function kernel_fill, kernel_sift, kernel_tally, kernel_shorten;
function kernel_survey_slices;
function kernel_insert, kernel_peel, kernel_find, kernel_gather;
function kernel_lattice;

#endif
