/* Sums of probabilities in whole units, as kernels/exact.py has them, for one instruction set: exact in whatever order.
   fused_rows.h includes this file where REAL is double. */

/* Take an entry off the bin it lies in, unless that is the first: with edges e, bin b holds e[b] < p <= e[b + 1].

   An entry is a probability, or hardly above 1. Anything else has no meaning here, but must neither leave the bins nor
   overflow the sums: a cast to an integer is defined only for a number that the integer can hold. So the first guess at
   the bin is a cast only where p lies in (0, 1), and at most 2 is taken off. */
static inline void NAME(take_off)(double p, const struct bins *bins, long long *coarse, long long *fine) {
    const Py_ssize_t last = bins->n - 1;
    if (!last || !(p > bins->edges[1])) return; /* NaN too */
    Py_ssize_t b = p >= 1.0 ? last : 0;
    if (p > 0.0 && p < 1.0) b = (Py_ssize_t)(p * (double)bins->n);
    b = b > last ? last : b;
    while (b > 1 && !(p > bins->edges[b])) b--;
    while (b < last && p > bins->edges[b + 1]) b++;
    const double bounded = p < MOST_TAKEN_OFF ? (p > -MOST_TAKEN_OFF ? p : -MOST_TAKEN_OFF) : MOST_TAKEN_OFF;
    const double whole = (bounded + COARSE_SHIFT) - COARSE_SHIFT;
    const double rest = ((bounded - whole) + FINE_SHIFT) - FINE_SHIFT;
    coarse[b] -= (long long)(whole * COARSE_UNITS);
    fine[b] -= (long long)(rest * FINE_UNITS);
}

static inline void NAME(add_to)(double *sums, V more) {
    V sum;
    memcpy(&sum, sums, sizeof sum);
    sum += more;
    memcpy(sums, &sum, sizeof sum);
}

/* Column sums, and bins of each column, of the rows that are not accepted and of those that are: totals has the coarse
   units of either, then the fine ones, a number for each column; bins->above the same for each column and bin. */
static void NAME(class_units)(const struct table *table, const unsigned char *accept, const struct bins *bins,
                              double *totals) {
    const Py_ssize_t k = table->k, n = bins->n;
    const V to_coarse = NAME(fill)(COARSE_SHIFT), to_fine = NAME(fill)(FINE_SHIFT), edge = NAME(fill)(bins->edges[1]);
    struct row row;
    for (Py_ssize_t i = 0; i < table->n; i++) {
        read_row(table, i, &row, HALF_ROW);
        const Py_ssize_t part = accept[i] != 0;
        double *coarse = totals + part * k, *fine = coarse + 2 * k;
        long long *high = bins->above + part * k * n, *low = high + 2 * k * n;
        const Py_ssize_t whole = NAME(whole)(&row);
        Py_ssize_t j = 0;
        while (j < whole) { /* few entries lie above the first bin: four vectors are asked about them together */
            const Py_ssize_t from = j, end = j + 4 * LANES < whole ? j + 4 * LANES : whole;
            M above = (M)(edge != edge);
            for (; j < end; j += LANES) {
                const V p = NAME(load)(&row, j), units = (p + to_coarse) - to_coarse;
                prefetch(&row, j);
                NAME(add_to)(coarse + j, units);
                NAME(add_to)(fine + j, ((p - units) + to_fine) - to_fine);
                above |= (M)(p > edge);
            }
            if (NAME(any)(above))
                for (Py_ssize_t t = from; t < end; t++) NAME(take_off)(logit(&row, t), bins, high + t * n, low + t * n);
        }
        for (; j < k; j++) {
            const double p = logit(&row, j), units = (p + COARSE_SHIFT) - COARSE_SHIFT;
            coarse[j] += units;
            fine[j] += ((p - units) + FINE_SHIFT) - FINE_SHIFT;
            NAME(take_off)(p, bins, high + j * n, low + j * n);
        }
    }
}
