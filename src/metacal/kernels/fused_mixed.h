/* What each row says of a temperature with a uniform part, for one instruction set and one precision. fused_rows.h
   includes this file.

   With d = x - max x a row has ROW_COLUMNS numbers: its tail Σ e^{b d} - 1, without cancellation; the first four cumulants
   of d under softmax(b x); d of the true class; how many classes are possible; whether it is right. Column by column:
   number c of row i is out[c * stride + i]. */

/* Σ e^{b d} z^k for k = 0 … 4 with z = b d log2(e), without the entries at the top, whose number is counted, and the
   number of masked entries, counted down. */
struct NAME(beside) {
    V s0, s1, s2, s3, s4;
    M tops, masked;
};

static inline void NAME(add_beside)(struct NAME(beside) *sums, V x, V z) {
    const M top = (M)(z == NAME(fill)(0));
    V e = (V)((M)NAME(exp2)(z) & ~top);
    sums->tops -= top;
    sums->masked += (M)(x == NAME(fill)(-(REAL)INFINITY));
    sums->s0 += e;
    e *= z;
    sums->s1 += e;
    e *= z;
    sums->s2 += e;
    e *= z;
    sums->s3 += e;
    sums->s4 += e * z;
}

static inline void NAME(row_columns)(double tail, const double *s, double unit, Py_ssize_t n, double *out) {
    const double each = 1.0 / (1.0 + tail), twice = unit * unit;
    const double m1 = s[0] * each * unit, m2 = s[1] * each * twice;
    const double m3 = s[2] * each * unit * twice, m4 = s[3] * each * twice * twice;
    out[0] = tail;
    out[n] = m1;
    out[2 * n] = m2 - m1 * m1;
    out[3 * n] = m3 - m1 * (3.0 * m2 - 2.0 * m1 * m1);
    out[4 * n] = m4 - 4.0 * m3 * m1 - 3.0 * m2 * m2 + 6.0 * m1 * m1 * (2.0 * m2 - m1 * m1);
}

/* Whether the true class, which has the largest logit, is the first that has. */
static inline int NAME(leads)(const struct row *row, Py_ssize_t label, Py_ssize_t tops) {
    if (tops == 1) return 1;
    const double best = logit(row, label);
    for (Py_ssize_t j = 0; j < label; j++)
        if (logit(row, j) == best) return 0;
    return 1;
}

static inline void NAME(row_label)(const struct row *row, Py_ssize_t label, double best, Py_ssize_t tops, Py_ssize_t n,
                                   double *out) {
    const double own = logit(row, label) - best;
    out[5 * n] = own;
    out[7 * n] = own == 0.0 && NAME(leads)(row, label, tops);
}

/* Rows of few columns: LANES rows at a time, one to a lane. */
static void NAME(mixed_short)(
    const struct table *table, const long long *labels, double b, double *out, Py_ssize_t stride
) {
    const V scale = NAME(fill)((REAL)(b * LOG2_E)), zero = NAME(fill)(0);
    const double unit = 1.0 / (double)scale[0];
    struct row row;
    V columns[SHORT_ROW];
    for (Py_ssize_t i = 0; i < table->n; i += LANES) {
        const Py_ssize_t count = NAME(turned)(table, i, columns);
        V top = columns[0];
        for (Py_ssize_t j = 1; j < table->k; j++) top = MAX(top, columns[j]);
        struct NAME(beside) m = {zero, zero, zero, zero, zero, (M)zero, (M)zero};
        for (Py_ssize_t j = 0; j < table->k; j++)
            NAME(add_beside)(&m, columns[j], NAME(exponents)(columns[j], top, scale));
        for (Py_ssize_t t = 0; t < count; t++) {
            double *found = out + i + t;
            read_row(table, i + t, &row, HALF_ROW);
            const double s[4] = {(double)m.s1[t], (double)m.s2[t], (double)m.s3[t], (double)m.s4[t]};
            NAME(row_columns)((double)m.s0[t] + (double)(m.tops[t] - 1), s, unit, stride, found);
            found[6 * stride] = (double)(table->k + m.masked[t]);
            NAME(row_label)(&row, (Py_ssize_t)labels[i + t], (double)top[t], (Py_ssize_t)m.tops[t], stride,
                            found);
        }
    }
}

static void NAME(mixed)(
    const struct table *table, const long long *labels, double b, double *out, Py_ssize_t stride
) {
    if (table->k <= SHORT_ROW) {
        NAME(mixed_short)(table, labels, b, out, stride);
        return;
    }
    struct row row;
    const V scale = NAME(fill)((REAL)(b * LOG2_E)), zero = NAME(fill)(0);
    const double unit = 1.0 / (double)scale[0];
    for (Py_ssize_t i = 0; i < table->n; i++, out++) {
        read_row(table, i, &row, HALF_ROW);
        const Py_ssize_t whole = NAME(whole)(&row);
        const REAL best = NAME(largest)(&row);
        const V shift = NAME(fill)(best);
        double s0 = 0.0, s[4] = {0.0, 0.0, 0.0, 0.0};
        struct NAME(beside) m = {zero, zero, zero, zero, zero, (M)zero, (M)zero};
        for (Py_ssize_t from = 0; from < row.k; from += CHUNK) {
            const Py_ssize_t end = from + CHUNK < whole ? from + CHUNK : whole;
            m.s0 = m.s1 = m.s2 = m.s3 = m.s4 = zero;
            for (Py_ssize_t j = from; j < end; j += LANES) {
                const V x = NAME(load)(&row, j);
                prefetch(&row, j);
                NAME(add_beside)(&m, x, NAME(exponents)(x, shift, scale));
            }
            if (whole < row.k && from + CHUNK >= row.k) {
                const V x = NAME(last)(&row);
                NAME(add_beside)(&m, x, NAME(exponents)(x, shift, scale));
            }
            s0 += NAME(total)(m.s0);
            s[0] += NAME(total)(m.s1);
            s[1] += NAME(total)(m.s2);
            s[2] += NAME(total)(m.s3);
            s[3] += NAME(total)(m.s4);
        }
        Py_ssize_t tops = 0, possible = row.k;
        if (whole < row.k) possible += LANES - row.k % LANES; /* what fills up the last vector is no class */
        for (Py_ssize_t t = 0; t < LANES; t++) tops += (Py_ssize_t)m.tops[t], possible += (Py_ssize_t)m.masked[t];
        NAME(row_columns)(s0 + (double)(tops - 1), s, unit, stride, out);
        out[6 * stride] = (double)possible;
        NAME(row_label)(&row, (Py_ssize_t)labels[i], (double)best, tops, stride, out);
    }
}
