/* Whether rows are logits, for one instruction set and one precision. fused_rows.h includes this file. */

/* The first row with NaN or +inf, or with nothing above -inf. Where there is none, LOW when some finite logit is at most
   LOWEST_ORDINARY (it may stand for a mask), and -1 otherwise. */
static Py_ssize_t NAME(first_bad)(const struct table *table) {
    if (table->kind == 'e') return FIRST_BAD_HALF(table);
    struct row row;
    const V floor = NAME(fill)((REAL)LOWEST_ORDINARY);
    int low = 0;
    const V most = NAME(fill)(DOUBLE ? (REAL)DBL_MAX : (REAL)FLT_MAX), masked = NAME(fill)(-(REAL)INFINITY);
    for (Py_ssize_t i = 0; i < table->n; i++) {
        read_row(table, i, &row, HALF_ROW);
        const Py_ssize_t whole = NAME(whole)(&row);
        M good = (M)(most == most), some = (M)(most != most), deep = some; /* all ones; all zeros */
        for (Py_ssize_t j = 0; j < whole; j += LANES) {
            const V x = NAME(load)(&row, j);
            const M above = (M)(x > masked);
            good &= (M)(x <= most);
            some |= above;
            deep |= above & (M)(x <= floor);
        }
        int fine = !NAME(any)(~good), alive = NAME(any)(some);
        for (Py_ssize_t j = whole; j < row.k; j++) {
            fine &= logit(&row, j) <= DBL_MAX;
            alive |= logit(&row, j) > -INFINITY;
            low |= logit(&row, j) > -INFINITY && logit(&row, j) <= LOWEST_ORDINARY;
        }
        if (!fine || !alive) return i;
        low |= NAME(any)(deep);
    }
    return low ? LOW : -1;
}

/* Whether some finite logit is so low that it may stand for a mask. */
static int NAME(deep)(const struct row *row) {
    const V floor = NAME(fill)((REAL)LOWEST_ORDINARY), masked = NAME(fill)(-(REAL)INFINITY);
    const Py_ssize_t whole = NAME(whole)(row);
    M found = (M)(floor != floor);
    for (Py_ssize_t j = 0; j < whole; j += LANES) {
        const V x = NAME(load)(row, j);
        found |= (M)(x > masked) & (M)(x <= floor);
    }
    int deep = NAME(any)(found);
    for (Py_ssize_t j = whole; j < row->k; j++) deep |= logit(row, j) > -INFINITY && logit(row, j) <= LOWEST_ORDINARY;
    return deep;
}
