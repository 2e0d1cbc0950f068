/* The compact mode's tables. A cell is one word: the XOR of short IDs in its lower 48 bits, the XOR
 * of their checks above. What the shape of a table means, `reconcile.compact.table` says.
 */

#ifndef RECONCILE_TABLE_H
#define RECONCILE_TABLE_H

#include "kernel.h"

typedef struct {
    uint64_t salt, places, length, windows;
    uint64_t *cells;
} table_t;

/* What a shape has. The last one: compute one entry after the other, as processors without wide
 * lanes do. */
enum { SHAPE_SALT, SHAPE_PLACES, SHAPE_LENGTH, SHAPE_WINDOWS, SHAPE_NARROW, SHAPE_ROWS };

/* Whether a shape is one, and the cells are as many as it says. */
bool open_table(table_t *table, const uint8_t *shape, Py_ssize_t rows, uint8_t *cells,
                Py_ssize_t count);

/* Put short IDs in, and take those out that were in. */
void insert_shorts(table_t table, const uint8_t *shorts, Py_ssize_t count, bool narrow);

#endif
