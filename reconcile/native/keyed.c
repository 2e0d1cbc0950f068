/* Keyed sums of sets: SipHash-2-4 with 128 bits of output, of many hashes at a time.
 *
 * Several messages go through the rounds side by side, as the lanes of vectors: the rounds of one
 * message wait for each other.
 */

#include "rows.h"

#if defined(__GNUC__)
typedef uint64_t lanes __attribute__((vector_size(32)));
#define EVERYWHERE static inline __attribute__((always_inline))
#else
typedef uint64_t lanes;
#define EVERYWHERE static inline
#endif

#define LANES ((int)(sizeof(lanes) / sizeof(uint64_t)))
#define ABREAST 2
#define STEP (LANES * ABREAST)
#define BLOCK 64
#define WORDS 4
#define KEY_BYTES 16

typedef struct {
    uint64_t words[WORDS][BLOCK];
    uint64_t sums[2][BLOCK];
} block_t;

typedef struct {
    lanes v[4][ABREAST];
} state_t;

/* SipHash reads its input as little-endian words. */
static inline uint64_t little(uint64_t word)
{
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return __builtin_bswap64(word);
#else
    return word;
#endif
}

#define ROTATED(value, by) ((value) << (by) | (value) >> (64 - (by)))

EVERYWHERE void rounds(state_t *state, int count)
{
    while (count--)
        for (int i = 0; i < ABREAST; i++) {
            lanes a = state->v[0][i], b = state->v[1][i];
            lanes c = state->v[2][i], d = state->v[3][i];
            a += b;
            c += d;
            b = ROTATED(b, 13) ^ a;
            d = ROTATED(d, 16) ^ c;
            a = ROTATED(a, 32);
            c += b;
            a += d;
            b = ROTATED(b, 17) ^ c;
            d = ROTATED(d, 21) ^ a;
            c = ROTATED(c, 32);
            state->v[0][i] = a, state->v[1][i] = b;
            state->v[2][i] = c, state->v[3][i] = d;
        }
}

EVERYWHERE void take_out(const state_t *state, uint64_t *sums)
{
    for (int i = 0; i < ABREAST; i++) {
        lanes sum = state->v[0][i] ^ state->v[1][i] ^ state->v[2][i] ^ state->v[3][i];
        memcpy(sums + i * LANES, &sum, sizeof sum);
    }
}

/* The outputs of STEP messages from `at` on. */
EVERYWHERE void hash_step(block_t *block, int at, const uint64_t key[2])
{
    static const uint64_t begin[4] = {0x736f6d6570736575, 0x646f72616e646f6d ^ 0xee,
                                      0x6c7967656e657261, 0x7465646279746573};
    state_t state;
    for (int i = 0; i < ABREAST; i++)
        for (int v = 0; v < 4; v++)
            state.v[v][i] = (lanes){0} + (begin[v] ^ key[v & 1]);
    for (int word = 0; word <= WORDS; word++) {
        lanes message[ABREAST];
        for (int i = 0; i < ABREAST; i++) {
            if (word < WORDS)
                memcpy(&message[i], &block->words[word][at + i * LANES], sizeof(lanes));
            else
                message[i] = (lanes){0} + ((uint64_t)HASH_BYTES << 56);
            state.v[3][i] ^= message[i];
        }
        rounds(&state, 2);
        for (int i = 0; i < ABREAST; i++)
            state.v[0][i] ^= message[i];
    }
    for (int i = 0; i < ABREAST; i++)
        state.v[2][i] ^= (lanes){0} + (uint64_t)0xee;
    rounds(&state, 4);
    take_out(&state, &block->sums[0][at]);
    for (int i = 0; i < ABREAST; i++)
        state.v[1][i] ^= (lanes){0} + (uint64_t)0xdd;
    rounds(&state, 4);
    take_out(&state, &block->sums[1][at]);
}

EVERYWHERE void hash_steps(block_t *block, int count, const uint64_t key[2])
{
    for (int at = 0; at < count; at += STEP)
        hash_step(block, at, key);
}

#if defined(__GNUC__) && defined(__x86_64__)
__attribute__((target("avx2"))) static void hash_by_avx2(block_t *block, int count,
                                                         const uint64_t key[2])
{
    hash_steps(block, count, key);
}
#endif

static void hash_anywhere(block_t *block, int count, const uint64_t key[2])
{
    hash_steps(block, count, key);
}

typedef void hasher(block_t *, int, const uint64_t *);

static hasher *quickest(void)
{
#if defined(__GNUC__) && defined(__x86_64__)
    if (__builtin_cpu_supports("avx2"))
        return hash_by_avx2;
#endif
    return hash_anywhere;
}

/* The XOR of the outputs for the hashes from a place of a chunk to another. */
static void fold_chunk(const chunk_t *chunk, Py_ssize_t from, Py_ssize_t to, const uint64_t *key,
                       uint64_t sum[2])
{
    block_t block = {0};
    hasher *hash = quickest();
    hash_t before = load_hash(chunk->prefix, from);
    while (from < to) {
        int count = to - from < BLOCK ? (int)(to - from) : BLOCK;
        for (int i = 0; i < count; i++) {
            hash_t after = load_hash(chunk->prefix, ++from), own = xored(before, after);
            for (int word = 0; word < WORDS; word++)
                block.words[word][i] = little(own.words[word]);
            before = after;
        }
        hash(&block, count, key);
        for (int i = 0; i < count; i++) {
            sum[0] ^= block.sums[0][i];
            sum[1] ^= block.sums[1][i];
        }
    }
}

static bool fold(const rows_t *rows, int64_t from, int64_t to, const uint64_t *key,
                 uint64_t sum[2])
{
    Py_ssize_t chunk = 0;
    if (from < 0 || to < from || to > rows->length)
        return false;
    while (from < to) {
        go_on(rows, &chunk, (Py_ssize_t)from);
        int64_t start = load(rows->starts, chunk), end = load(rows->starts, chunk + 1);
        int64_t last = to < end ? to : end;
        fold_chunk(&rows->chunks[chunk], (Py_ssize_t)(from - start), (Py_ssize_t)(last - start),
                   key, sum);
        from = last;
    }
    return true;
}

/* fold(index, interval, key, sum) -> None; an interval is two places, a key and a sum 16 bytes. */
PyObject *kernel_fold(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    static const column_kind kinds[] = {READ(8), READ(KEY_BYTES), WRITTEN(KEY_BYTES)};
    rows_t rows;
    columns held;
    if (check_arguments("fold", given, 4) < 0 || open_rows(&rows, arguments[0]) < 0)
        return NULL;
    if (hold(&held, arguments + 1, kinds, 3) < 0) {
        close_rows(&rows);
        return NULL;
    }
    bool fits = held.rows[0] == 2 && held.rows[1] == 1 && held.rows[2] == 1;
    if (fits) {
        uint64_t key[2], sum[2] = {0, 0};
        memcpy(key, held.at[1], sizeof key);
        PyThreadState *state = let_go(rows.length * HASH_BYTES);
        key[0] = little(key[0]), key[1] = little(key[1]);
        fits = fold(&rows, load(held.at[0], 0), load(held.at[0], 1), key, sum);
        sum[0] = little(sum[0]), sum[1] = little(sum[1]);
        take_back(state);
        memcpy(held.at[2], sum, sizeof sum);
    }
    release(&held);
    close_rows(&rows);
    if (!fits) {
        misfit("fold");
        return NULL;
    }
    Py_RETURN_NONE;
}
