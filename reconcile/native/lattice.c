/* Lattice sums: what `reconcile.lattice` adds for every element.
 *
 * An element is expanded to 2,048 bytes by BLAKE3's extendable output (BLAKE3, section 2.6): 32 blocks
 * that differ only in their counter, so several are computed side by side, one per lane of a
 * vector. The width is chosen by what the processor has. Compilers without GCC's vectors leave
 * all of it to the arrays.
 */

#include "kernel.h"

#define STATE_BYTES 2048
#define ELEMENT_BYTES 56

#if defined(__GNUC__)

#define BLOCKS 32
#define BLOCK_WORDS 16

/* CHUNK_START, CHUNK_END and ROOT: the input is one block. */
#define FLAGS 11

static const uint32_t START[8] = {
    0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19,
};

static inline void load_message(uint32_t *message, const uint8_t *from)
{
    for (int i = 0; i < BLOCK_WORDS; i++, from += 4)
        message[i] = i >= ELEMENT_BYTES / 4 ? 0
                                            : from[0] | (uint32_t)from[1] << 8 |
                                                  (uint32_t)from[2] << 16 | (uint32_t)from[3] << 24;
}

/* Elements are little-endian in the state. */
static inline void add_element(uint8_t *state, int at, uint32_t value)
{
    uint8_t *element = state + 2 * at;
    uint32_t sum = (uint32_t)(element[0] | element[1] << 8) + value;
    element[0] = (uint8_t)sum;
    element[1] = (uint8_t)(sum >> 8);
}

#define ROTATED(x, bits) ((x) >> (bits) | (x) << (32 - (bits)))

#define MIX(a, b, c, d, x, y)    \
    a += b + (x);                \
    d = ROTATED(d ^ a, 16);      \
    c += d;                      \
    b = ROTATED(b ^ c, 12);      \
    a += b + (y);                \
    d = ROTATED(d ^ a, 8);       \
    c += d;                      \
    b = ROTATED(b ^ c, 7);

#define ROUND(v, m, i0, i1, i2, i3, i4, i5, i6, i7, i8, i9, i10, i11, i12, i13, i14, i15) \
    MIX(v[0], v[4], v[8], v[12], m[i0], m[i1])                                            \
    MIX(v[1], v[5], v[9], v[13], m[i2], m[i3])                                            \
    MIX(v[2], v[6], v[10], v[14], m[i4], m[i5])                                           \
    MIX(v[3], v[7], v[11], v[15], m[i6], m[i7])                                           \
    MIX(v[0], v[5], v[10], v[15], m[i8], m[i9])                                           \
    MIX(v[1], v[6], v[11], v[12], m[i10], m[i11])                                         \
    MIX(v[2], v[7], v[8], v[13], m[i12], m[i13])                                          \
    MIX(v[3], v[4], v[9], v[14], m[i14], m[i15])

/* Each round takes the words of the message in the order of the one before, permuted again. */
#define ROUNDS(v, m)                                                     \
    ROUND(v, m, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)    \
    ROUND(v, m, 2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)    \
    ROUND(v, m, 3, 4, 10, 12, 13, 2, 7, 14, 6, 5, 9, 0, 11, 15, 8, 1)    \
    ROUND(v, m, 10, 7, 12, 9, 14, 3, 13, 15, 4, 0, 11, 2, 5, 8, 1, 6)    \
    ROUND(v, m, 12, 13, 9, 11, 15, 10, 14, 8, 7, 2, 5, 3, 0, 1, 6, 4)    \
    ROUND(v, m, 9, 14, 11, 5, 8, 12, 15, 1, 13, 3, 0, 10, 2, 6, 4, 7)    \
    ROUND(v, m, 11, 15, 5, 0, 1, 9, 8, 6, 14, 10, 2, 12, 3, 4, 7, 13)

#define LANES 4
#define SUM sum_by_4
#define TARGET
#include "lattice_lanes.h"
#undef LANES
#undef SUM
#undef TARGET

#if defined(__x86_64__)
#define LANES 8
#define SUM sum_by_8
#define TARGET __attribute__((target("avx2")))
#include "lattice_lanes.h"
#undef LANES
#undef SUM
#undef TARGET

#define LANES 16
#define SUM sum_by_16
#define TARGET __attribute__((target("avx512f,avx512vl")))
#include "lattice_lanes.h"
#endif

static bool sum_up(const uint8_t *elements, Py_ssize_t count, uint8_t *state)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512vl"))
        sum_by_16(elements, count, state);
    else if (__builtin_cpu_supports("avx2"))
        sum_by_8(elements, count, state);
    else
#endif
        sum_by_4(elements, count, state);
    return true;
}

#else

static bool sum_up(const uint8_t *elements, Py_ssize_t count, uint8_t *state)
{
    (void)elements, (void)count, (void)state;
    return false;
}

#endif

/* lattice(elements, state): add the expansion of every element to a state.
 *
 * False: this compiler had no vectors, and nothing was added.
 */
static PyObject *work_lattice(const rows_t *rows, columns *held)
{
    (void)rows;
    if (held->rows[1] != 1)
        return NULL;
    PyThreadState *state = let_go(held->rows[0] * STATE_BYTES);
    bool done = sum_up(held->at[0], held->rows[0], held->at[1]);
    take_back(state);
    return PyBool_FromLong(done);
}

CALL(lattice, ALONE, READ(ELEMENT_BYTES), WRITTEN(STATE_BYTES))
