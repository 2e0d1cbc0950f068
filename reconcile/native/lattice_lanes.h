/* One width of `lattice.c`: LANES blocks of BLAKE3 side by side, as the function SUM.
 *
 * Names of types and functions carry the width, since the file is included once per width.
 */

#define JOINED_(name, lanes) name##_##lanes
#define JOINED(name, lanes) JOINED_(name, lanes)
#define WORD JOINED(word, LANES)
#define HALF JOINED(half, LANES)

typedef uint32_t WORD __attribute__((vector_size(4 * LANES)));
typedef uint16_t HALF __attribute__((vector_size(4 * LANES)));

/* Add each 16-bit element of the outputs, where it stands, and put them in order at the end. */
TARGET static void SUM(const uint8_t *elements, Py_ssize_t count, uint8_t *state)
{
    HALF sums[BLOCKS / LANES][BLOCK_WORDS];
    memset(sums, 0, sizeof sums);
    for (Py_ssize_t row = 0; row < count; row++) {
        uint32_t message[BLOCK_WORDS];
        load_message(message, elements + row * ELEMENT_BYTES);
        for (int group = 0; group < BLOCKS / LANES; group++) {
            WORD v[BLOCK_WORDS];
            for (int i = 0; i < 8; i++)
                v[i] = (WORD){0} + START[i];
            for (int i = 8; i < 12; i++)
                v[i] = v[i - 8];
            uint32_t counters[LANES];
            for (int lane = 0; lane < LANES; lane++)
                counters[lane] = (uint32_t)(group * LANES + lane);
            memcpy(&v[12], counters, sizeof counters);
            v[13] = (WORD){0};
            v[14] = (WORD){0} + ELEMENT_BYTES;
            v[15] = (WORD){0} + FLAGS;
            ROUNDS(v, message)
            for (int i = 0; i < 8; i++) {
                sums[group][i] += (HALF)(v[i] ^ v[i + 8]);
                sums[group][i + 8] += (HALF)(v[i + 8] ^ START[i]);
            }
        }
    }
    for (int block = 0; block < BLOCKS; block++)
        for (int i = 0; i < BLOCK_WORDS; i++) {
            uint32_t pair;
            memcpy(&pair, (uint8_t *)&sums[block / LANES][i] + 4 * (block % LANES), sizeof pair);
            add_element(state, 2 * (block * BLOCK_WORDS + i), pair & 0xFFFF);
            add_element(state, 2 * (block * BLOCK_WORDS + i) + 1, pair >> 16);
        }
}

#undef HALF
#undef WORD
#undef JOINED
#undef JOINED_
