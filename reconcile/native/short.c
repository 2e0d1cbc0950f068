/* The compact mode's short IDs and slices of an index (docs/compact.md).
 *
 * A short ID is a linear function of a hash under the session's key, in GF(2^64): the XOR of some
 * hashes has the XOR of their short IDs. So a slice's fingerprint is one multiplication, whatever
 * is in it.
 */

#include "rows.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define HAS_CLMUL 1
#include <immintrin.h>
#else
#define HAS_CLMUL 0
#endif

#define KEY_WORDS 4
#define KEY_ROWS (KEY_WORDS + 1)
/* The last one says how: the best that the processor has, without its instruction, or with the one
 * that multiplies once. */
enum { BY_BEST, BY_TABLES, BY_CLMUL };
#define SHORT_MASK ((UINT64_C(1) << 48) - 1)
#define POLYNOMIAL UINT64_C(0x1B) /* x^64 = x^4 + x^3 + x + 1 */
#define SAMPLE 4                  /* IDs from one kept running balance to the next */

static inline uint64_t little(const uint8_t *bytes)
{
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

typedef struct hasher hasher_t;

struct hasher {
    uint64_t key[KEY_WORDS];
    uint64_t (*of_row)(const hasher_t *, const uint8_t *row);
    void (*of_rows)(const hasher_t *, const uint8_t *prefix, Py_ssize_t count, uint64_t *out);
    uint64_t (*tables)[256]; /* of every byte's products; NULL with the instruction */
};

/* ---- by tables --------------------------------------------------------------------------- */

static uint64_t times_x(uint64_t value)
{
    return value << 1 ^ ((value >> 63) ? POLYNOMIAL : 0);
}

static bool fill_tables(hasher_t *hasher)
{
    hasher->tables = PyMem_Malloc(HASH_BYTES * sizeof *hasher->tables);
    if (!hasher->tables)
        return false;
    for (int byte = 0; byte < HASH_BYTES; byte++) {
        uint64_t *table = hasher->tables[byte];
        uint64_t power = byte % 8 ? times_x(hasher->tables[byte - 1][128])
                                  : hasher->key[byte / 8];
        table[0] = 0;
        for (int bit = 0; bit < 8; bit++, power = times_x(power))
            for (int low = 0; low < 1 << bit; low++)
                table[(1 << bit) + low] = table[low] ^ power;
    }
    return true;
}

static inline uint64_t by_tables(const hasher_t *hasher, const uint8_t *row)
{
    uint64_t found = 0;
    for (int byte = 0; byte < HASH_BYTES; byte++)
        found ^= hasher->tables[byte][row[byte]];
    return found;
}

static uint64_t row_by_tables(const hasher_t *hasher, const uint8_t *row)
{
    return by_tables(hasher, row);
}

static void rows_by_tables(const hasher_t *hasher, const uint8_t *prefix, Py_ssize_t count,
                           uint64_t *out)
{
    uint64_t before = by_tables(hasher, prefix);
    for (Py_ssize_t row = 0; row < count; row++) {
        uint64_t after = by_tables(hasher, prefix + (row + 1) * HASH_BYTES);
        out[row] = (before ^ after) & SHORT_MASK;
        before = after;
    }
}

/* ---- by the processor's instruction ------------------------------------------------------- */

#if HAS_CLMUL
#define CLMUL __attribute__((target("pclmul")))

CLMUL static inline uint64_t product(__m128i low_key, __m128i high_key, __m128i low, __m128i high)
{
    __m128i sum = _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(low, low_key, 0x00),
                                              _mm_clmulepi64_si128(low, low_key, 0x11)),
                                _mm_xor_si128(_mm_clmulepi64_si128(high, high_key, 0x00),
                                              _mm_clmulepi64_si128(high, high_key, 0x11)));
    __m128i folded = _mm_clmulepi64_si128(sum, _mm_cvtsi64_si128(POLYNOMIAL), 0x01);
    __m128i again = _mm_clmulepi64_si128(folded, _mm_cvtsi64_si128(POLYNOMIAL), 0x01);
    return (uint64_t)_mm_cvtsi128_si64(_mm_xor_si128(sum, _mm_xor_si128(folded, again)));
}

CLMUL static uint64_t row_by_clmul(const hasher_t *hasher, const uint8_t *row)
{
    const __m128i *key = (const __m128i *)hasher->key, *words = (const __m128i *)row;
    return product(_mm_loadu_si128(key), _mm_loadu_si128(key + 1), _mm_loadu_si128(words),
                   _mm_loadu_si128(words + 1));
}

CLMUL static void rows_by_clmul(const hasher_t *hasher, const uint8_t *prefix, Py_ssize_t count,
                                uint64_t *out)
{
    const __m128i *key = (const __m128i *)hasher->key, *words = (const __m128i *)prefix;
    __m128i low_key = _mm_loadu_si128(key), high_key = _mm_loadu_si128(key + 1);
    __m128i low = _mm_loadu_si128(words), high = _mm_loadu_si128(words + 1);
    for (Py_ssize_t row = 0; row < count; row++) {
        words += 2;
        __m128i next_low = _mm_loadu_si128(words), next_high = _mm_loadu_si128(words + 1);
        out[row] = product(low_key, high_key, _mm_xor_si128(low, next_low),
                           _mm_xor_si128(high, next_high)) & SHORT_MASK;
        low = next_low;
        high = next_high;
    }
}

/* Four hashes at a time: the XOR of two by two rows is two hashes, each in two lanes of 128 bits. */
#define WIDE __attribute__((target("avx512f,vpclmulqdq,pclmul")))
#define MANY 4

WIDE static void rows_by_lanes(const hasher_t *hasher, const uint8_t *prefix, Py_ssize_t count,
                               uint64_t *out)
{
    const __m512i key = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)hasher->key));
    const __m512i fold = _mm512_set1_epi64(POLYNOMIAL), mask = _mm512_set1_epi64(SHORT_MASK);
    const __m512i lower = _mm512_set_epi64(6, 4, 2, 0, 6, 4, 2, 0);
    Py_ssize_t whole = count - count % MANY;
    for (Py_ssize_t row = 0; row < whole; row += MANY) {
        const uint8_t *at = prefix + row * HASH_BYTES;
        __m512i sums[2];
        for (int half = 0; half < 2; half++, at += 2 * HASH_BYTES) {
            __m512i hashes = _mm512_xor_si512(_mm512_loadu_si512(at),
                                              _mm512_loadu_si512(at + HASH_BYTES));
            sums[half] = _mm512_xor_si512(_mm512_clmulepi64_epi128(hashes, key, 0x00),
                                          _mm512_clmulepi64_epi128(hashes, key, 0x11));
        }
        __m512i sum = _mm512_xor_si512(_mm512_shuffle_i64x2(sums[0], sums[1], 0x88),
                                       _mm512_shuffle_i64x2(sums[0], sums[1], 0xDD));
        __m512i folded = _mm512_clmulepi64_epi128(sum, fold, 0x01);
        __m512i again = _mm512_clmulepi64_epi128(folded, fold, 0x01);
        sum = _mm512_and_si512(_mm512_xor_si512(sum, _mm512_xor_si512(folded, again)), mask);
        _mm256_storeu_si256((__m256i *)(out + row),
                            _mm512_castsi512_si256(_mm512_permutexvar_epi64(lower, sum)));
    }
    rows_by_clmul(hasher, prefix + whole * HASH_BYTES, count - whole, out + whole);
}
#endif

static bool open_hasher(hasher_t *hasher, const uint8_t *key)
{
    for (int word = 0; word < KEY_WORDS; word++)
        hasher->key[word] = little(key + word * 8);
    hasher->tables = NULL;
#if HAS_CLMUL
    hasher->of_row = row_by_clmul;
    hasher->of_rows = rows_by_clmul;
    int64_t how = load(key, KEY_WORDS);
    if (how == BY_BEST && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("vpclmulqdq"))
        hasher->of_rows = rows_by_lanes;
    if (how != BY_TABLES && __builtin_cpu_supports("pclmul"))
        return true;
#endif
    hasher->of_row = row_by_tables;
    hasher->of_rows = rows_by_tables;
    if (fill_tables(hasher))
        return true;
    PyErr_NoMemory();
    return false;
}

static void close_hasher(hasher_t *hasher)
{
    PyMem_Free(hasher->tables);
}

/* ---- balances ------------------------------------------------------------------------------ */

/* +1 or -1 by the lowest bit of the first byte of the hash behind a row. */
static inline int balance_at(const uint8_t *prefix, Py_ssize_t row)
{
    return 1 - 2 * ((prefix[row * HASH_BYTES] ^ prefix[(row + 1) * HASH_BYTES]) & 1);
}

/* balance(prefix, samples) -> None; sample i is the balance of the first 4 i IDs. */
PyObject *kernel_balance(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    static const column_kind kinds[] = {READ(32), WRITTEN(4)};
    columns held;
    if (check_arguments("balance", given, 2) < 0 || hold(&held, arguments, kinds, 2) < 0)
        return NULL;
    Py_ssize_t count = held.rows[0] - 1;
    bool fits = count >= 0 && held.rows[1] == count / SAMPLE + 1;
    PyThreadState *state = let_go(fits ? count * HASH_BYTES : 0);
    int32_t sum = 0;
    for (Py_ssize_t row = 0; fits && row <= count; row++) {
        if (row % SAMPLE == 0)
            memcpy(held.at[1] + row / SAMPLE * 4, &sum, sizeof sum);
        if (row < count)
            sum += balance_at(held.at[0], row);
    }
    take_back(state);
    release(&held);
    if (!fits) {
        misfit("balance");
        return NULL;
    }
    Py_RETURN_NONE;
}

/* ---- slices -------------------------------------------------------------------------------- */

enum { C_TIMES, C_LIMITS, C_BASES, C_KEY, C_PLACES, C_PRINTS, C_BALANCES };

typedef struct {
    const rows_t *rows;
    const columns *held;
    const Py_buffer *samples; /* of each chunk */
    hasher_t hasher;
} slicer_t;

static int64_t balance_to(const slicer_t *slicer, Py_ssize_t chunk, Py_ssize_t place)
{
    int32_t sample;
    memcpy(&sample, (const uint8_t *)slicer->samples[chunk].buf + place / SAMPLE * 4, 4);
    int64_t sum = load(slicer->held->at[C_BASES], chunk) + sample;
    for (Py_ssize_t row = place / SAMPLE * SAMPLE; row < place; row++)
        sum += balance_at(slicer->rows->chunks[chunk].prefix, row);
    return sum;
}

/* Where bounds are, within limits; false: they do not ascend. Rows that will be read are asked for. */
static bool place_all(const slicer_t *slicer)
{
    const rows_t *rows = slicer->rows;
    const columns *held = slicer->held;
    finger_t finger = {0, 0, 1};
    int64_t low = load(held->at[C_LIMITS], 0), high = load(held->at[C_LIMITS], 1), before = 0;
    for (Py_ssize_t row = 0; row < held->rows[C_TIMES]; row++) {
        int64_t time = load(held->at[C_TIMES], row);
        if (time < before)
            return false;
        before = time;
        int64_t place = time == MAX_TIME ? rows->length : rank(rows, &finger, time);
        place = place < low ? low : place > high ? high : place;
        expect_running(rows, place);
        if (rows->count == 1)
            expect(slicer->samples[0].buf, (Py_ssize_t)place / SAMPLE, sizeof(int32_t));
        store(held->at[C_PLACES], row, place);
    }
    return true;
}

/* The running print and balance up to every bound. */
static bool cut_all(const slicer_t *slicer)
{
    const rows_t *rows = slicer->rows;
    const columns *held = slicer->held;
    Py_ssize_t chunk = 0;
    if (!place_all(slicer))
        return false;
    memset(held->at[C_PRINTS], 0, (size_t)held->rows[C_PRINTS] * sizeof(uint64_t));
    memset(held->at[C_BALANCES], 0, (size_t)held->rows[C_BALANCES] * sizeof(int64_t));
    for (Py_ssize_t row = 0; rows->count && row < held->rows[C_TIMES]; row++) {
        if (row + AHEAD < held->rows[C_TIMES])
            expect_running(rows, load(held->at[C_PLACES], row + AHEAD));
        Py_ssize_t place = (Py_ssize_t)load(held->at[C_PLACES], row);
        hash_t prefix = running(rows, &chunk, place);
        uint64_t print = slicer->hasher.of_row(&slicer->hasher, (const uint8_t *)&prefix);
        store(held->at[C_PRINTS], row, (int64_t)(print & SHORT_MASK));
        Py_ssize_t own = place - (Py_ssize_t)load(rows->starts, chunk);
        store(held->at[C_BALANCES], row, balance_to(slicer, chunk, own));
    }
    return true;
}

static bool slices_fit(const slicer_t *slicer, Py_ssize_t chunks)
{
    const columns *held = slicer->held;
    for (Py_ssize_t chunk = 0; chunk < chunks; chunk++)
        if (slicer->samples[chunk].len != (size_of(slicer->rows, chunk) / SAMPLE + 1) * 4)
            return false;
    return chunks == slicer->rows->count && held->rows[C_LIMITS] == 2 &&
           held->rows[C_BASES] == chunks && held->rows[C_KEY] == KEY_ROWS &&
           held->rows[C_PLACES] == held->rows[C_TIMES] &&
           held->rows[C_PRINTS] == held->rows[C_TIMES] &&
           held->rows[C_BALANCES] == held->rows[C_TIMES] &&
           load(held->at[C_LIMITS], 0) >= 0 &&
           load(held->at[C_LIMITS], 1) >= load(held->at[C_LIMITS], 0) &&
           load(held->at[C_LIMITS], 1) <= slicer->rows->length;
}

static bool cut_columns(slicer_t *slicer, Py_ssize_t chunks)
{
    if (!slices_fit(slicer, chunks) || !open_hasher(&slicer->hasher, slicer->held->at[C_KEY]))
        return false;
    PyThreadState *state = let_go(slicer->held->rows[C_TIMES] * HASH_BYTES);
    bool fits = cut_all(slicer);
    take_back(state);
    close_hasher(&slicer->hasher);
    return fits;
}

static Py_ssize_t open_samples(Py_buffer *samples, PyObject *tuple, Py_ssize_t count)
{
    for (Py_ssize_t done = 0; done < count; done++)
        if (PyObject_GetBuffer(PyTuple_GetItem(tuple, done), &samples[done], PyBUF_SIMPLE) < 0)
            return done;
    return count;
}

/* cuts(index, samples, times, limits, bases, key, places, prints, balances) -> None
 *   Of ascending times: their places, kept within limits, and what runs up to these: short IDs
 *   and balance. The last time there is stands for the end.
 */
PyObject *kernel_cuts(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    static const column_kind kinds[] = {READ(8),    READ(8),    READ(8),   READ(8),
                                        WRITTEN(8), WRITTEN(8), WRITTEN(8)};
    rows_t rows;
    columns held;
    if (check_arguments("cuts", given, 9) < 0 || open_rows(&rows, arguments[0]) < 0)
        return NULL;
    Py_ssize_t chunks = PyTuple_Check(arguments[1]) ? PyTuple_Size(arguments[1]) : 0, opened = 0;
    Py_buffer *samples = PyMem_Calloc((size_t)chunks + 1, sizeof *samples);
    bool fits = false;
    if (!samples)
        PyErr_NoMemory();
    else if ((opened = open_samples(samples, arguments[1], chunks)) == chunks &&
             hold(&held, arguments + 2, kinds, 7) == 0) {
        slicer_t slicer = {.rows = &rows, .held = &held, .samples = samples};
        fits = cut_columns(&slicer, chunks);
        release(&held);
    }
    while (opened)
        PyBuffer_Release(&samples[--opened]);
    PyMem_Free(samples);
    close_rows(&rows);
    if (fits)
        Py_RETURN_NONE;
    if (!PyErr_Occurred())
        misfit("cuts");
    return NULL;
}

/* ---- short IDs ------------------------------------------------------------------------------ */

static bool shorten_all(const rows_t *rows, const columns *held, const hasher_t *hasher)
{
    uint64_t *out = (uint64_t *)held->at[3];
    Py_ssize_t chunk = 0, left = held->rows[3];
    int64_t before = 0;
    for (Py_ssize_t row = 0; row < held->rows[0]; row++) {
        int64_t from = load(held->at[0], row), to = load(held->at[1], row);
        if (from < before || to < from || to > rows->length || to - from > left)
            return false;
        before = to;
        left -= (Py_ssize_t)(to - from);
        while (from < to) {
            go_on(rows, &chunk, (Py_ssize_t)from);
            int64_t start = load(rows->starts, chunk), end = load(rows->starts, chunk + 1);
            Py_ssize_t count = (Py_ssize_t)((to < end ? to : end) - from);
            hasher->of_rows(hasher, rows->chunks[chunk].prefix + (from - start) * HASH_BYTES,
                            count, out);
            out += count;
            from += count;
        }
    }
    return !left;
}

/* shorts(index, low, high, key, shorts) -> None; of the IDs in ascending intervals of places. */
PyObject *kernel_shorts(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    static const column_kind kinds[] = {READ(8), READ(8), READ(8), WRITTEN(8)};
    rows_t rows;
    columns held;
    hasher_t hasher;
    if (check_arguments("shorts", given, 5) < 0 || open_rows(&rows, arguments[0]) < 0)
        return NULL;
    if (hold(&held, arguments + 1, kinds, 4) < 0) {
        close_rows(&rows);
        return NULL;
    }
    bool fits = held.rows[0] == held.rows[1] && held.rows[2] == KEY_ROWS &&
                (uintptr_t)held.at[3] % sizeof(uint64_t) == 0;
    if (fits && (fits = open_hasher(&hasher, held.at[2]))) {
        PyThreadState *state = let_go(held.rows[3] * HASH_BYTES);
        fits = shorten_all(&rows, &held, &hasher);
        take_back(state);
        close_hasher(&hasher);
    }
    release(&held);
    close_rows(&rows);
    if (fits)
        Py_RETURN_NONE;
    if (!PyErr_Occurred())
        misfit("shorts");
    return NULL;
}
