/* Softmax with a uniform part, whose largest probability goes through a curve if there is one, for one instruction set and
   one precision. fused_rows.h includes this file. */

#ifndef LIFTED
#define LIFTED
/* A spline as kernels/columns.py has it: its value and slope at each knot; quadratic between knots, straight outside. */
struct curve {
    const double *knots, *slopes, *heights;
    Py_ssize_t count;
};

static double on_curve(const struct curve *curve, double z) {
    const Py_ssize_t last = curve->count - 1;
    Py_ssize_t i = 0;
    if (z <= curve->knots[0]) return curve->heights[0] + curve->slopes[0] * (z - curve->knots[0]);
    if (z >= curve->knots[last]) return curve->heights[last] + curve->slopes[last] * (z - curve->knots[last]);
    while (i < last - 1 && z >= curve->knots[i + 1]) i++; /* NaN stays at the first */
    const double along = z - curve->knots[i], width = curve->knots[i + 1] - curve->knots[i];
    const double bend = (curve->slopes[i + 1] - curve->slopes[i]) / width;
    return curve->heights[i] + along * (curve->slopes[i] + 0.5 * bend * along);
}

/* What the e^{b d} of a row become: times `scale` plus `shift`, and `top` for the predicted class if there is a curve. */
struct lift {
    double scale, shift, top;
};

static struct lift lifted_row(
    double tail, double second, double possible, double uniform, const struct curve *curve
) {
    const double even = 1.0 / possible, each = (1.0 - uniform) / (1.0 + tail);
    const double rest = each * tail + uniform * (1.0 - even);
    if (!curve) return (struct lift){possible > 1.0 ? each : 1.0, possible > 1.0 ? uniform * even : 0.0, 1.0};
    struct lift found = {0.0, 0.0, 1.0};
    if (rest == 0.0) return found; /* a class alone */
    const double s = on_curve(curve, log(each + uniform * even) - log(rest));
    const double share = AHEAD * (each * second + uniform * even) / rest, most = 1.0 / (1.0 + share);
    double others = 1.0 / (1.0 + exp(s));
    found.top = 1.0 / (1.0 + exp(-s));
    if (others > most) others = most, found.top = share * most; /* never below the second class */
    found.scale = each * others / rest;
    found.shift = uniform * even * others / rest;
    return found;
}

static inline double within(const struct limits *limits, double p, double possible) {
    if (possible < 2.0) return p;
    return p < limits->least ? limits->least : p > limits->most ? limits->most : p;
}

/* A class before the predicted one whose probability rounding has made as large: the predicted one gets the next number. */
#define DEFINE_LEAD(name, TYPE, next) \
    static void name(TYPE *line, Py_ssize_t winner) { \
        int tied = 0; \
        for (Py_ssize_t j = 0; j < winner; j++) tied |= line[j] >= line[winner]; \
        if (tied) line[winner] = next(line[winner], 2); \
    }
DEFINE_LEAD(lead_single, float, nextafterf)
DEFINE_LEAD(lead_twice, double, nextafter)
#undef DEFINE_LEAD
#endif

/* The e^{b d} of a row, -1 for a masked class, become its probabilities. */
static inline void NAME(finish_lifted)(
    char *out, Py_ssize_t k, int single, const struct lift *lift, const struct limits *limits, Py_ssize_t possible,
    Py_ssize_t winner, int curved
) {
    NAME(finish)(out, k, single, lift->scale, lift->shift, limits, possible, curved ? 0.0 : 0.0 * lift->scale);
    const double top = within(limits, lift->top, (double)possible);
    if (single && curved) ((float *)out)[winner] = (float)top;
    else if (curved) ((double *)out)[winner] = top;
    else if (single) lead_single((float *)out, winner);
    else lead_twice((double *)out, winner);
}

/* Rows of few columns: LANES rows at a time, one to a lane. */
static void NAME(lifted_short)(
    const struct table *table, double b, double uniform, const struct curve *curve, const struct limits *limits, char *out,
    Py_ssize_t step, int single
) {
    const V factor = NAME(fill)((REAL)(b * LOG2_E)), zero = NAME(fill)(0), minus = NAME(fill)(-1);
    const V least = NAME(fill)(-(REAL)INFINITY);
    V columns[SHORT_ROW];
    for (Py_ssize_t i = 0; i < table->n; i += LANES) {
        const Py_ssize_t count = NAME(turned)(table, i, columns);
        V top = columns[0], tail = zero, second = zero;
        M winner = (M)zero, bad = (M)zero, tops = (M)zero, possible = NAME(number)(table->k);
        for (Py_ssize_t j = 1; j < table->k; j++) {
            const M better = (M)(columns[j] > top);
            winner = (better & NAME(number)(j)) | (~better & winner);
            top = MAX(top, columns[j]);
        }
        for (Py_ssize_t j = 0; j < table->k; j++) {
            const V z = NAME(exponents)(columns[j], top, factor), e = NAME(exp2)(z);
            const M at = (M)(z == zero), none = (M)(columns[j] == least);
            const V below = (V)((M)e & ~at);
            columns[j] = (V)(((M)e & ~none) | ((M)minus & none)); /* masked: -1 */
            bad |= (M)(z != z);
            tops -= at;
            possible += none;
            tail += below;
            second = MAX(second, below);
        }
        for (Py_ssize_t t = 0; t < count; t++, out += step) {
            const double ties = (double)(tops[t] - 1), next = ties > 0.0 ? 1.0 : (double)second[t];
            struct lift lift = lifted_row((double)tail[t] + ties, next, (double)possible[t], uniform, curve);
            const Py_ssize_t n_possible = (Py_ssize_t)possible[t];
            if (bad[t]) lift.scale = lift.shift = lift.top = (double)NAN;
            if (single)
                for (Py_ssize_t j = 0; j < table->k; j++) ((float *)out)[j] = (float)columns[j][t];
            else
                for (Py_ssize_t j = 0; j < table->k; j++) ((double *)out)[j] = (double)columns[j][t];
            NAME(finish_lifted)(out, table->k, single, &lift, limits, n_possible, (Py_ssize_t)winner[t], curve != NULL);
        }
    }
}

static void NAME(lifted)(
    const struct table *table, double b, double uniform, const struct curve *curve, const struct limits *limits, char *out,
    Py_ssize_t step, int single
) {
    if (table->k <= SHORT_ROW) {
        NAME(lifted_short)(table, b, uniform, curve, limits, out, step, single);
        return;
    }
    struct row row;
    const V factor = NAME(fill)((REAL)(b * LOG2_E)), zero = NAME(fill)(0), minus = NAME(fill)(-1);
    const V least = NAME(fill)(-(REAL)INFINITY);
    for (Py_ssize_t i = 0; i < table->n; i++, out += step) {
        read_row(table, i, &row, HALF_ROW);
        const Py_ssize_t whole = NAME(whole)(&row);
        const REAL best = NAME(largest)(&row);
        const Py_ssize_t winner = NAME(first_of)(&row, best);
        const V shift = NAME(fill)(best);
        M bad = (M)(shift != shift), tops = (M)zero, masked = (M)zero;
        V second = zero;
        double tail = 0.0;
        for (Py_ssize_t from = 0; from < row.k; from += CHUNK) {
            const Py_ssize_t end = from + CHUNK < whole ? from + CHUNK : whole;
            const int finish = whole < row.k && from + CHUNK >= row.k;
            V part = zero;
            for (Py_ssize_t j = from; j < end + finish; j += LANES) {
                const V x = j < end ? NAME(load)(&row, j) : NAME(last)(&row);
                const V z = NAME(exponents)(x, shift, factor), e = NAME(exp2)(z);
                const M top = (M)(z == zero), none = (M)(x == least);
                const V below = (V)((M)e & ~top), kept = (V)(((M)e & ~none) | ((M)minus & none)); /* masked: -1 */
                prefetch(&row, j);
                bad |= (M)(z != z);
                tops -= top;
                masked += none;
                part += below;
                second = MAX(second, below);
                if (j < end) NAME(store)(kept, out, j, single);
                else NAME(store_last)(kept, out, row.k, single);
            }
            tail += NAME(total)(part);
        }
        Py_ssize_t count = 0, possible = row.k;
        double next = 0.0;
        if (whole < row.k) possible += LANES - row.k % LANES; /* what fills up the last vector is no class */
        for (Py_ssize_t t = 0; t < LANES; t++) {
            count += (Py_ssize_t)tops[t], possible += (Py_ssize_t)masked[t];
            next = (double)second[t] > next ? (double)second[t] : next;
        }
        struct lift lift = lifted_row(tail + (double)(count - 1), count > 1 ? 1.0 : next, (double)possible, uniform, curve);
        if (NAME(any)(bad)) lift.scale = lift.shift = lift.top = (double)NAN;
        NAME(finish_lifted)(out, row.k, single, &lift, limits, possible, winner, curve != NULL);
    }
}
