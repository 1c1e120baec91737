/* The loss of a temperature with a uniform part over some rows, for one instruction set, from what a walk saw of each
   (fused_mixed.h). fused_rows.h includes this file where REAL is double. */

/* log x for x = 0, where it is -inf, and normal numbers x > 0; NaN stays. With x = 2^e m, √½ < m <= √2, and
   f = (m - 1) / (m + 1) it is e log 2 + 2 (f + f³/3 + f⁵/5 + …), the last term below 3e-17. */
static inline V NAME(log)(V x) {
    const NAME(bits) whole = (NAME(bits))x, mantissa = (NAME(bits))NAME(number)(0xfffffffffffffLL);
    const NAME(bits) one = (NAME(bits))NAME(fill)(1.0), far = (NAME(bits))NAME(fill)(4503599627370496.0); /* 2^52 */
    V m = (V)((whole & mantissa) | one), e = (V)((whole >> 52) | far) - NAME(fill)(4503599627370496.0 + 1023.0);
    const M large = (M)(m > NAME(fill)(1.4142135623730951));
    m = (V)((large & (M)(m * 0.5)) | (~large & (M)m));
    e += (V)(large & (M)NAME(fill)(1.0));
    const V f = (m - 1.0) / (m + 1.0), s = f * f;
    V p = NAME(fill)(1.0 / 21.0);
    p = p * s + 1.0 / 19.0;
    p = p * s + 1.0 / 17.0;
    p = p * s + 1.0 / 15.0;
    p = p * s + 1.0 / 13.0;
    p = p * s + 1.0 / 11.0;
    p = p * s + 1.0 / 9.0;
    p = p * s + 1.0 / 7.0;
    p = p * s + 1.0 / 5.0;
    p = p * s + 1.0 / 3.0;
    p = p * s + 1.0;
    const V found = e * 0.693147180369123816490 + (2.0 * f * p + e * 1.90821492927058770002e-10); /* log 2 in two parts */
    const M none = (M)(x == NAME(fill)(0.0));
    return (V)((none & (M)NAME(fill)(-INFINITY)) | (~none & ((M)found | (M)(x != x))));
}

/* -log q of rows `first` to `last` - 1, its gradient in (log b, ε) and its curvature, as kernels/columns.py has them: six
   sums. There are n rows; `step` is how far b lies from where they were walked. */
static void NAME(mixed_sums)(
    const double *columns, Py_ssize_t n, const double *weights, double b, double step, double uniform, Py_ssize_t first,
    Py_ssize_t last, double *sums
) {
    const V zero = NAME(fill)(0.0), scale = NAME(fill)(LOG2_E), least = NAME(fill)(LEAST);
    V total[6] = {zero, zero, zero, zero, zero, zero}, w = NAME(fill)(1.0);
    V at[ROW_COLUMNS - 1] = {zero, zero, zero, zero, zero, zero, zero};
    for (Py_ssize_t i = first; i < last; i += LANES) {
        const Py_ssize_t count = last - i < LANES ? last - i : LANES;
        M counts = (M)(zero == zero);
        if (count == LANES) {
            for (int c = 0; c < ROW_COLUMNS - 1; c++) memcpy(&at[c], columns + c * n + i, sizeof at[c]);
            if (weights) memcpy(&w, weights + i, sizeof w);
        } else {
            for (Py_ssize_t t = 0; t < LANES; t++) {
                for (int c = 0; c < ROW_COLUMNS - 1; c++) at[c][t] = columns[c * n + i + (t < count ? t : 0)];
                if (weights) w[t] = weights[i + (t < count ? t : 0)];
                if (t >= count) counts[t] = 0;
            }
        }
        V value = NAME(log)(1.0 + at[0]), slope = at[1], second = at[2];
        if (step != 0.0) {
            const V third = at[3], fourth = at[4];
            value += step * (slope + step * (0.5 * second + step * (third / 6.0 + (step / 24.0) * fourth)));
            slope += step * (second + step * (0.5 * third + (step / 6.0) * fourth));
            second += step * (third + (0.5 * step) * fourth);
            value = MAX(zero, value); /* NaN stays */
            second = MAX(zero, second);
        }
        const V own = at[5], even = 1.0 / at[6], chance = NAME(exp2)(MAX(least, (b * own - value) * scale));
        const V mixed = (1.0 - uniform) * chance + uniform * even, each = 1.0 / mixed;
        slope = b * (own - slope);
        const V share = (1.0 - uniform) * chance * each, away = (chance - even) * each, part = share * slope;
        const V terms[6] = {
            -NAME(log)(mixed),
            -part,
            away,
            (b * b) * share * second - part - (part - share * part) * slope,
            chance * even * slope * each * each,
            away * away,
        };
        for (int c = 0; c < 6; c++) total[c] += (V)((M)(weights ? w * terms[c] : terms[c]) & counts);
    }
    for (int c = 0; c < 6; c++) sums[c] = NAME(total)(total[c]);
}

static inline V NAME(where)(M mask, V yes, V no) { return (V)((mask & (M)yes) | (~mask & (M)no)); }

/* log(max q / (1 - max q)) of rows `first` to `last` - 1, as kernels/columns.py has it, without cancellation: where t is
   small log(1 + t) is t log(u) / (u - 1) with u = 1 + t rounded, and 1 - e^-v is v (1 - u) / -log(u) with u = e^-v. */
static void NAME(log_odds)(
    const double *columns, Py_ssize_t n, double step, double uniform, Py_ssize_t first, Py_ssize_t last, double *out
) {
    const V zero = NAME(fill)(0.0), one = NAME(fill)(1.0), scale = NAME(fill)(LOG2_E), least = NAME(fill)(LEAST);
    V at[ROW_COLUMNS - 1] = {zero, zero, zero, zero, zero, zero, one};
    for (Py_ssize_t i = first; i < last; i += LANES) {
        const Py_ssize_t count = last - i < LANES ? last - i : LANES;
        for (int c = 0; c < ROW_COLUMNS - 1; c++) {
            if (count == LANES) memcpy(&at[c], columns + c * n + i, sizeof at[c]);
            else
                for (Py_ssize_t t = 0; t < count; t++) at[c][t] = columns[c * n + i + t];
        }
        const V sum = one + at[0];
        V value = NAME(where)((M)(sum == one), at[0], NAME(log)(sum) * (at[0] / (sum - one)));
        if (step != 0.0) {
            value += step * (at[1] + step * (0.5 * at[2] + step * (at[3] / 6.0 + (step / 24.0) * at[4])));
            value = MAX(zero, value); /* NaN stays */
        }
        const V e = NAME(exp2)(MAX(least, -value * scale)), even = one / at[6];
        const V near = NAME(where)((M)(e == one), value, (one - e) * (value / -NAME(log)(e)));
        const V away = NAME(where)((M)(value < one), near, one - e);
        const V odds = NAME(log)((1.0 - uniform) * e + uniform * even) -
                       NAME(log)((1.0 - uniform) * away + uniform * (one - even));
        for (Py_ssize_t t = 0; t < count; t++) out[i + t] = odds[t];
    }
}
