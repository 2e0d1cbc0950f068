/* What a payload asks, and what to do about each of its ranges. */

#include "reply.h"

#define MAX_QUESTIONS 262144

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

/* What the planner is told of a range: its fingerprint is of all of it, differs, is not zero. */
enum { KNOWN = 1, DIFFERS = 2, FILLED = 4 };

/* What a method of the planner returns, if it is so many bytes; else NULL with an exception. */
static PyObject *bytes_of(PyObject *made, Py_ssize_t size)
{
    if (!made || (PyBytes_Check(made) && PyBytes_Size(made) == size))
        return made;
    Py_DECREF(made);
    misfit("reply");
    return NULL;
}

/* Ask which ranges to search for one ID; 0, or -1 with an exception. */
int plan_search(const reply_t *reply, PyObject *planner)
{
    PyObject *sizes = PyBytes_FromStringAndSize(NULL, reply->count * TIME_BYTES);
    PyObject *flags = PyBytes_FromStringAndSize(NULL, reply->count), *made = NULL;
    if (sizes && flags) {
        for (Py_ssize_t number = 0; number < reply->count; number++) {
            const question_t *asked = question(reply, number);
            bool filled = !asked->is_set && !is_zero(load_hash(asked->content, 0));
            store((uint8_t *)PyBytes_AsString(sizes), number, asked->high - asked->low);
            PyBytes_AsString(flags)[number] = (char)((asked->whole && !asked->is_set ? KNOWN : 0) |
                                                     (asked->differs ? DIFFERS : 0) |
                                                     (filled ? FILLED : 0));
        }
        made = bytes_of(PyObject_CallMethod(planner, "search", "LOO", (long long)reply->held,
                                            sizes, flags),
                        reply->count);
    }
    for (Py_ssize_t number = 0; made && number < reply->count; number++)
        question(reply, number)->probed =
            question(reply, number)->differs && PyBytes_AsString(made)[number];
    Py_XDECREF(sizes);
    Py_XDECREF(flags);
    Py_XDECREF(made);
    return made ? 0 : -1;
}

/* Ask into how many parts to split each range that is not settled, and how many of the parts should
 * be gauges; -1 with an exception. */
int64_t plan_parts(const reply_t *reply, PyObject *planner)
{
    PyObject *flags = PyBytes_FromStringAndSize(NULL, reply->count), *made = NULL;
    int64_t gauges = -1;
    if (flags) {
        for (Py_ssize_t number = 0; number < reply->count; number++)
            PyBytes_AsString(flags)[number] = (char)is_unsettled(question(reply, number));
        made = bytes_of(PyObject_CallMethod(planner, "parts", "O", flags),
                        (reply->count + 1) * TIME_BYTES);
    }
    if (made) {
        const uint8_t *parts = (const uint8_t *)PyBytes_AsString(made);
        gauges = load(parts, reply->count);
        for (Py_ssize_t number = 0; number < reply->count; number++) {
            question(reply, number)->parts = load(parts, number);
            if (load(parts, number) < 0)
                gauges = -1;
        }
        if (gauges < 0)
            misfit("reply");
    }
    Py_XDECREF(flags);
    Py_XDECREF(made);
    return gauges;
}

/* Search for the one ID of ours that may be all of a difference; false: Python must do it. */
bool probe_all(reply_t *reply)
{
    around_t around = {0, 0, 0};
    Py_ssize_t chunk = 0;
    for (Py_ssize_t number = 0; number < reply->count; number++) {
        question_t *asked = question(reply, number);
        if (number + AHEAD < reply->count)
            expect_running(&reply->rows, question(reply, number + AHEAD)->low);
        if (!asked->probed)
            continue;
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
