/* No probability is 0 or 1 (formulas/inside.py), for one instruction set and one precision of the probabilities.
   fused_rows.h includes this file. */

/* Bring the probabilities of rows of logits between `least` and `most`: a masked class keeps 0, the only possible one 1,
   NaN stays. The logits of a row are looked at only where some probability lies outside. */
static void NAME(inside)(const struct table *table, double least, double most, char *out, Py_ssize_t step) {
    const V low = NAME(fill)((REAL)least), high = NAME(fill)((REAL)most);
    struct row row;
    for (Py_ssize_t i = 0; i < table->n; i++, out += step) {
        REAL *own = (REAL *)out;
        M outside = (M)(low != low);
        Py_ssize_t j = 0;
        for (; j + LANES <= table->k; j += LANES) {
            V p;
            memcpy(&p, own + j, sizeof p);
            outside |= (M)(p < low) | (M)(p > high);
        }
        int some = NAME(any)(outside);
        for (; j < table->k; j++) some |= own[j] < (REAL)least || own[j] > (REAL)most;
        if (!some) continue;
        read_row(table, i, &row, HALF_ROW);
        int possible = 0;
        for (j = 0; j < table->k && possible < 2; j++) possible += logit(&row, j) > -INFINITY;
        if (possible < 2) continue;
        for (j = 0; j < table->k; j++) {
            if (own[j] > (REAL)most) own[j] = (REAL)most;
            else if (own[j] < (REAL)least && logit(&row, j) > -INFINITY) own[j] = (REAL)least;
        }
    }
}
