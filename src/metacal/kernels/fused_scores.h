/* The ranking scores and the prediction of one row, for one instruction set: in double whatever the table, since a
   decision must not depend on the precision of the logits. fused_rows.h includes this file where REAL is double. */

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

/* Adds Σ e^d to sums[0] and sums[2], Σ e^d z to sums[1] and sums[3]: of two sums neither waits for the other. */
static inline void NAME(add_tail)(const struct row *row, Py_ssize_t from, Py_ssize_t to, V shift, V *sums) {
    const V scale = NAME(fill)(LOG2_E);
    for (Py_ssize_t j = from; j < to; j += 2 * LANES) {
        const V z = NAME(exponents)(NAME(load)(row, j), shift, scale), e = NAME(exp2)(z);
        prefetch(row, j);
        sums[0] += e;
        sums[1] += e * z;
        if (j + LANES >= to) break;
        const V next = NAME(exponents)(NAME(load)(row, j + LANES), shift, scale), f = NAME(exp2)(next);
        sums[2] += f;
        sums[3] += f * next;
    }
}

/* S = Σ e^d and Σ e^d d over all columns but the largest, and which one that is. */
static Py_ssize_t NAME(tail)(const struct row *row, double *top, double *mass, double *moment) {
    Py_ssize_t skip;
    const double best = NAME(winner)(row, &skip);
    const Py_ssize_t whole = NAME(whole)(row), at = skip - skip % LANES;
    const V shift = NAME(fill)(best), scale = NAME(fill)(LOG2_E);
    V sums[4] = {NAME(fill)(0.0), NAME(fill)(0.0), NAME(fill)(0.0), NAME(fill)(0.0)};
    NAME(add_tail)(row, 0, at, shift, sums);
    if (at < whole) NAME(add_tail)(row, at + LANES, whole, shift, sums);
    for (int part = 0; part < 2; part++) { /* the winner's vector, and what whole vectors leave */
        if (part ? whole == row->k : at == whole) continue;
        const V z = NAME(exponents)(part ? NAME(last)(row) : NAME(load)(row, at), shift, scale);
        V e = NAME(exp2)(z);
        if (!part) e[skip - at] = 0.0;
        else if (at == whole) e[LANES - row->k + skip] = 0.0;
        sums[0] += e;
        sums[1] += e * z;
    }
    *top = best;
    *mass = NAME(total)(sums[0] + sums[2]);
    *moment = NAME(total)(sums[1] + sums[3]) / LOG2_E;
    return skip;
}

/* One score a row, and, unless `columns` is NULL, the first largest column. A careful walk gives no score to a row that
   has to be looked at: one with a logit that may stand for a mask. (No row of logits has none in any case.) */
static void NAME(scores)(const struct table *table, int kind, int careful, double *out, long long *columns) {
    struct row row;
    double top, mass, moment;
    Py_ssize_t column = 0;
    for (Py_ssize_t i = 0; i < table->n; i++) {
        read_row(table, i, &row, HALF_ROW);
        if (kind == MARGIN) {
            out[i] = row.single ? SINGLE(margin)(&row) : NAME(margin)(&row);
            if (columns) NAME(winner)(&row, &column);
        } else {
            column = NAME(tail)(&row, &top, &mass, &moment);
            if (moment != moment) out[i] = (double)NAN; /* the mass need not be: it is made of e^d alone */
            else if (kind == ENTROPY) out[i] = log1p(mass) - moment / (1.0 + mass);
            else if (kind == DOUBT) out[i] = mass / (1.0 + mass);
            else out[i] = -(top + log1p(mass));
        }
        if (careful && (row.single ? SINGLE(deep)(&row) : NAME(deep)(&row))) out[i] = (double)NAN;
        if (columns) columns[i] = column;
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
