/* What a payload asks, and what to do about each of its ranges. */

#include "reply.h"

#define MAX_QUESTIONS 262144

/* As in `reconcile.algorithm`: of plan, turn and answer. */
#define PROBE_FREELY 30000
#define FINISHING_BYTES 4096
#define ITEM_BYTES 36.5
#define FORCED_PARTS 16
#define LEAST_LATE_PARTS 16

#define MAGNITUDES 64

/* ---- questions ---------------------------------------------------------------------------- */

/* Note the range that was read last; false: Python must do it. */
static bool add_question(reply_t *reply, int64_t lower)
{
    const reader_t *from = &reply->from;
    int64_t upper = from->time;
    if (!reply->is_opened)
        reply->asked_lower = lower;
    reply->is_opened = true;
    reply->asked_upper = upper;
    bool whole = lower >= reply->most[A_LOWER] && upper <= reply->most[A_UPPER];
    if (!whole) {
        lower = lower < reply->most[A_LOWER] ? reply->most[A_LOWER] : lower;
        upper = upper > reply->most[A_UPPER] ? reply->most[A_UPPER] : upper;
        if (lower >= upper)
            return true;
    }
    bool is_set = from->kind == ITEM_SET;
    if ((is_set && !whole) || lower < reply->most[A_START] || reply->count == MAX_QUESTIONS ||
        !reserve(&reply->memory, sizeof(question_t)))
        return false;
    question_t *asked = question(reply, reply->count++);
    *asked = (question_t){.lower = lower, .upper = upper, .content = from->content, .named = -1,
                          .is_set = is_set, .told = is_set && from->at[-1], .whole = whole};
    reply->memory.used += sizeof *asked;
    return true;
}

bool read_questions(reply_t *reply)
{
    reader_t *from = &reply->from;
    while (left(from)) {
        int64_t lower = from->time;
        if (!read_range(from, false) || from->done.prefixed)
            return false;
        if (from->kind != SKIP && !add_question(reply, lower))
            return false;
    }
    return reply->count > 0;
}

/* Find out what is held where; false: more than can be read at once. */
bool measure(reply_t *reply)
{
    const rows_t *rows = &reply->rows;
    finger_t finger = {0, 0, 1 + rows->length / (2 * reply->count + 1)};
    int64_t readable = reply->most[A_ITEMS] + reply->most[A_LEFT], in_sets = 0, before = -1;
    Py_ssize_t place = 0, chunk = 0;
    for (Py_ssize_t number = 0; number < reply->count; number++) {
        question_t *asked = question(reply, number);
        asked->low = asked->lower == before ? place : rank(rows, &finger, asked->lower);
        asked->high = place = rank(rows, &finger, asked->upper);
        before = asked->upper;
        reply->held += asked->high - asked->low;
        in_sets += asked->is_set ? asked->high - asked->low : 0;
        expect_running(rows, asked->is_set ? asked->low : asked->high);
    }
    for (Py_ssize_t number = 0; number < reply->count; number++) {
        question_t *asked = question(reply, number);
        if (!asked->is_set && rows->count) {
            hash_t lower = running(rows, &chunk, asked->low);
            asked->print = xored(lower, running(rows, &chunk, asked->high));
        }
        asked->differs = !asked->is_set && !same_hash(asked->print, load_hash(asked->content, 0));
        reply->differing += asked->differs;
        reply->open += asked->differs || asked->is_set;
    }
    return in_sets <= readable;
}

/* ---- the plan ------------------------------------------------------------------------------ */

/* What ranges of each magnitude say: how many there are, how many differ, how many IDs they have. */
typedef struct {
    int64_t count, least, most;
    int64_t total[MAGNITUDES], different[MAGNITUDES], items[MAGNITUDES];
} sample_t;

static void take_sample(const reply_t *reply, sample_t *sample)
{
    memset(sample, 0, sizeof *sample);
    for (Py_ssize_t number = 0; number < reply->count; number++) {
        const question_t *asked = question(reply, number);
        if (asked->is_set || !asked->whole)
            continue;
        int64_t size = asked->high - asked->low, items = size ? size : 1;
        int magnitude = 0;
        while (items >> magnitude)
            magnitude++;
        sample->least = !sample->count || size < sample->least ? size : sample->least;
        sample->most = size > sample->most ? size : sample->most;
        sample->count++;
        sample->total[magnitude]++;
        sample->different[magnitude] += asked->differs;
        sample->items[magnitude] += items;
    }
}

/* Ask Python how to go on; 0, or -1 with an exception. */
int make_plan(const reply_t *reply, PyObject *planner, plan_t *plan)
{
    static const column_kind kinds[P_COLUMNS] = {READ(8), READ(8), READ(8), READ(8),
                                                 READ(1), READ(8), READ(8), READ(8)};
    sample_t sample;
    PyObject *given[P_COLUMNS];
    take_sample(reply, &sample);
    PyObject *made = PyObject_CallFunction(planner, "Ly#", (long long)reply->held,
                                           (const char *)&sample, (Py_ssize_t)sizeof sample);
    if (!made)
        return -1;
    int outcome = -1;
    if (PyTuple_Check(made) && PyTuple_Size(made) == P_COLUMNS) {
        for (int i = 0; i < P_COLUMNS; i++)
            given[i] = PyTuple_GetItem(made, i);
        outcome = hold(&plan->from, given, kinds, P_COLUMNS);
    } else
        misfit("reply");
    Py_DECREF(made); /* The views of its columns keep what they need. */
    if (outcome < 0)
        return -1;
    const Py_ssize_t *rows = plan->from.rows;
    Py_ssize_t cells = (rows[P_SIZES] + 1) * (rows[P_RATES] + 1);
    if (rows[P_NUMBERS] != N_COUNT || rows[P_DENSITY] != 1 || rows[P_PROBE] != cells ||
        rows[P_AFTER] != cells || rows[P_UNPROBED] != cells || rows[P_LATE] != cells) {
        release(&plan->from);
        return misfit("reply");
    }
    memcpy(plan->numbers, plan->from.at[P_NUMBERS], sizeof plan->numbers);
    memcpy(&plan->density, plan->from.at[P_DENSITY], sizeof plan->density);
    return 0;
}

/* How many of ascending edges are below a value. */
static Py_ssize_t below(const uint8_t *edges, Py_ssize_t count, double value)
{
    Py_ssize_t low = 0;
    while (low < count) {
        Py_ssize_t middle = low + (count - low) / 2;
        double edge;
        memcpy(&edge, edges + middle * (Py_ssize_t)sizeof edge, sizeof edge);
        if (edge < value)
            low = middle + 1;
        else
            count = middle;
    }
    return low;
}

/* Where in the tables a size is. */
static Py_ssize_t cell(const plan_t *plan, int64_t size)
{
    const columns *from = &plan->from;
    double items = size < 1 ? 1.0 : (double)size;
    return below(from->at[P_SIZES], from->rows[P_SIZES], items) * (from->rows[P_RATES] + 1) +
           below(from->at[P_RATES], from->rows[P_RATES], items * plan->density);
}

/* Search for the one ID of ours that may be all of a difference; false: Python must do it. */
bool probe_all(reply_t *reply, const plan_t *plan)
{
    around_t around = {0, 0, 0};
    Py_ssize_t chunk = 0;
    int64_t seen = 0;
    for (Py_ssize_t number = 0; number < reply->count; number++) {
        question_t *asked = question(reply, number);
        if (number + AHEAD < reply->count)
            expect_running(&reply->rows, question(reply, number + AHEAD)->low);
        if (!asked->differs || !asked->whole || is_zero(load_hash(asked->content, 0)))
            continue;
        int64_t size = asked->high - asked->low;
        seen += size;
        bool worth = plan->numbers[N_KNOWN]
                         ? plan->from.at[P_PROBE][cell(plan, size)] || seen <= PROBE_FREELY
                         : size <= PROBE_FREELY;
        if (!size || !worth)
            continue;
        asked->probed = true;
        hash_t wanted = xored(asked->print, load_hash(asked->content, 0));
        Py_ssize_t found = 0;
        if (probe_span(&reply->rows, &chunk, asked->low, asked->high, wanted, &found) != 1)
            continue;
        go_on(&reply->rows, &around.own, found);
        int64_t time = time_at(&reply->rows, around.own, found);
        if (time == MAX_TIME || !is_alone(&reply->rows, &around, found, time))
            return false;
        asked->named = found;
    }
    return true;
}

/* Into how many parts to split a range of so many items, of `count` ranges; 0: send the items. */
static int64_t parts_of(const plan_t *plan, int64_t size, int64_t count, bool probed)
{
    const int64_t *numbers = plan->numbers;
    int64_t most = size / 8, parts;
    if (!numbers[N_KNOWN]) {
        parts = (numbers[N_WANTED] + count - 1) / count;
        parts = parts > most ? most : parts;
        return parts < 3 ? 0 : parts;
    }
    Py_ssize_t at = cell(plan, size);
    parts = load(plan->from.at[probed ? P_AFTER : P_UNPROBED], at);
    if (parts > 0 && count < numbers[N_MIN_PARTS]) {
        int64_t floor = (numbers[N_MIN_PARTS] + count - 1) / count;
        floor = floor > most ? most : floor;
        parts = parts < floor ? floor : parts;
    }
    if (numbers[N_LARGEST_LATE] >= 0 && size > numbers[N_LARGEST_LATE]) {
        parts = load(plan->from.at[P_LATE], at);
        parts = parts < LEAST_LATE_PARTS ? LEAST_LATE_PARTS : parts;
    }
    return parts;
}

/* Decide what to do about each range that is not settled; false: Python must do it. */
bool choose_all(reply_t *reply, const plan_t *plan)
{
    int64_t items = 0, count = 0, in_sets = 0, parts = 0;
    for (Py_ssize_t number = 0; number < reply->count; number++) {
        const question_t *asked = question(reply, number);
        if (is_unsettled(asked)) {
            items += asked->high - asked->low;
            count++;
        }
    }
    bool finishing = plan->numbers[N_KNOWN] && (double)items * ITEM_BYTES < FINISHING_BYTES;
    int64_t most = reply->most[A_RANGES] / 4, number_of = 0;
    most = most < 2 ? 2 : most;
    for (Py_ssize_t number = 0; number < reply->count; number++) {
        question_t *asked = question(reply, number);
        if (!is_unsettled(asked))
            continue;
        int64_t size = asked->high - asked->low;
        bool hollow = asked->whole && is_zero(load_hash(asked->content, 0));
        if (size > 1 && !finishing && !hollow)
            asked->parts = parts_of(plan, size, count, asked->probed);
        if (!asked->parts && items > reply->most[A_ITEMS] && size > reply->most[A_ITEMS])
            asked->parts = FORCED_PARTS;
        asked->parts = asked->parts > most ? most : asked->parts;
        in_sets += asked->parts ? 0 : size;
        parts += asked->parts;
        if (number_of++ && (in_sets > reply->most[A_ITEMS] || parts > reply->most[A_RANGES] / 2))
            return false;
    }
    return true;
}
