/* The slices of a frame in one call: what a side sends of its own, and what another one sent
 * compared with its own. None stands for slices that are malformed or beyond a limit. */

#include "counts.h"
#include "reader.h"
#include "slices.h"

#define MAX_EXPONENT 62
#define MAX_COUNT 65536
#define MAX_BALANCE (INT64_C(1) << 31)

/* ---- memory --------------------------------------------------------------------------------- */

typedef struct {
    slicer_t slicer;
    bounds_t bounds;
    cuts_t cuts;
    Py_ssize_t rows; /* of slices */
    Py_ssize_t print_bytes;
    PyObject *columns; /* of `cuts`, as bytes */
} work_t;

static bool take_columns(work_t *work)
{
    const regions_t *regions = &work->slicer.regions;
    Py_ssize_t count = cuts_for(&work->bounds, regions);
    work->rows = work->bounds.count + regions->count;
    work->columns = PyBytes_FromStringAndSize(NULL, count * CUT_COLUMNS * TIME_BYTES);
    if (!work->columns)
        return false;
    int64_t *at = (int64_t *)PyBytes_AsString(work->columns);
    work->cuts = (cuts_t){at, at + count, (uint64_t *)at + 2 * count, at + 3 * count, 0};
    return true;
}

static int open_work(work_t *work, PyObject *const *arguments)
{
    memset(work, 0, sizeof *work);
    if (open_slicer(&work->slicer, arguments) < 0)
        return -1;
    Py_ssize_t count = (Py_ssize_t)load(work->slicer.held.at[A_NUMBERS], N_COUNT);
    work->print_bytes = (Py_ssize_t)load(work->slicer.held.at[A_NUMBERS], N_PRINT_BYTES);
    if (count < 0 || count > MAX_COUNT || work->print_bytes < 0 || work->print_bytes > 6)
        misfit("slices");
    else if ((work->bounds.multiples = PyMem_Malloc((size_t)(count + 1) * sizeof(int64_t))))
        return 0;
    else
        PyErr_NoMemory();
    close_slicer(&work->slicer);
    return -1;
}

static void close_work(work_t *work)
{
    PyMem_Free(work->bounds.multiples);
    Py_XDECREF(work->columns);
    close_slicer(&work->slicer);
}

/* ---- writing -------------------------------------------------------------------------------- */

/* There must be room for a whole word. */
static inline uint8_t *put_low_bytes(uint8_t *at, uint64_t value, Py_ssize_t count)
{
    value = word_at((const uint8_t *)&value);
    memcpy(at, &value, sizeof value);
    return at + count;
}

static uint8_t *put_slices(const work_t *work, uint8_t *at)
{
    const bounds_t *bounds = &work->bounds;
    const cuts_t *cuts = &work->cuts;
    const regions_t *regions = &work->slicer.regions;
    course_t course = {0, 0}, again = {0, 0};
    int64_t before = 0;
    *at++ = (uint8_t)bounds->exponent;
    at = put_varint(at, (uint64_t)bounds->count);
    for (Py_ssize_t row = 0; row < bounds->count; row++) {
        at = put_varint(at, (uint64_t)(bounds->multiples[row] - before));
        before = bounds->multiples[row];
    }
    for (Py_ssize_t row = 0; row < work->rows; row++)
        at = put_low_bytes(at, cuts->prints[next_end(&course, cuts, regions)], work->print_bytes);
    for (Py_ssize_t row = 0; row < work->rows; row++) {
        int64_t balance = cuts->balances[next_end(&again, cuts, regions)];
        at = put_varint(at, (uint64_t)balance << 1 ^ (balance < 0 ? UINT64_MAX : 0));
    }
    return at;
}

static PyObject *written(work_t *work)
{
    size_t row_bytes = (size_t)(2 * (MAX_VARINT_BYTES + 1) + work->print_bytes);
    uint8_t *body = PyMem_Malloc(32 + (size_t)work->rows * row_bytes);
    if (!body)
        return PyErr_NoMemory();
    Py_ssize_t size = put_slices(work, body) - body;
    PyObject *found = Py_BuildValue("y#O", (const char *)body, size, work->columns);
    PyMem_Free(body);
    return found;
}

/* cut(index, samples, numbers, bases, key, starts, ends)
 *   -> (slices of a frame, columns of their cuts), or None: the regions are no such
 *   Of about as many slices with equal counts in regions as the numbers say. The columns are
 *   those of slices.h.
 */
PyObject *kernel_cut(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    work_t work;
    if (check_arguments("cut", given, 2 + A_COLUMNS) < 0 || open_work(&work, arguments) < 0)
        return NULL;
    Py_ssize_t count = (Py_ssize_t)load(work.slicer.held.at[A_NUMBERS], N_COUNT);
    PyObject *found = NULL;
    if (!work.slicer.usual) {
        close_work(&work);
        return Py_BuildValue("");
    }
    PyThreadState *state = let_go(count * HASH_BYTES);
    choose_bounds(&work.slicer, count, &work.bounds);
    take_back(state);
    if (take_columns(&work)) {
        state = let_go(count * HASH_BYTES);
        bool fits = cut_slices(&work.slicer, &work.bounds, &work.cuts);
        take_back(state);
        found = fits ? written(&work) : Py_BuildValue("");
    }
    close_work(&work);
    return found;
}

/* ---- reading -------------------------------------------------------------------------------- */

static bool read_bounds(reader_t *from, Py_ssize_t most, bounds_t *bounds)
{
    int64_t count, step, last = 0;
    if (!left(from) || *from->at > MAX_EXPONENT)
        return false;
    bounds->exponent = *from->at++;
    int64_t largest = MAX_TIME >> bounds->exponent;
    if (!read_varint(from, &count) || count > most)
        return false;
    for (; bounds->count < count; bounds->count++) {
        if (!read_varint(from, &step) || !step || step > largest - last)
            return false;
        bounds->multiples[bounds->count] = last += step;
    }
    return true;
}

/* Which slices differ; prints and balances of their ends become by which they do, prints above what
 * a frame has of them stay one's own. False: they are malformed. */
static bool read_contents(work_t *work, reader_t *from, uint8_t *differs)
{
    const cuts_t *cuts = &work->cuts;
    const regions_t *regions = &work->slicer.regions;
    course_t course = {0, 0}, again = {0, 0};
    Py_ssize_t size = work->print_bytes;
    uint64_t mask = size ? UINT64_MAX >> (64 - 8 * size) : 0;
    if (size && work->rows > left(from) / size)
        return false;
    for (Py_ssize_t row = 0; row < work->rows; row++, from->at += size) {
        uint64_t *print = &cuts->prints[next_end(&course, cuts, regions)];
        *print ^= low_bytes(from->at, size, left(from)) & mask;
        differs[row] = !size || *print & mask;
    }
    for (Py_ssize_t row = 0; row < work->rows; row++) {
        int64_t zigzag;
        if (left(from) && *from->at < 0x80) /* most balances */
            zigzag = *from->at++;
        else if (!read_varint(from, &zigzag))
            return false;
        int64_t balance = zigzag >> 1 ^ -(zigzag & 1);
        if (balance > MAX_BALANCE || balance < -MAX_BALANCE)
            return false;
        int64_t *own = &cuts->balances[next_end(&again, cuts, regions)];
        *own -= balance;
        differs[row] |= *own != 0;
    }
    return true;
}

/* The counts of slices that do not differ, but for those at an edge of a region. */
static extremes_t counts_of_equal(const work_t *work, const uint8_t *differs)
{
    const cuts_t *cuts = &work->cuts;
    const regions_t *regions = &work->slicer.regions;
    course_t course = {0, 0}, again = {0, 0};
    extremes_t seen = NO_EXTREMES;
    int64_t total = 0;
    for (Py_ssize_t row = 0; row < work->rows; row++) {
        Py_ssize_t end = next_end(&course, cuts, regions);
        total += cuts->places[end] - cuts->places[end - 1];
    }
    counter_t counter = counter_of(&work->slicer.rows, work->rows ? total / work->rows : 0);
    for (Py_ssize_t row = 0; row < work->rows; row++) {
        Py_ssize_t region = again.region, end = next_end(&again, cuts, regions);
        bool edge = cuts->times[end - 1] == load(regions->starts, region) ||
                    cuts->times[end] == load(regions->ends, region);
        int64_t low = cuts->places[end - 1], high = cuts->places[end];
        if (!differs[row] && !edge)
            see(&seen, may_show(&seen, high - low, counter.usual) ? count_of(&counter, low, high)
                                                                  : high - low);
    }
    return seen;
}

static PyObject *compared(work_t *work, reader_t *from, const uint8_t *begin)
{
    PyObject *differs = PyBytes_FromStringAndSize(NULL, work->rows), *found = NULL;
    uint8_t *flags = differs ? (uint8_t *)PyBytes_AsString(differs) : NULL;
    if (flags && !read_contents(work, from, flags))
        found = Py_BuildValue("");
    else if (flags) {
        extremes_t equal = counts_of_equal(work, flags);
        found = Py_BuildValue("OOnLLn", work->columns, differs, equal.count,
                              (long long)few_of(&equal), (long long)many_of(&equal),
                              (Py_ssize_t)(from->at - begin));
    }
    Py_XDECREF(differs);
    return found;
}

/* compare(index, samples, numbers, bases, key, starts, ends, data, at)
 *   -> (columns of the own cuts, which slices differ, how many others there are within regions, the
 *   least and the largest count of these but for some, where the slices end in the frame), or None:
 *   they are malformed
 *   The slices of a frame, from `at` on, beside one's own; the numbers have the most bounds. Prints and
 *   balances of the columns are by which they differ.
 */
PyObject *kernel_compare(PyObject *module, PyObject *const *arguments, Py_ssize_t given)
{
    (void)module;
    work_t work;
    char *data;
    Py_ssize_t size, at;
    if (check_arguments("compare", given, 4 + A_COLUMNS) < 0 ||
        PyBytes_AsStringAndSize(arguments[2 + A_COLUMNS], &data, &size) < 0 ||
        size_argument(arguments[3 + A_COLUMNS], &at) < 0 || open_work(&work, arguments) < 0)
        return NULL;
    const uint8_t *begin = (const uint8_t *)data;
    reader_t from = {.at = begin + (at < size ? at : size), .end = begin + size};
    Py_ssize_t most = (Py_ssize_t)load(work.slicer.held.at[A_NUMBERS], N_COUNT);
    PyObject *found = NULL;
    if (!work.slicer.usual || !read_bounds(&from, most, &work.bounds))
        found = Py_BuildValue("");
    else if (take_columns(&work)) {
        PyThreadState *state = let_go(work.rows * HASH_BYTES);
        bool fits = cut_slices(&work.slicer, &work.bounds, &work.cuts);
        take_back(state);
        found = fits ? compared(&work, &from, begin) : Py_BuildValue("");
    }
    close_work(&work);
    return found;
}
