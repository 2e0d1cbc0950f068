/* The compact mode's short IDs of an index; short.h says what they are. */

#include "short.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define HAS_CLMUL 1
#include <immintrin.h>
#else
#define HAS_CLMUL 0
#endif

/* The last one says how: the best that the processor has, without its instruction, with the one
 * that multiplies once. */
enum { BY_BEST, BY_TABLES, BY_CLMUL };
#define POLYNOMIAL UINT64_C(0x1B) /* x^64 = x^4 + x^3 + x + 1 */

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
#define MANY 4 /* hashes at a time, where there are lanes */

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

bool open_hasher(hasher_t *hasher, const uint8_t *key)
{
    for (int word = 0; word < KEY_WORDS; word++)
        hasher->key[word] = word_at(key + word * 8);
    hasher->tables = NULL;
#if HAS_CLMUL
    hasher->of_row = row_by_clmul;
    hasher->of_rows = rows_by_clmul;
    int64_t how = load(key, KEY_WORDS);
    if (how == BY_BEST && __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("avx512f"))
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

void close_hasher(hasher_t *hasher)
{
    PyMem_Free(hasher->tables);
}

/* ---- short IDs ------------------------------------------------------------------------------ */

#define STRETCH 64 /* hashes from one request for memory to the next */

enum { F_LOW, F_HIGH, F_KEY, F_SHORTS };

typedef struct {
    const rows_t *rows;
    const columns *held;
    hasher_t hasher;
    uint64_t *out; /* what is written next */
} filler_t;

/* Ask for hashes of a chunk, as far as there are so many. */
static void expect_hashes(const filler_t *filler, Py_ssize_t chunk, int64_t place, int64_t end)
{
    Py_ssize_t from = (Py_ssize_t)place;
    Py_ssize_t to = (Py_ssize_t)(end < place + STRETCH ? end : place + STRETCH);
    for (; from <= to; from += 64 / HASH_BYTES)
        expect(filler->rows->chunks[chunk].prefix, from, HASH_BYTES);
}

/* The short IDs between two places of a chunk. `next`: where the next interval begins. */
static void shorten_piece(filler_t *filler, Py_ssize_t chunk, int64_t from, int64_t to,
                          int64_t next)
{
    int64_t start = load(filler->rows->starts, chunk), end = load(filler->rows->starts, chunk + 1);
    for (int64_t behind; from < to; from = behind) {
        behind = to - from < STRETCH ? to : from + STRETCH;
        if (behind < to)
            expect_hashes(filler, chunk, behind - start, to - start);
        else if (next >= to && next + STRETCH < end)
            expect_hashes(filler, chunk, next - start, end - start);
        filler->hasher.of_rows(&filler->hasher,
                               filler->rows->chunks[chunk].prefix + (from - start) * HASH_BYTES,
                               (Py_ssize_t)(behind - from), filler->out);
        filler->out += behind - from;
    }
}

/* The short IDs between two places, which are not before the ones of the last call. */
static void shorten_interval(filler_t *filler, Py_ssize_t *chunk, int64_t from, int64_t to,
                             int64_t next)
{
    while (from < to) {
        go_on(filler->rows, chunk, (Py_ssize_t)from);
        int64_t end = load(filler->rows->starts, *chunk + 1), behind = to < end ? to : end;
        shorten_piece(filler, *chunk, from, behind, next);
        from = behind;
    }
}

static bool fill_all(filler_t *filler)
{
    const rows_t *rows = filler->rows;
    const columns *held = filler->held;
    Py_ssize_t chunk = 0, left = held->rows[F_SHORTS], intervals = held->rows[F_LOW];
    int64_t before = 0;
    for (Py_ssize_t row = 0; row < intervals; row++) {
        int64_t from = load(held->at[F_LOW], row), to = load(held->at[F_HIGH], row);
        int64_t next = row + 1 < intervals ? load(held->at[F_LOW], row + 1) : rows->length;
        if (from < before || to < from || to > rows->length || to - from > left)
            return false;
        before = to;
        left -= (Py_ssize_t)(to - from);
        shorten_interval(filler, &chunk, from, to, next);
    }
    return !left;
}

/* fill(index, low, high, key, shorts) -> None; the short IDs in ascending intervals of places. */
static PyObject *work_fill(const rows_t *rows, columns *held)
{
    filler_t filler = {.rows = rows, .held = held, .out = (uint64_t *)held->at[F_SHORTS]};
    if (held->rows[F_LOW] != held->rows[F_HIGH] || held->rows[F_KEY] != KEY_ROWS ||
        (uintptr_t)filler.out % sizeof(uint64_t) != 0 ||
        !open_hasher(&filler.hasher, held->at[F_KEY]))
        return NULL;
    PyThreadState *state = let_go(held->rows[F_SHORTS] * HASH_BYTES);
    bool fits = fill_all(&filler);
    take_back(state);
    close_hasher(&filler.hasher);
    return none_if(fits);
}

CALL(fill, INDEXED, READ(8), READ(8), READ(8), WRITTEN(8))

/* ---- single differences --------------------------------------------------------------------- */

/* Intervals, and what is left of them after single differences were found. */
enum { I_LOW, I_HIGH, I_KEY, I_PRINTS, I_APART, S_LOW, S_HIGH, S_TOLD, S_SHORTS };

/* Where the only short ID is that ends like the XOR of both prints; -1: there is none, or not
 * only one. */
static Py_ssize_t only_one(const uint64_t *shorts, Py_ssize_t count, uint32_t print)
{
    Py_ssize_t hits = 0, at = 0;
    for (Py_ssize_t row = 0; row < count; row++)
        hits += (uint32_t)shorts[row] == print;
    if (hits != 1)
        return -1;
    while ((uint32_t)shorts[at] != print)
        at++;
    return at;
}

/* Has the ID at a place of the chunks up to `*chunk` the balance by which its slice differs. */
static bool weighs(const rows_t *rows, Py_ssize_t chunk, int64_t place, int64_t apart)
{
    while (load(rows->starts, chunk) > place)
        chunk--;
    hash_t hash = hash_at(rows, chunk, (Py_ssize_t)place);
    return apart == 1 - 2 * (*(const uint8_t *)&hash & 1);
}

/* IDs in ascending intervals of places; -1: they are none. */
static Py_ssize_t ids_in(const rows_t *rows, const columns *held)
{
    int64_t before = 0, sum = 0;
    for (Py_ssize_t row = 0; row < held->rows[I_LOW]; row++) {
        int64_t low = load(held->at[I_LOW], row), high = load(held->at[I_HIGH], row);
        if (low < before || high < low || high > rows->length)
            return -1;
        sum += high - low;
        before = high;
    }
    return (Py_ssize_t)sum;
}

static void sift_all(filler_t *filler)
{
    const rows_t *rows = filler->rows;
    const columns *held = filler->held;
    uint64_t *shorts = filler->out;
    Py_ssize_t chunk = 0, intervals = held->rows[I_LOW];
    for (Py_ssize_t row = 0; row < intervals; row++) {
        int64_t low = load(held->at[I_LOW], row), high = load(held->at[I_HIGH], row);
        int64_t next = row + 1 < intervals ? load(held->at[I_LOW], row + 1) : rows->length;
        uint64_t *own = filler->out;
        shorten_interval(filler, &chunk, low, high, next);
        int64_t apart = load(held->at[I_APART], row);
        Py_ssize_t at = -1;
        if (apart == 1 || apart == -1)
            at = only_one(own, filler->out - own, (uint32_t)load(held->at[I_PRINTS], row));
        bool told = at >= 0 && weighs(rows, chunk, low + at, apart);
        if (told) {
            *own = own[at];
            filler->out = own + 1;
            low += at;
            high = low + 1;
        }
        store(held->at[S_TOLD], row, told ? own - shorts : -1);
        store(held->at[S_LOW], row, low);
        store(held->at[S_HIGH], row, high);
    }
}

/* sift(index, low, high, key, prints, apart, left low, left high, told, shorts)
 *   -> how many short IDs there are
 *   The short IDs in ascending intervals of places. Where just one ID explains by what the prints
 *   and balances of an interval differ, what is left of the interval is this ID alone, and what is
 *   told is which row of the short IDs it is; -1 elsewhere.
 */
static PyObject *work_sift(const rows_t *rows, columns *held)
{
    filler_t filler = {.rows = rows, .held = held, .out = (uint64_t *)held->at[S_SHORTS]};
    bool fits = held->rows[I_KEY] == KEY_ROWS && (uintptr_t)filler.out % sizeof(uint64_t) == 0;
    for (int i = I_HIGH; i <= S_TOLD; i++)
        fits &= i == I_KEY || held->rows[i] == held->rows[I_LOW];
    if (!fits || ids_in(rows, held) != held->rows[S_SHORTS] ||
        !open_hasher(&filler.hasher, held->at[I_KEY]))
        return NULL;
    PyThreadState *state = let_go(held->rows[S_SHORTS] * HASH_BYTES);
    sift_all(&filler);
    take_back(state);
    close_hasher(&filler.hasher);
    return PyLong_FromSsize_t(filler.out - (uint64_t *)held->at[S_SHORTS]);
}

CALL(sift, INDEXED, READ(8), READ(8), READ(8), READ(8), READ(8), WRITTEN(8), WRITTEN(8), WRITTEN(8),
     WRITTEN(8))

/* ---- balances of short IDs ------------------------------------------------------------------ */

#define OCTETS (SHORT_BITS / 8)
#define AT_ONCE 8
#define MOST_IN_OCTET 255

/* How many of some words have each bit: as bits of ones, twos and fours, and in octets of eights. */
typedef struct {
    uint64_t ones, twos, fours, eights[OCTETS];
    int64_t total[SHORT_BITS];
} counts_t;

static inline uint64_t add_bits(uint64_t *sum, uint64_t left, uint64_t right)
{
    uint64_t either = *sum ^ left, carry = (*sum & left) | (either & right);
    *sum = either ^ right;
    return carry;
}

static inline void count_bits(counts_t *counts, const uint64_t *words, const uint64_t *spread)
{
    uint64_t twos = add_bits(&counts->ones, words[0], words[1]);
    uint64_t fours = add_bits(&counts->twos, twos, add_bits(&counts->ones, words[2], words[3]));
    twos = add_bits(&counts->ones, words[4], words[5]);
    uint64_t more = add_bits(&counts->twos, twos, add_bits(&counts->ones, words[6], words[7]));
    uint64_t eights = add_bits(&counts->fours, fours, more);
    for (int octet = 0; octet < OCTETS; octet++)
        counts->eights[octet] += spread[eights >> 8 * octet & 255];
}

static void take_eights(counts_t *counts)
{
    for (int bit = 0; bit < SHORT_BITS; bit++)
        counts->total[bit] += (int64_t)(counts->eights[bit / 8] >> bit % 8 * 8 & 255) * AT_ONCE;
    memset(counts->eights, 0, sizeof counts->eights);
}

/* Each bit XOR the one that is `turn` places below it, around; none for 0. */
static inline uint64_t turned(uint64_t value, int turn)
{
    return turn ? (value ^ value << turn ^ value >> (SHORT_BITS - turn)) & SHORT_MASK : value;
}

static void tally_all(const uint8_t *shorts, Py_ssize_t count, int turn, const uint64_t *spread,
                      uint8_t *balances)
{
    counts_t counts = {0, 0, 0, {0}, {0}};
    uint64_t words[AT_ONCE];
    for (Py_ssize_t from = 0, blocks = 1; from < count; from += AT_ONCE, blocks++) {
        for (Py_ssize_t row = 0; row < AT_ONCE; row++)
            words[row] = from + row < count ? turned((uint64_t)load(shorts, from + row), turn) : 0;
        count_bits(&counts, words, spread);
        if (blocks % MOST_IN_OCTET == 0)
            take_eights(&counts);
    }
    take_eights(&counts);
    for (int bit = 0; bit < SHORT_BITS; bit++) {
        int64_t ones = counts.total[bit] + (int64_t)(counts.ones >> bit & 1) +
                       2 * (int64_t)(counts.twos >> bit & 1) +
                       4 * (int64_t)(counts.fours >> bit & 1);
        store(balances, turn * SHORT_BITS + bit, count - 2 * ones);
    }
}

/* tally(shorts, balances) -> None
 *   The sum over short IDs of +1, or -1 where a bit is set, for each of their bits; then the same
 *   of each bit XOR the one that is one place below it, around, two places, and so on.
 */
static PyObject *work_tally(const rows_t *rows, columns *held)
{
    (void)rows;
    if (held->rows[1] % SHORT_BITS || held->rows[1] >= SHORT_BITS * SHORT_BITS)
        return NULL;
    uint64_t spread[256] = {0}; /* each bit of an octet in an octet of its own */
    for (int value = 0; value < 256; value++)
        for (int bit = 0; bit < 8; bit++)
            spread[value] |= (uint64_t)(value >> bit & 1) << 8 * bit;
    PyThreadState *state = let_go(held->rows[0] * TIME_BYTES);
    for (int turn = 0; turn < held->rows[1] / SHORT_BITS; turn++)
        tally_all(held->at[0], held->rows[0], turn, spread, held->at[1]);
    take_back(state);
    return none_if(true);
}

CALL(tally, ALONE, READ(8), WRITTEN(8))

/* shorten(hashes, key, shorts) -> None; the short IDs of hashes, or of XORs of hashes. */
static PyObject *work_shorten(const rows_t *rows, columns *held)
{
    (void)rows;
    hasher_t hasher;
    if (held->rows[0] != held->rows[2] || held->rows[1] != KEY_ROWS ||
        !open_hasher(&hasher, held->at[1]))
        return NULL;
    PyThreadState *state = let_go(held->rows[0] * HASH_BYTES);
    for (Py_ssize_t row = 0; row < held->rows[0]; row++) {
        uint64_t found = hasher.of_row(&hasher, held->at[0] + row * HASH_BYTES);
        store(held->at[2], row, (int64_t)(found & SHORT_MASK));
    }
    take_back(state);
    close_hasher(&hasher);
    return none_if(true);
}

CALL(shorten, ALONE, READ(32), READ(8), WRITTEN(8))
