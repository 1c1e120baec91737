/* The row kernels for one instruction set and one precision. fused_set.h includes this file with

     NAME(x)         x with the suffix of set and precision
     REAL, BITS      float and int, or double and long long
     WIDTH           bytes of a vector
     MAX, MIN(a, b)  the larger, the smaller of each lane; b where either is NaN (on ARM, NaN)
     DOUBLE          1 when REAL is double: floats are then widened by WIDEN(pointer), and SINGLE(x) is the same x in float
     HALF_ROW        how a row of float16 becomes floats

   d = x - max x, so nothing overflows; -inf (a masked class) contributes exactly zero. Sums over a row are taken lane by
   lane in REAL, CHUNK columns at a time, and in double from there on. A row stays in the cache, so the table is read
   from memory once.

   A row that is no row of logits (NaN, +inf, nothing above -inf) has no score and no probabilities: d is NaN somewhere in
   it, whatever was taken for its largest entry, and NaN is what comes out. The predicted column is then any column. */

typedef REAL NAME(vector) __attribute__((vector_size(WIDTH)));
typedef BITS NAME(mask) __attribute__((vector_size(WIDTH)));
typedef unsigned BITS NAME(bits) __attribute__((vector_size(WIDTH)));
typedef long long NAME(words) __attribute__((vector_size(WIDTH)));
#define V NAME(vector)
#define M NAME(mask)
#define LANES ((Py_ssize_t)(WIDTH / sizeof(REAL)))

/* 2^z is exactly zero here and below: the least exponent less one. */
#define LEAST (DOUBLE ? (REAL)-1023.0 : (REAL)-127.0)

static inline V NAME(fill)(REAL value) {
    V v;
    for (Py_ssize_t j = 0; j < LANES; j++) v[j] = value;
    return v;
}

/* In double, by halves: the compiler keeps them in vectors. */
static inline double NAME(total)(V v) {
    double sums[WIDTH / sizeof(REAL)];
    for (Py_ssize_t j = 0; j < LANES; j++) sums[j] = (double)v[j];
    for (Py_ssize_t half = LANES / 2; half; half /= 2)
        for (Py_ssize_t j = 0; j < half; j++) sums[j] += sums[j + half];
    return sums[0];
}

static inline int NAME(any)(M mask) {
#ifdef ANY_BITS
    return ANY_BITS(mask);
#else
    const NAME(words) words = (NAME(words))mask;
    long long found = 0;
    for (Py_ssize_t j = 0; j < (Py_ssize_t)(WIDTH / sizeof(long long)); j++) found |= words[j];
    return found != 0;
#endif
}

/* 2^z for LEAST <= z <= 0: exactly 1 at 0, exactly 0 at LEAST, and nearly 0 where the result would not be a normal
   number. Adding 1.5 · 2^(bits of the fraction) rounds to the nearest integer and leaves f in [-1/2, 1/2] to a
   polynomial: the one of its degree, with p(0) = 1, whose largest relative error there is least (3e-9, 3e-16). */
static inline V NAME(exp2)(V z) {
#if DOUBLE
    const V magic = NAME(fill)(6755399441055744.0);
#else
    const V magic = NAME(fill)(12582912.0f);
#endif
    const V t = z + magic;
    const V f = z - (t - magic);
#if DOUBLE
    V p = NAME(fill)(7.1117586875578522697e-9);
    p = p * f + 1.0210506458816145144e-7;
    p = p * f + 1.3215235634776038791e-6;
    p = p * f + 1.5252647747695920464e-5;
    p = p * f + 1.5403530800818256219e-4;
    p = p * f + 1.3333558246480720455e-3;
    p = p * f + 9.6181291073807142719e-3;
    p = p * f + 5.5504108664346584048e-2;
    p = p * f + 2.4022650695910472154e-1;
    p = p * f + 6.9314718055995161623e-1;
#else
    V p = NAME(fill)(1.5594678161326619e-4f);
    p = p * f + 1.3406643902351759e-3f;
    p = p * f + 9.6176929729930623e-3f;
    p = p * f + 5.5503105510137972e-2f;
    p = p * f + 2.4022652782887737e-1f;
    p = p * f + 6.9314721496802790e-1f;
#endif
    p = p * f + (REAL)1.0;
    /* Unsigned, so that the sum may wrap around. */
    return (V)((NAME(bits))p + ((NAME(bits))t << (DOUBLE ? 52 : 23)));
}

static inline V NAME(load)(const struct row *row, Py_ssize_t j) {
    V v;
#if DOUBLE
    if (row->single) return (V)WIDEN(row->single + j);
    memcpy(&v, row->twice + j, sizeof v);
#else
    memcpy(&v, row->single + j, sizeof v);
#endif
    return v;
}

/* Where whole vectors end. What is left of the row is in NAME(last). */
static inline Py_ssize_t NAME(whole)(const struct row *row) { return row->k - row->k % LANES; }

/* Columns k - LANES to k - 1; those that whole vectors have read, or that lie before the row, are -inf. */
static inline V NAME(last)(const struct row *row) {
    const Py_ssize_t first = LANES - row->k % LANES;
    V v;
    if (row->k >= LANES) {
        v = NAME(load)(row, row->k - LANES);
        for (Py_ssize_t i = 0; i < LANES; i++) v[i] = i < first ? -(REAL)INFINITY : v[i];
        return v;
    }
    REAL rest[WIDTH / sizeof(REAL)];
    for (Py_ssize_t i = 0; i < LANES; i++) rest[i] = -(REAL)INFINITY;
    for (Py_ssize_t i = first; i < LANES; i++) rest[i] = (REAL)logit(row, row->k - LANES + i);
    memcpy(&v, rest, sizeof v);
    return v;
}

/* The largest lane; any lane where some are NaN. */
static inline REAL NAME(largest_lane)(V v) {
#if WIDTH == 64 && DOUBLE
    return _mm512_reduce_max_pd((__m512d)v);
#elif WIDTH == 64
    return _mm512_reduce_max_ps((__m512)v);
#else
    REAL best[WIDTH / sizeof(REAL)];
    memcpy(best, &v, sizeof v);
    for (Py_ssize_t half = LANES / 2; half; half /= 2)
        for (Py_ssize_t i = 0; i < half; i++) best[i] = best[i] > best[i + half] ? best[i] : best[i + half];
    return best[0];
#endif
}

/* Four running maxima: one would wait for itself. */
static inline REAL NAME(largest)(const struct row *row) {
    const Py_ssize_t whole = NAME(whole)(row);
    V a = NAME(fill)(-(REAL)INFINITY), b = a, c = a, d = a;
    Py_ssize_t j = 0;
    for (; j + 4 * LANES <= whole; j += 4 * LANES) {
        a = MAX(a, NAME(load)(row, j));
        b = MAX(b, NAME(load)(row, j + LANES));
        c = MAX(c, NAME(load)(row, j + 2 * LANES));
        d = MAX(d, NAME(load)(row, j + 3 * LANES));
    }
    for (; j < whole; j += LANES) a = MAX(a, NAME(load)(row, j));
    if (whole < row->k) b = MAX(b, NAME(last)(row));
    const V top = MAX(MAX(a, b), MAX(c, d));
    return NAME(largest_lane)(top);
}

/* The same, and a number at or below the least logit; NaN counts for nothing there. */
static inline REAL NAME(extremes)(const struct row *row, REAL *least) {
    const Py_ssize_t whole = NAME(whole)(row);
    V a = NAME(fill)(-(REAL)INFINITY), b = a, low = NAME(fill)((REAL)INFINITY), low_b = low;
    Py_ssize_t j = 0;
    for (; j + 2 * LANES <= whole; j += 2 * LANES) {
        const V x = NAME(load)(row, j), y = NAME(load)(row, j + LANES);
        a = MAX(a, x), b = MAX(b, y);
        low = MIN(x, low), low_b = MIN(y, low_b);
    }
    if (j < whole) a = MAX(a, NAME(load)(row, j)), low = MIN(NAME(load)(row, j), low);
    if (whole < row->k) b = MAX(b, NAME(last)(row));
    a = MAX(a, b), low = MIN(low, low_b);
    const REAL best = NAME(largest_lane)(a);
    REAL lowest = -NAME(largest_lane)(-low);
    for (j = whole; j < row->k; j++) lowest = logit(row, j) < (double)lowest ? (REAL)logit(row, j) : lowest;
    *least = lowest;
    return best;
}

/* The first column with this value, which the row has; four vectors are looked at together. */
static inline Py_ssize_t NAME(first_of)(const struct row *row, REAL value) {
    const V wanted = NAME(fill)(value);
    const Py_ssize_t whole = NAME(whole)(row);
    Py_ssize_t j = 0;
    for (; j + 4 * LANES <= whole; j += 4 * LANES) {
        const M hit = (NAME(load)(row, j) == wanted) | (NAME(load)(row, j + LANES) == wanted) |
                      (NAME(load)(row, j + 2 * LANES) == wanted) | (NAME(load)(row, j + 3 * LANES) == wanted);
        if (NAME(any)(hit)) break;
    }
    for (; j < row->k; j++)
        if (logit(row, j) == (double)value) return j;
    return 0;
}

/* NaN stays NaN: it is the second argument of MAX. */
static inline V NAME(exponents)(V x, V shift, V scale) { return MAX(NAME(fill)(LEAST), (x - shift) * scale); }

/* LANES values from column j on, in the precision of the output; whole vectors of that precision are copied. */
static inline void NAME(store)(V e, char *out, Py_ssize_t j, int single) {
    if (single == !DOUBLE) {
        memcpy(out + j * (Py_ssize_t)sizeof(REAL), &e, sizeof e);
    } else if (single) {
        for (Py_ssize_t t = 0; t < LANES; t++) ((float *)out)[j + t] = (float)e[t];
    } else {
        for (Py_ssize_t t = 0; t < LANES; t++) ((double *)out)[j + t] = (double)e[t];
    }
}

static inline void NAME(store_last)(V e, char *out, Py_ssize_t k, int single) {
    for (Py_ssize_t t = LANES - k % LANES; t < LANES; t++) {
        if (single) ((float *)out)[k - LANES + t] = (float)e[t];
        else ((double *)out)[k - LANES + t] = (double)e[t];
    }
}

/* The same whole number in every lane. */
static inline M NAME(number)(long long j) {
    M found;
    for (Py_ssize_t t = 0; t < LANES; t++) found[t] = (BITS)j;
    return found;
}

/* Rows of few columns, one to a lane: the logits of up to LANES rows from row i on, column by column; returns how many rows there are. */
static inline Py_ssize_t NAME(turned)(const struct table *table, Py_ssize_t i, V *x) {
    const Py_ssize_t count = table->n - i < LANES ? table->n - i : LANES;
    struct row row;
    for (Py_ssize_t t = 0; t < LANES; t++) {
        read_row(table, i + (t < count ? t : 0), &row, HALF_ROW);
        if (row.single)
            for (Py_ssize_t j = 0; j < table->k; j++) x[j][t] = (REAL)row.single[j];
        else
            for (Py_ssize_t j = 0; j < table->k; j++) x[j][t] = (REAL)row.twice[j];
    }
    return count;
}

/* The e^{b d} of a row, in the precision of the output, become its probabilities: times `scale` plus `shift`, brought
   between the limits. Where the row has masked classes, -1 stands for one; it becomes `none`. */
#define DEFINE_FINISH(name, TYPE) \
    static inline void NAME(name)( \
        TYPE *line, Py_ssize_t k, TYPE scale, TYPE shift, TYPE least, TYPE most, int masks, TYPE none \
    ) { \
        if (masks) { \
            for (Py_ssize_t j = 0; j < k; j++) { \
                TYPE p = line[j] * scale + shift; \
                p = p < least ? least : p; \
                p = p > most ? most : p; \
                line[j] = line[j] < 0 ? none : p; \
            } \
        } else { \
            for (Py_ssize_t j = 0; j < k; j++) { \
                TYPE p = line[j] * scale + shift; \
                p = p < least ? least : p; \
                line[j] = p > most ? most : p; \
            } \
        } \
    }
DEFINE_FINISH(finish_single, float)
DEFINE_FINISH(finish_twice, double)
#undef DEFINE_FINISH

/* For a row of which `possible` classes are not masked: the limits hold where another class is possible. */
static inline void NAME(finish)(
    char *out, Py_ssize_t k, int single, double scale, double shift, const struct limits *limits, Py_ssize_t possible,
    double none
) {
    const double least = possible > 1 ? limits->least : 0.0, most = possible > 1 ? limits->most : (double)INFINITY;
    if (single)
        NAME(finish_single)(
            (float *)out, k, (float)scale, (float)shift, (float)least, (float)most, possible < k, (float)none
        );
    else NAME(finish_twice)((double *)out, k, scale, shift, least, most, possible < k, none);
}

static void NAME(softmax_short)(
    const struct table *table, double b, const struct limits *limits, char *out, Py_ssize_t step, int single
) {
    const V scale = NAME(fill)((REAL)(b * LOG2_E)), zero = NAME(fill)(0), minus = NAME(fill)(-1);
    const V masked = NAME(fill)(-(REAL)INFINITY), one = NAME(fill)(1);
    const V least = NAME(fill)((REAL)limits->least), most = NAME(fill)((REAL)limits->most);
    V columns[SHORT_ROW];
    for (Py_ssize_t i = 0; i < table->n; i += LANES) {
        const Py_ssize_t count = NAME(turned)(table, i, columns);
        V top = columns[0], sum = zero;
        M bad = (M)(top != top), possible = (M)zero;
        for (Py_ssize_t j = 1; j < table->k; j++) top = MAX(top, columns[j]);
        for (Py_ssize_t j = 0; j < table->k; j++) {
            const V z = NAME(exponents)(columns[j], top, scale), e = NAME(exp2)(z);
            const M none = (M)(columns[j] == masked);
            bad |= (M)(z != z);
            sum += e;
            possible -= ~none;
            columns[j] = (V)(((M)e & ~none) | ((M)minus & none));
        }
        const V share = (V)((M)(one / sum) | bad); /* all bits set: NaN */
        const M several = (M)(possible > NAME(number)(1));
        const V low = (V)((M)least & several), high = (V)((several & (M)most) | (~several & (M)-masked));
        for (Py_ssize_t j = 0; j < table->k; j++) {
            const M none = (M)(columns[j] < zero);
            const V p = MIN(high, MAX(low, columns[j] * share));
            columns[j] = (V)((none & (M)(zero * share)) | (~none & (M)p));
        }
        for (Py_ssize_t t = 0; t < count; t++, out += step) {
            if (single)
                for (Py_ssize_t j = 0; j < table->k; j++) ((float *)out)[j] = (float)columns[j][t];
            else
                for (Py_ssize_t j = 0; j < table->k; j++) ((double *)out)[j] = (double)columns[j][t];
        }
    }
}

/* The e^{b d} of a row into `out`, -1 for a masked class if there are some; their sum, NaN if this is no row of logits. */
static inline double NAME(exponentials)(
    const struct row *row, REAL best, V scale, const int masks, char *out, int single, Py_ssize_t *possible
) {
    const Py_ssize_t whole = NAME(whole)(row);
    const V shift = NAME(fill)(best), masked = NAME(fill)(-(REAL)INFINITY), minus = NAME(fill)(-1);
    M bad = (M)(shift != shift); /* exp2 of a NaN with a payload may be anything, so NaN is looked for before */
    M n_masked = (M)NAME(fill)(0); /* counts down */
    double sum = 0.0;
    for (Py_ssize_t from = 0; from < row->k; from += CHUNK) {
        const Py_ssize_t end = from + CHUNK < whole ? from + CHUNK : whole;
        V part = NAME(fill)(0);
        for (Py_ssize_t j = from; j < end; j += LANES) {
            const V x = NAME(load)(row, j), z = NAME(exponents)(x, shift, scale);
            V e = NAME(exp2)(z);
            prefetch(row, j);
            bad |= (M)(z != z);
            part += e;
            if (masks) {
                const M none = (M)(x == masked);
                n_masked += none;
                e = (V)(((M)e & ~none) | ((M)minus & none));
            }
            NAME(store)(e, out, j, single);
        }
        sum += NAME(total)(part);
    }
    *possible = row->k;
    if (whole < row->k) {
        const V x = NAME(last)(row), z = NAME(exponents)(x, shift, scale);
        V e = NAME(exp2)(z);
        bad |= (M)(z != z);
        sum += NAME(total)(e);
        if (masks) {
            const M none = (M)(x == masked);
            n_masked += none;
            e = (V)(((M)e & ~none) | ((M)minus & none));
            *possible += LANES - row->k % LANES; /* what fills up the last vector is no class */
        }
        NAME(store_last)(e, out, row->k, single);
    }
    if (masks)
        for (Py_ssize_t t = 0; t < LANES; t++) *possible += (Py_ssize_t)n_masked[t];
    return NAME(any)(bad) ? (double)NAN : sum;
}

static void NAME(softmax)(
    const struct table *table, double b, const struct limits *limits, char *out, Py_ssize_t step, int single
) {
    if (table->k <= SHORT_ROW) {
        NAME(softmax_short)(table, b, limits, out, step, single);
        return;
    }
    struct row row;
    const V scale = NAME(fill)((REAL)(b * LOG2_E));
    for (Py_ssize_t i = 0; i < table->n; i++, out += step) {
        read_row(table, i, &row, HALF_ROW);
        REAL least = 0;
        Py_ssize_t possible;
        const REAL best = NAME(extremes)(&row, &least);
        const double sum = least == -(REAL)INFINITY
                               ? NAME(exponentials)(&row, best, scale, 1, out, single, &possible)
                               : NAME(exponentials)(&row, best, scale, 0, out, single, &possible);
        const double share = 1.0 / sum;
        NAME(finish)(out, row.k, single, share, 0.0, limits, possible, 0.0 * share);
    }
}

/* Σ e^{b d} z^k for k = 0 … 3 with z = b d log2(e), lane by lane. */
struct NAME(moments) {
    V s0, s1, s2, s3;
};

static inline void NAME(add_moments)(struct NAME(moments) *sums, V z) {
    V e = NAME(exp2)(z);
    sums->s0 += e;
    e *= z;
    sums->s1 += e;
    e *= z;
    sums->s2 += e;
    sums->s3 += e * z;
}

/* The row's loss and its derivatives in b, from its four sums, added to `sums`. */
static inline void NAME(add_row)(double s0, double s1, double s2, double s3, double own, double w, double b, double unit,
                                 double *sums) {
    const double each = 1.0 / s0, m1 = s1 * each * unit, m2 = s2 * each * unit * unit;
    const double m3 = s3 * each * unit * unit * unit;
    sums[0] += w * (log(s0) - b * own);
    sums[1] += w * (m1 - own);
    sums[2] += w * (m2 - m1 * m1);
    sums[3] += w * (m3 - m1 * (3.0 * m2 - 2.0 * m1 * m1));
}

/* Rows of few columns: LANES rows at a time, one to a lane. */
static void NAME(tempered_short)(
    const struct table *table, const long long *labels, const double *weights, double b, double *sums
) {
    const V scale = NAME(fill)((REAL)(b * LOG2_E)), zero = NAME(fill)(0);
    const double unit = 1.0 / (double)scale[0];
    V columns[SHORT_ROW];
    for (Py_ssize_t i = 0; i < table->n; i += LANES) {
        const Py_ssize_t count = NAME(turned)(table, i, columns);
        V top = columns[0];
        for (Py_ssize_t j = 1; j < table->k; j++) top = MAX(top, columns[j]);
        struct NAME(moments) m = {zero, zero, zero, zero};
        for (Py_ssize_t j = 0; j < table->k; j++) NAME(add_moments)(&m, NAME(exponents)(columns[j], top, scale));
        for (Py_ssize_t t = 0; t < count; t++) {
            const double own = (double)columns[labels[i + t]][t] - (double)top[t];
            NAME(add_row)(m.s0[t], m.s1[t], m.s2[t], m.s3[t], own, weights ? weights[i + t] : 1.0, b, unit, sums);
        }
    }
}

static void NAME(tempered)(
    const struct table *table, const long long *labels, const double *weights, double b, double *sums
) {
    if (table->k <= SHORT_ROW) {
        NAME(tempered_short)(table, labels, weights, b, sums);
        return;
    }
    struct row row;
    const V scale = NAME(fill)((REAL)(b * LOG2_E)), zero = NAME(fill)(0);
    const double unit = 1.0 / (double)scale[0];
    for (Py_ssize_t i = 0; i < table->n; i++) {
        read_row(table, i, &row, HALF_ROW);
        const Py_ssize_t whole = NAME(whole)(&row);
        const REAL best = NAME(largest)(&row);
        const V shift = NAME(fill)(best);
        double s0 = 0.0, s1 = 0.0, s2 = 0.0, s3 = 0.0;
        for (Py_ssize_t from = 0; from < row.k; from += CHUNK) {
            const Py_ssize_t end = from + CHUNK < whole ? from + CHUNK : whole;
            struct NAME(moments) m = {zero, zero, zero, zero};
            for (Py_ssize_t j = from; j < end; j += LANES) {
                prefetch(&row, j);
                NAME(add_moments)(&m, NAME(exponents)(NAME(load)(&row, j), shift, scale));
            }
            if (whole < row.k && from + CHUNK >= row.k)
                NAME(add_moments)(&m, NAME(exponents)(NAME(last)(&row), shift, scale));
            s0 += NAME(total)(m.s0);
            s1 += NAME(total)(m.s1);
            s2 += NAME(total)(m.s2);
            s3 += NAME(total)(m.s3);
        }
        const double own = logit(&row, labels[i]) - (double)best;
        NAME(add_row)(s0, s1, s2, s3, own, weights ? weights[i] : 1.0, b, unit, sums);
    }
}

/* The true class's probability under softmax(b x), under softmax(x), and among the possible classes: three numbers a
   row. */
static void NAME(members)(const struct table *table, const long long *labels, double b, double *out) {
    struct row row;
    const V tempered = NAME(fill)((REAL)(b * LOG2_E)), plain = NAME(fill)((REAL)LOG2_E), zero = NAME(fill)(0);
    const V masked = NAME(fill)(-(REAL)INFINITY);
    for (Py_ssize_t i = 0; i < table->n; i++, out += 3) {
        read_row(table, i, &row, HALF_ROW);
        const Py_ssize_t whole = NAME(whole)(&row);
        const REAL best = NAME(largest)(&row);
        const V shift = NAME(fill)(best);
        double s = 0.0, t = 0.0;
        M impossible = (M)zero; /* counts down by one for each */
        for (Py_ssize_t from = 0; from < row.k; from += CHUNK) {
            const Py_ssize_t end = from + CHUNK < whole ? from + CHUNK : whole;
            V part = zero, rest = zero;
            for (Py_ssize_t j = from; j < end; j += LANES) {
                const V x = NAME(load)(&row, j);
                prefetch(&row, j);
                part += NAME(exp2)(NAME(exponents)(x, shift, tempered));
                rest += NAME(exp2)(NAME(exponents)(x, shift, plain));
                impossible += (M)(x == masked);
            }
            s += NAME(total)(part);
            t += NAME(total)(rest);
        }
        Py_ssize_t possible = row.k;
        for (Py_ssize_t lane = 0; lane < LANES; lane++) possible += (Py_ssize_t)impossible[lane];
        if (whole < row.k) {
            const V x = NAME(last)(&row);
            s += NAME(total)(NAME(exp2)(NAME(exponents)(x, shift, tempered)));
            t += NAME(total)(NAME(exp2)(NAME(exponents)(x, shift, plain)));
            for (Py_ssize_t j = whole; j < row.k; j++) possible -= logit(&row, j) == -INFINITY;
        }
        const double own = logit(&row, labels[i]);
        out[0] = exp(b * (own - (double)best)) / s;
        out[1] = exp(own - (double)best) / t;
        out[2] = own == -INFINITY ? 0.0 : 1.0 / (double)possible;
    }
}

#include "fused_mixed.h"
#include "fused_lifted.h"
#include "fused_checks.h"
#include "fused_inside.h"

/* The second largest less the largest. */
static double NAME(margin)(const struct row *row) {
    const Py_ssize_t whole = NAME(whole)(row);
    V first = NAME(fill)(-(REAL)INFINITY), second = first;
    M bad = (M)(first != first);
    for (Py_ssize_t j = 0; j < row->k; j += LANES) {
        const V x = j < whole ? NAME(load)(row, j) : NAME(last)(row);
        bad |= (M)(x != x);
        second = MAX(second, MIN(x, first));
        first = MAX(first, x);
    }
    double a = -INFINITY, b = -INFINITY;
    for (Py_ssize_t i = 0; i < LANES; i++) {
        const double pair[2] = {(double)first[i], (double)second[i]};
        for (int t = 0; t < 2; t++) {
            if (pair[t] > a) b = a, a = pair[t];
            else if (pair[t] > b) b = pair[t];
        }
    }
    if (NAME(any)(bad) || a - a != 0.0) return (double)NAN;
    return b - a > -DBL_MAX ? b - a : -DBL_MAX;
}

#if DOUBLE
#include "fused_scores.h"
#include "fused_sums.h"
#include "fused_units.h"
#include "fused_hashes.h"
#endif

#undef V
#undef M
#undef LANES
#undef LEAST
