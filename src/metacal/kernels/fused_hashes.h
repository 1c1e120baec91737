/* Hashes of scored rows, as rows/row_hashes.py has them, for one instruction set. fused_rows.h includes this file where
   REAL is double: a vector of words has as many lanes as one of scores. The baseline multiplies
   words faster one by one. */

#if WIDTH == 16
static Py_ssize_t NAME(hash_rows)(
    const double *scores, const unsigned char *flags, Py_ssize_t n, double floor, int coarse, int fine, uint64_t bound,
    uint64_t *sums, uint64_t *hashes
) {
    return hash_scored_rows(scores, flags, n, floor, coarse, fine, bound, sums, hashes);
}
#else
typedef NAME(bits) NAME(hash_words);
#define W NAME(hash_words)

static inline W NAME(word)(uint64_t word) {
    W words;
    for (Py_ssize_t t = 0; t < LANES; t++) words[t] = word;
    return words;
}

/* One step of SplitMix64 in every lane. */
static inline W NAME(mixed_words)(W words) {
    words += NAME(word)(SPLITMIX_INCREMENT);
    words = (words ^ (words >> 30)) * NAME(word)(SPLITMIX_FIRST);
    words = (words ^ (words >> 27)) * NAME(word)(SPLITMIX_SECOND);
    return words ^ (words >> 31);
}

/* The bits of scores on a grid, where every size lies between the floor of the grid and HASHED_MOST: no zero, no NaN and
   no rounding to infinity. */
static inline W NAME(rounded_words)(W words, int dropped) {
    words += (words >> 63) + NAME(word)(((uint64_t)1 << (dropped - 1)) - 1);
    return words & NAME(word)(~(((uint64_t)1 << dropped) - 1));
}

/* As hash_scored_rows, which does the rows that fill no vector and those with a size that rounded_words does not know. */
static Py_ssize_t NAME(hash_rows)(
    const double *scores, const unsigned char *flags, Py_ssize_t n, double floor, int coarse, int fine, uint64_t bound,
    uint64_t *sums, uint64_t *hashes
) {
    const double most_size = HASHED_MOST;
    uint64_t least_bits, most_bits;
    memcpy(&least_bits, &floor, sizeof least_bits);
    memcpy(&most_bits, &most_size, sizeof most_bits);
    const W sizes = NAME(word)(~((uint64_t)1 << 63)), limit = NAME(word)(bound);
    const M least = (M)NAME(word)(least_bits), most = (M)NAME(word)(most_bits);
    W totals[DIGEST_SUMS];
    for (int j = 0; j < DIGEST_SUMS; j++) totals[j] = NAME(word)(0);
    Py_ssize_t kept = 0, i = 0;
    for (; i + LANES <= n; i += LANES) {
        W words, own;
        memcpy(&words, scores + i, sizeof words);
        const M size = (M)(words & sizes);
        if (NAME(any)((M)(size < least) | (M)(size > most))) {
            kept += hash_scored_rows(scores + i, flags + i, LANES, floor, coarse, fine, bound, sums, hashes + kept);
            continue;
        }
        for (Py_ssize_t t = 0; t < LANES; t++) own[t] = flags[i + t] != 0;
        W row_hashes = NAME(mixed_words)(NAME(mixed_words)(NAME(rounded_words)(words, coarse)) ^ own);
        for (int j = 0; j < DIGEST_SUMS; j++) {
            row_hashes = NAME(mixed_words)(row_hashes);
            totals[j] += row_hashes;
        }
        const W found = NAME(mixed_words)(NAME(rounded_words)(words, fine));
        if (!NAME(any)((M)(found <= limit))) continue;
        for (Py_ssize_t t = 0; t < LANES; t++) {
            hashes[kept] = found[t];
            kept += found[t] <= bound;
        }
    }
    for (int j = 0; j < DIGEST_SUMS; j++)
        for (Py_ssize_t t = 0; t < LANES; t++) sums[j] += totals[j][t];
    return kept + hash_scored_rows(scores + i, flags + i, n - i, floor, coarse, fine, bound, sums, hashes + kept);
}
#undef W
#endif
