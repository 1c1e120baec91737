/* The ranking scores and the prediction of one row, for one instruction set: in double whatever the table, since a
   decision must not depend on the precision of the logits. fused_rows.h includes this file where REAL is double. */

/* The largest logit and the first column that has it; comparing floats needs no widening. Unless `least` is NULL, it gets a
   number at or below the least logit. */
static inline double NAME(winner)(const struct row *row, Py_ssize_t *column, double *least) {
    if (row->single) {
        float low = 0.0f;
        const float best = least ? SINGLE(extremes)(row, &low) : SINGLE(largest)(row);
        if (least) *least = (double)low;
        *column = SINGLE(first_of)(row, best);
        return (double)best;
    }
    const double best = least ? NAME(extremes)(row, least) : NAME(largest)(row);
    *column = NAME(first_of)(row, best);
    return best;
}

/* Adds Σ e^d to sums[0] and sums[2], Σ e^d z to sums[1] and sums[3]: of two sums neither waits for the other. */
static inline void NAME(add_tail_of)(
    const struct row *row, const int single, Py_ssize_t from, Py_ssize_t to, V shift, V *sums
) {
    const V scale = NAME(fill)(LOG2_E);
    const float *const narrow = row->single;
    const double *const wide = row->twice;
    const char *const next_row = row->next;
    const Py_ssize_t size = row->size;
    V a = sums[0], b = sums[1], c = sums[2], d = sums[3], x, y;
    Py_ssize_t j = from;
    for (; j + LANES < to; j += 2 * LANES) {
        if (single) x = (V)WIDEN(narrow + j), y = (V)WIDEN(narrow + j + LANES);
        else memcpy(&x, wide + j, sizeof x), memcpy(&y, wide + j + LANES, sizeof y);
        const V z = NAME(exponents)(x, shift, scale), e = NAME(exp2)(z);
        const V next = NAME(exponents)(y, shift, scale), f = NAME(exp2)(next);
        __builtin_prefetch(next_row + j * size);
        a += e;
        b += e * z;
        c += f;
        d += f * next;
    }
    if (j < to) {
        if (single) x = (V)WIDEN(narrow + j);
        else memcpy(&x, wide + j, sizeof x);
        const V z = NAME(exponents)(x, shift, scale), e = NAME(exp2)(z);
        a += e;
        b += e * z;
    }
    sums[0] = a, sums[1] = b, sums[2] = c, sums[3] = d;
}

static inline void NAME(add_tail)(const struct row *row, Py_ssize_t from, Py_ssize_t to, V shift, V *sums) {
    if (row->single) NAME(add_tail_of)(row, 1, from, to, shift, sums);
    else NAME(add_tail_of)(row, 0, from, to, shift, sums);
}

/* S = Σ e^d and Σ e^d d over all columns but the largest, and which one that is; `least` as in winner. */
static inline Py_ssize_t NAME(tail)(const struct row *row, double *top, double *mass, double *moment, double *least) {
    Py_ssize_t skip;
    const double best = NAME(winner)(row, &skip, least);
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

/* What one score a row is made of: S and Σ e^d d as above. */
static inline double NAME(score)(int kind, double top, double mass, double moment) {
    if (moment != moment) return (double)NAN; /* the mass need not be: it is made of e^d alone */
    if (kind == ENTROPY) return log1p(mass) - moment / (1.0 + mass);
    return kind == DOUBT ? mass / (1.0 + mass) : -(top + log1p(mass));
}

/* Rows of few columns, LANES at a time, one to a lane: the two largest logits, the first column that has the largest,
   where there is a NaN, and where a finite logit may stand for a mask. */
struct NAME(leaders) {
    V top, second;
    M column, bad, deep;
};

static inline struct NAME(leaders) NAME(lead)(const V *x, Py_ssize_t k) {
    const V masked = NAME(fill)(-INFINITY), floor = NAME(fill)(LOWEST_ORDINARY);
    struct NAME(leaders) found = {x[0], masked, (M)(masked != masked), (M)(x[0] != x[0]), (M)(masked != masked)};
    found.deep = (M)(x[0] > masked) & (M)(x[0] <= floor);
    for (Py_ssize_t j = 1; j < k; j++) {
        const M better = (M)(x[j] > found.top);
        found.column = (better & NAME(number)(j)) | (~better & found.column);
        found.second = MAX(found.second, MIN(x[j], found.top));
        found.top = MAX(found.top, x[j]);
        found.bad |= (M)(x[j] != x[j]);
        found.deep |= (M)(x[j] > masked) & (M)(x[j] <= floor);
    }
    return found;
}

static void NAME(scores_short)(const struct table *table, int kind, int careful, double *out, long long *columns) {
    const V scale = NAME(fill)(LOG2_E);
    V x[SHORT_ROW];
    for (Py_ssize_t i = 0; i < table->n; i += LANES) {
        const Py_ssize_t count = NAME(turned)(table, i, x);
        const struct NAME(leaders) lead = NAME(lead)(x, table->k);
        V mass = NAME(fill)(0.0), moment = mass;
        for (Py_ssize_t j = 0; j < table->k && kind != MARGIN; j++) {
            const V z = NAME(exponents)(x[j], lead.top, scale);
            const V e = (V)((M)NAME(exp2)(z) & ~(M)(lead.column == NAME(number)(j)));
            mass += e;
            moment += e * z;
        }
        for (Py_ssize_t t = 0; t < count; t++) {
            const double top = lead.top[t], apart = lead.second[t] - top;
            double found = NAME(score)(kind, top, mass[t], moment[t] / LOG2_E);
            if (kind == MARGIN) found = apart > -DBL_MAX ? apart : -DBL_MAX;
            if (lead.bad[t] || top - top != 0.0 || (careful && lead.deep[t])) found = (double)NAN;
            out[i + t] = found;
            if (columns) columns[i + t] = lead.column[t];
        }
    }
}

/* One score a row, and, unless `columns` is NULL, the first largest column. A careful walk gives no score to a row that
   has to be looked at: one with a logit that may stand for a mask. (No row of logits has none in any case.) */
static void NAME(scores)(const struct table *table, int kind, int careful, double *out, long long *columns) {
    if (table->k <= SHORT_ROW) {
        NAME(scores_short)(table, kind, careful, out, columns);
        return;
    }
    struct row row;
    double top, mass, moment;
    Py_ssize_t column = 0;
    for (Py_ssize_t i = 0; i < table->n; i++) {
        read_row(table, i, &row, HALF_ROW);
        double least = -INFINITY;
        if (kind == MARGIN) {
            out[i] = row.single ? SINGLE(margin)(&row) : NAME(margin)(&row);
            if (columns) NAME(winner)(&row, &column, NULL);
        } else {
            if (careful) column = NAME(tail)(&row, &top, &mass, &moment, &least);
            else column = NAME(tail)(&row, &top, &mass, &moment, NULL);
            out[i] = NAME(score)(kind, top, mass, moment);
        }
        if (careful && least <= LOWEST_ORDINARY && (row.single ? SINGLE(deep)(&row) : NAME(deep)(&row))) out[i] = (double)NAN;
        if (columns) columns[i] = column;
    }
}

static void NAME(predicted)(const struct table *table, long long *out) {
    struct row row;
    Py_ssize_t column;
    V x[SHORT_ROW];
    if (table->k <= SHORT_ROW) {
        for (Py_ssize_t i = 0; i < table->n; i += LANES) {
            const Py_ssize_t count = NAME(turned)(table, i, x);
            const struct NAME(leaders) lead = NAME(lead)(x, table->k);
            for (Py_ssize_t t = 0; t < count; t++) out[i + t] = lead.column[t];
        }
        return;
    }
    for (Py_ssize_t i = 0; i < table->n; i++) {
        read_row(table, i, &row, HALF_ROW);
        for (Py_ssize_t j = 0; j < row.k; j += 64 / row.size) prefetch(&row, j);
        NAME(winner)(&row, &column, NULL);
        out[i] = column;
    }
}
