/* The row kernels for one instruction set and one precision. fused.c includes this file with

     NAME(x)         x with the suffix of set and precision
     REAL, BITS      float and int, or double and long long
     WIDTH           bytes of a vector
     DOUBLE          1 when REAL is double: floats are then widened by WIDEN(pointer), and SINGLE(x) is the same x in float
     HALF_ROW        how a row of float16 becomes floats

   d = x - max x, so nothing overflows; -inf (a masked class) contributes exactly zero. Sums over a row are taken lane by
   lane in REAL, CHUNK columns at a time, and in double from there on. A row stays in the cache, so the table is read from memory once. */

typedef REAL NAME(vector) __attribute__((vector_size(WIDTH)));
typedef BITS NAME(mask) __attribute__((vector_size(WIDTH)));
typedef unsigned BITS NAME(bits) __attribute__((vector_size(WIDTH)));
#define V NAME(vector)
#define M NAME(mask)
#define LANES ((Py_ssize_t)(WIDTH / sizeof(REAL)))

static inline V NAME(fill)(REAL value) {
    V v;
    for (Py_ssize_t j = 0; j < LANES; j++) v[j] = value;
    return v;
}

static inline V NAME(select)(M mask, V yes, V no) { return (V)((mask & (M)yes) | (~mask & (M)no)); }

static inline double NAME(total)(V v) {
    double sum = 0.0;
    for (Py_ssize_t j = 0; j < LANES; j++) sum += (double)v[j];
    return sum;
}

/* 2^z for z <= 0: exactly 1 at 0, exactly 0 below the smallest normal number. Adding 1.5 · 2^(bits of the fraction)
   rounds to the nearest integer and leaves f in [-1/2, 1/2] to a Taylor polynomial. */
static inline V NAME(exp2)(V z) {
#if DOUBLE
    const V magic = NAME(fill)(6755399441055744.0);
    const M live = z >= NAME(fill)(-1022.0);
#else
    const V magic = NAME(fill)(12582912.0f);
    const M live = z >= NAME(fill)(-126.0f);
#endif
    const V t = z + magic;
    const V f = z - (t - magic);
#if DOUBLE
    V p = NAME(fill)(EXP2_11);
    p = p * f + EXP2_10;
    p = p * f + EXP2_9;
    p = p * f + EXP2_8;
    p = p * f + EXP2_7;
#else
    V p = NAME(fill)((REAL)EXP2_7);
#endif
    p = p * f + (REAL)EXP2_6;
    p = p * f + (REAL)EXP2_5;
    p = p * f + (REAL)EXP2_4;
    p = p * f + (REAL)EXP2_3;
    p = p * f + (REAL)EXP2_2;
    p = p * f + (REAL)EXP2_1;
    p = p * f + (REAL)1.0;
    /* Unsigned, so that lanes which are not live may wrap around. */
    p = (V)((NAME(bits))p + ((NAME(bits))t << (DOUBLE ? 52 : 23)));
    return (V)((M)p & live);
}

/* LANES logits from column j on; lanes beyond the row are -inf. */
static inline V NAME(load)(const struct row *row, Py_ssize_t j) {
    V v;
    if (j + LANES <= row->k) {
#if DOUBLE
        if (row->single) return (V)WIDEN(row->single + j);
        memcpy(&v, row->twice + j, sizeof v);
#else
        memcpy(&v, row->single + j, sizeof v);
#endif
        return v;
    }
    REAL rest[WIDTH / sizeof(REAL)];
    for (Py_ssize_t i = 0; i < LANES; i++) rest[i] = -(REAL)INFINITY;
    for (Py_ssize_t i = 0; i < row->k - j; i++) rest[i] = (REAL)logit(row, j + i);
    memcpy(&v, rest, sizeof v);
    return v;
}

static REAL NAME(largest)(const struct row *row) {
    V top = NAME(load)(row, 0);
    for (Py_ssize_t j = LANES; j < row->k; j += LANES) {
        const V x = NAME(load)(row, j);
        top = NAME(select)(x > top, x, top);
    }
    REAL best = top[0];
    for (Py_ssize_t i = 1; i < LANES; i++) best = top[i] > best ? top[i] : best;
    return best;
}

/* LANES values from column j on, in the precision of the output; whole vectors of that precision are copied. */
static inline void NAME(store)(V e, char *out, Py_ssize_t j, Py_ssize_t k, int single) {
    const Py_ssize_t count = k - j < LANES ? k - j : LANES;
    if (count == LANES && single == !DOUBLE) {
        memcpy(out + j * (Py_ssize_t)sizeof(REAL), &e, sizeof e);
    } else if (single) {
        for (Py_ssize_t t = 0; t < count; t++) ((float *)out)[j + t] = (float)e[t];
    } else {
        for (Py_ssize_t t = 0; t < count; t++) ((double *)out)[j + t] = (double)e[t];
    }
}

static void NAME(softmax)(const struct table *table, double b, char *out, Py_ssize_t step, int single) {
    struct row row;
    const V scale = NAME(fill)((REAL)(b * LOG2_E));
    for (Py_ssize_t i = 0; i < table->n; i++, out += step) {
        read_row(table, i, &row, HALF_ROW);
        const V shift = NAME(fill)(NAME(largest)(&row));
        double whole = 0.0;
        for (Py_ssize_t from = 0; from < row.k; from += CHUNK) {
            const Py_ssize_t end = from + CHUNK < row.k ? from + CHUNK : row.k;
            V sum = NAME(fill)(0);
            for (Py_ssize_t j = from; j < end; j += LANES) {
                const V e = NAME(exp2)((NAME(load)(&row, j) - shift) * scale);
                sum += e;
                NAME(store)(e, out, j, row.k, single);
            }
            whole += NAME(total)(sum);
        }
        const double share = 1.0 / whole;
        if (single)
            for (Py_ssize_t j = 0; j < row.k; j++) ((float *)out)[j] *= (float)share;
        else
            for (Py_ssize_t j = 0; j < row.k; j++) ((double *)out)[j] *= share;
    }
}

static void NAME(tempered)(
    const struct table *table, const long long *labels, const double *weights, double b, double *sums
) {
    struct row row;
    const V scale = NAME(fill)((REAL)(b * LOG2_E)), least = NAME(fill)((REAL)((DOUBLE ? -800.0 : -100.0) / b));
    for (Py_ssize_t i = 0; i < table->n; i++) {
        read_row(table, i, &row, HALF_ROW);
        const REAL best = NAME(largest)(&row);
        const V shift = NAME(fill)(best);
        double whole = 0.0, m1 = 0.0, m2 = 0.0, m3 = 0.0;
        for (Py_ssize_t from = 0; from < row.k; from += CHUNK) {
            const Py_ssize_t end = from + CHUNK < row.k ? from + CHUNK : row.k;
            V s0 = NAME(fill)(0), s1 = s0, s2 = s0, s3 = s0;
            for (Py_ssize_t j = from; j < end; j += LANES) {
                V d = NAME(load)(&row, j) - shift;
                d = NAME(select)(d > least, d, least);
                V e = NAME(exp2)(d * scale);
                s0 += e;
                e *= d;
                s1 += e;
                e *= d;
                s2 += e;
                s3 += e * d;
            }
            whole += NAME(total)(s0);
            m1 += NAME(total)(s1);
            m2 += NAME(total)(s2);
            m3 += NAME(total)(s3);
        }
        m1 /= whole, m2 /= whole, m3 /= whole;
        const double own = logit(&row, labels[i]) - (double)best;
        const double w = weights ? weights[i] : 1.0;
        sums[0] += w * (log(whole) - b * own);
        sums[1] += w * (m1 - own);
        sums[2] += w * (m2 - m1 * m1);
        sums[3] += w * (m3 - m1 * (3.0 * m2 - 2.0 * m1 * m1));
    }
}

static Py_ssize_t NAME(first_of)(const struct row *row, REAL value) {
    const V wanted = NAME(fill)(value);
    for (Py_ssize_t j = 0; j < row->k; j += LANES) {
        const M hit = NAME(load)(row, j) == wanted;
        BITS any = 0;
        for (Py_ssize_t i = 0; i < LANES; i++) any |= hit[i];
        if (!any) continue;
        for (Py_ssize_t i = 0; i < LANES; i++)
            if (hit[i]) return j + i;
    }
    return 0;
}

#if DOUBLE /* Scores are always computed in double: a decision must not depend on the precision of the table. */

/* The largest logit and the first column that has it; comparing floats needs no widening. */
static inline double NAME(winner)(const struct row *row, Py_ssize_t *column) {
    if (row->single) {
        const float best = SINGLE(largest)(row);
        *column = SINGLE(first_of)(row, best);
        return (double)best;
    }
    const double best = NAME(largest)(row);
    *column = NAME(first_of)(row, best);
    return best;
}

/* S = Σ e^d and Σ e^d d over all columns but the largest. */
static void NAME(tail)(const struct row *row, double *top, double *mass, double *moment) {
    Py_ssize_t skip;
    const double best = NAME(winner)(row, &skip);
    const Py_ssize_t at = skip - skip % LANES;
    const V shift = NAME(fill)(best), scale = NAME(fill)(LOG2_E), least = NAME(fill)(-800.0);
    V s = NAME(fill)(0.0), m = s;
    for (Py_ssize_t j = 0; j < row->k; j += LANES) {
        if (j == at) continue;
        V d = NAME(load)(row, j) - shift;
        d = NAME(select)(d > least, d, least);
        const V e = NAME(exp2)(d * scale);
        s += e;
        m += e * d;
    }
    V d = NAME(load)(row, at) - shift;
    d = NAME(select)(d > least, d, least);
    V e = NAME(exp2)(d * scale);
    e[skip - at] = 0.0;
    s += e;
    m += e * d;
    *top = best;
    *mass = NAME(total)(s);
    *moment = NAME(total)(m);
}

static double NAME(margin)(const struct row *row) {
    V first = NAME(fill)(-INFINITY), second = first;
    for (Py_ssize_t j = 0; j < row->k; j += LANES) {
        const V x = NAME(load)(row, j);
        const V low = NAME(select)(x > first, first, x);
        first = NAME(select)(x > first, x, first);
        second = NAME(select)(low > second, low, second);
    }
    double a = -INFINITY, b = -INFINITY;
    for (Py_ssize_t i = 0; i < LANES; i++) {
        const double pair[2] = {first[i], second[i]};
        for (int t = 0; t < 2; t++) {
            if (pair[t] > a) b = a, a = pair[t];
            else if (pair[t] > b) b = pair[t];
        }
    }
    return b - a > -DBL_MAX ? b - a : -DBL_MAX;
}

static void NAME(scores)(const struct table *table, int kind, double *out) {
    struct row row;
    double top, mass, moment;
    for (Py_ssize_t i = 0; i < table->n; i++) {
        read_row(table, i, &row, HALF_ROW);
        if (kind == MARGIN) {
            out[i] = NAME(margin)(&row);
            continue;
        }
        NAME(tail)(&row, &top, &mass, &moment);
        if (kind == ENTROPY) out[i] = log1p(mass) - moment / (1.0 + mass);
        else if (kind == DOUBT) out[i] = mass / (1.0 + mass);
        else out[i] = -(top + log1p(mass));
    }
}

static void NAME(predicted)(const struct table *table, long long *out) {
    struct row row;
    Py_ssize_t column;
    for (Py_ssize_t i = 0; i < table->n; i++) {
        read_row(table, i, &row, HALF_ROW);
        NAME(winner)(&row, &column);
        out[i] = column;
    }
}

#endif

#undef V
#undef M
#undef LANES
