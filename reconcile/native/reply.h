/* What the two halves of a reply share: what is asked and chosen (`choice.c`), what is written. */

#ifndef RECONCILE_REPLY_H
#define RECONCILE_REPLY_H

#include "reader.h"
#include "rows.h"

#include <stdlib.h>

enum { A_RANGES, A_ITEMS, A_BYTES, A_LEFT, A_LOWER, A_UPPER, A_START, A_COUNT };

/* ---- memory ------------------------------------------------------------------------------- */

typedef struct {
    uint8_t *at;
    size_t used, room;
} bytes_t;

static inline bool reserve(bytes_t *bytes, size_t more)
{
    if (bytes->room - bytes->used >= more)
        return true;
    size_t room = 2 * bytes->room + more + 256;
    uint8_t *at = realloc(bytes->at, room);
    if (!at)
        return false;
    bytes->at = at;
    bytes->room = room;
    return true;
}

/* ---- questions ---------------------------------------------------------------------------- */

/* A range to answer: bounds, places of its IDs, our fingerprint, and what is to be done. */
typedef struct {
    int64_t lower, upper;
    Py_ssize_t low, high;
    const uint8_t *content; /* what the peer says of it */
    hash_t print;
    int64_t parts;
    Py_ssize_t named; /* the place of the one ID that is all the difference; -1: there is none */
    uint8_t is_set, told, whole, differs, probed;
} question_t;

typedef enum { WHOLE, SHOWN, NARROW, KINDS_OF_SETS } set_kind_t;

/* A set that may still grow: sets of one kind that touch are put together. */
typedef struct {
    bool is_open;
    set_kind_t kind;
    int64_t lower, upper, block;
    Py_ssize_t from, to; /* places */
} open_set_t;

typedef struct {
    rows_t rows;
    reader_t from;
    const uint8_t *end; /* of the payload */
    int64_t most[A_COUNT];
    bytes_t memory; /* of the questions */
    Py_ssize_t count, open;
    int64_t held, differing;
    /* what was asked about, before it was cut to the territory */
    int64_t asked_lower, asked_upper;
    bool is_opened;
    /* the answer */
    bytes_t out, sent_times, sent_hashes, got_times, got_hashes;
    Py_ssize_t ranges, items;
    int64_t time; /* the upper bound written last */
    open_set_t set;
    int64_t totals[KINDS_OF_SETS];
    Py_ssize_t chunk, item_chunk; /* where we are in the index: of places, of items written */
} reply_t;

static inline question_t *question(const reply_t *reply, Py_ssize_t number)
{
    return (question_t *)reply->memory.at + number;
}

/* ---- the plan ------------------------------------------------------------------------------ */

static inline bool is_unsettled(const question_t *asked)
{
    return asked->differs && asked->named < 0;
}

/* False: Python must do it. */
bool read_questions(reply_t *reply);
bool measure(reply_t *reply);
bool probe_all(reply_t *reply);

/* What Python decides; -1 with an exception. */
int plan_search(const reply_t *reply, PyObject *planner);
int64_t plan_parts(const reply_t *reply, PyObject *planner);

#endif
