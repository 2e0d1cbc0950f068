/* What counts and balances say of slices that differ; `reconcile.compact.plan` says what it means.
 */

#include "counts.h"

#define LEEWAY 32    /* this part of it may be more or less: bounds are rounded */
#define GAP 4        /* by this part of it counts differ in a gap */
#define ONE_SIDED 6  /* or by so many times more than balances */
#define ROUNDED 2    /* IDs more or less, because equal counts are rounded */
#define ENOUGH 5     /* slices without a gap that show how counts vary */
#define NAMED_BYTES 6
#define TABLE_BYTES 11
#define MOST_USUAL (INT64_C(1) << 40)

enum { U_LOWER, U_UPPER, U_LOW, U_HIGH, U_APART, U_SINGLE, U_STARTS, U_ENDS, U_NUMBERS,
       U_LISTED };
/* What is in the numbers: the usual count, how many IDs may be listed (none: they are not), and how
 * many slices are equal, and the extremes of their counts. */
enum { V_USUAL, V_MOST_LISTED, V_EQUAL, V_FEW, V_MANY, NUMBERS };

/* Sums over some slices. */
typedef struct {
    Py_ssize_t slices, single, silent; /* of them those that differ by a balance of 1, and of 0 */
    int64_t in_gaps;                   /* differences, by counts; the other sums are without these */
    double size, squares, fourth, floored;
} weights_t;

typedef struct {
    int64_t count; /* what is of one time is no more than usual */
    int64_t least, most;
    bool cut_off, worth;
} slice_t;

typedef struct {
    const rows_t *rows;
    const columns *held;
    slice_t *slices;
    Py_ssize_t count;
    int64_t usual;
    bool listed;
} survey_t;

static inline int64_t at(const survey_t *survey, int column, Py_ssize_t row)
{
    return load(survey->held->at[column], row);
}

static inline int64_t size_of_slice(const survey_t *survey, Py_ssize_t row)
{
    return at(survey, U_HIGH, row) - at(survey, U_LOW, row);
}

static inline int64_t magnitude(int64_t value)
{
    return value < 0 ? -value : value;
}

/* ---- counts -------------------------------------------------------------------------------- */

static bool survey_fits(const survey_t *survey)
{
    const columns *held = survey->held;
    for (int column = U_UPPER; column <= U_SINGLE; column++)
        if (held->rows[column] != survey->count)
            return false;
    if (held->rows[U_STARTS] != held->rows[U_ENDS] || held->rows[U_NUMBERS] != NUMBERS ||
        held->rows[U_LISTED] != survey->count || survey->usual < 0 || survey->usual > MOST_USUAL)
        return false;
    int64_t few = at(survey, U_NUMBERS, V_FEW), many = at(survey, U_NUMBERS, V_MANY);
    if (few < 0 || many < few || many > MOST_USUAL)
        return false;
    int64_t before = 0;
    for (Py_ssize_t row = 0; row < survey->count; row++) {
        int64_t low = at(survey, U_LOW, row), high = at(survey, U_HIGH, row);
        int64_t apart = at(survey, U_APART, row);
        if (low < before || high < low || high > survey->rows->length || apart > MOST_USUAL ||
            apart < -MOST_USUAL)
            return false;
        before = high;
    }
    return true;
}

static void count_ids(const survey_t *survey)
{
    Py_ssize_t region = 0, regions = survey->held->rows[U_STARTS];
    counter_t counter = counter_of(survey->rows, survey->usual);
    for (Py_ssize_t row = 0; row < survey->count; row++) {
        int64_t lower = at(survey, U_LOWER, row);
        int64_t count = count_of(&counter, at(survey, U_LOW, row), at(survey, U_HIGH, row));
        while (region + 1 < regions && at(survey, U_STARTS, region + 1) <= lower)
            region++;
        bool edge = regions && (at(survey, U_STARTS, region) == lower ||
                                at(survey, U_ENDS, region) == at(survey, U_UPPER, row));
        survey->slices[row] = (slice_t){.count = count, .cut_off = edge && count < survey->usual};
    }
}

/* ---- gaps ---------------------------------------------------------------------------------- */

/* The least and the largest count of a slice without a gap, but for some. */
static void ordinary(const survey_t *survey, int64_t *few, int64_t *many)
{
    extremes_t seen = NO_EXTREMES;
    int64_t usual = survey->usual, equal = at(survey, U_NUMBERS, V_EQUAL);
    for (Py_ssize_t row = 0; row < survey->count; row++) {
        const slice_t *slice = &survey->slices[row];
        if (survey->held->at[U_SINGLE][row] && !slice->cut_off)
            see(&seen, slice->count);
    }
    *few = usual - usual / LEEWAY - ROUNDED;
    *many = usual + usual / LEEWAY + ROUNDED;
    if (equal < ENOUGH && seen.count < ENOUGH)
        return;
    bool by_equal = equal >= seen.count;
    int64_t least = by_equal ? at(survey, U_NUMBERS, V_FEW) : few_of(&seen);
    int64_t largest = by_equal ? at(survey, U_NUMBERS, V_MANY) : many_of(&seen);
    *few = (least < usual ? least : usual) - ROUNDED;
    *many = (largest > usual ? largest : usual) + ROUNDED;
}

/* Which slices are in a gap, and how many differences they have; whether some is. */
static bool find_gaps(const survey_t *survey)
{
    int64_t few, many, usual = survey->usual;
    bool some = false;
    ordinary(survey, &few, &many);
    int64_t beside = (many - few) / 2 + 1;
    int64_t lowest = few - beside > few >> 1 ? few - beside : few >> 1;
    int64_t highest = many + beside < 2 * many ? many + beside : 2 * many;
    for (Py_ssize_t row = 0; row < survey->count; row++) {
        slice_t *slice = &survey->slices[row];
        int64_t count = slice->count, clear = magnitude(count - usual);
        int64_t least = few - count > count - many ? few - count : count - many;
        if (least <= 0 || (count > lowest && count < highest))
            continue;
        bool is_gap = GAP * clear >= usual ||
                      clear >= ONE_SIDED * magnitude(at(survey, U_APART, row));
        slice->worth = is_gap && NAMED_BYTES * count < TABLE_BYTES * clear;
        if (slice->cut_off)
            continue;
        slice->least = least;
        slice->most = is_gap ? least + many - few : 0;
        some |= is_gap;
    }
    return some;
}

/* Which slices are named ID by ID: those that are worth it, and those beside them, because where a
 * gap ends neither counts nor balances say much. None, if that would be too many IDs. */
static void list_slices(survey_t *survey)
{
    uint8_t *listed = survey->held->at[U_LISTED];
    int64_t left = at(survey, U_NUMBERS, V_MOST_LISTED);
    bool worth_it = left > 0;
    for (Py_ssize_t row = 0; worth_it && row < survey->count; row++) {
        bool worth = survey->slices[row].worth;
        if (row)
            worth |= survey->slices[row - 1].worth &&
                     at(survey, U_UPPER, row - 1) == at(survey, U_LOWER, row);
        if (row + 1 < survey->count)
            worth |= survey->slices[row + 1].worth &&
                     at(survey, U_UPPER, row) == at(survey, U_LOWER, row + 1);
        listed[row] = worth && !survey->held->at[U_SINGLE][row];
        survey->listed |= listed[row];
        left -= listed[row] ? size_of_slice(survey, row) : 0;
        worth_it = left >= 0;
    }
    for (Py_ssize_t row = 0; !worth_it && row < survey->count; row++)
        listed[row] = 0;
    survey->listed &= worth_it;
}

/* ---- sums ---------------------------------------------------------------------------------- */

static void weigh(const survey_t *survey, Py_ssize_t row, weights_t *sums)
{
    const slice_t *slice = &survey->slices[row];
    int64_t size = magnitude(at(survey, U_APART, row));
    double square = (double)size * (double)size;
    sums->slices++;
    sums->single += size == 1;
    sums->in_gaps += slice->most;
    if (slice->most)
        return;
    sums->silent += !size;
    sums->size += (double)size;
    sums->squares += square;
    sums->fourth += square * square;
    sums->floored += square > (double)slice->least ? square : (double)slice->least;
}

static PyObject *as_tuple(const weights_t *sums)
{
    return Py_BuildValue("nnnLdddd", sums->slices, sums->single, sums->silent,
                         (long long)sums->in_gaps, sums->size, sums->squares, sums->fourth,
                         sums->floored);
}

static PyObject *surveyed(survey_t *survey)
{
    weights_t all = {0}, rest = {0};
    PyThreadState *state = let_go(survey->count * HASH_BYTES);
    count_ids(survey);
    bool some = find_gaps(survey);
    list_slices(survey);
    for (Py_ssize_t row = 0; row < survey->count; row++) {
        weigh(survey, row, &all);
        if (!survey->held->at[U_SINGLE][row] && !survey->held->at[U_LISTED][row])
            weigh(survey, row, &rest);
    }
    take_back(state);
    return Py_BuildValue("NNii", as_tuple(&all), as_tuple(&rest), some, survey->listed);
}

/* survey_slices(index, lower, upper, low, high, apart, single, starts, ends, numbers, listed)
 *   -> (sums over all slices, over those that are neither single nor listed, whether some is in a
 *   gap, whether some is listed)
 *   Of ascending slices with times and places, the balances by which they differ, and which differ
 *   in one ID; those at an edge of a region are small anyway, if there are such.
 */
static PyObject *work_survey_slices(const rows_t *rows, columns *held)
{
    survey_t survey = {.rows = rows, .held = held, .count = held->rows[U_LOWER]};
    survey.usual = held->rows[U_NUMBERS] ? at(&survey, U_NUMBERS, V_USUAL) : -1;
    if (!survey_fits(&survey))
        return NULL;
    survey.slices = PyMem_Calloc((size_t)survey.count + 1, sizeof *survey.slices);
    PyObject *found = survey.slices ? surveyed(&survey) : PyErr_NoMemory();
    PyMem_Free(survey.slices);
    return found;
}

CALL(survey_slices, INDEXED, READ(8), READ(8), READ(8), READ(8), READ(8), READ(1), READ(8), READ(8),
     READ(8), WRITTEN(1))
