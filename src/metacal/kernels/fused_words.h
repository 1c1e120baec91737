/* Hashes of scored rows, one row at a time, as rows/row_hashes.py has them; fused_hashes.h has several at a time. */

#include <stdint.h>

#define SPLITMIX_INCREMENT 0x9E3779B97F4A7C15u
#define SPLITMIX_FIRST 0xBF58476D1CE4E5B9u
#define SPLITMIX_SECOND 0x94D049BB133111EBu

/* One step of SplitMix64. */
static inline uint64_t mixed_word(uint64_t word) {
    word += SPLITMIX_INCREMENT;
    word = (word ^ (word >> 30)) * SPLITMIX_FIRST;
    word = (word ^ (word >> 27)) * SPLITMIX_SECOND;
    return word ^ (word >> 31);
}

/* The bits of a score; a zero has one sign, and all NaN are one number. */
static inline uint64_t score_word(double score) {
    const double unsigned_zero = score + 0.0;
    uint64_t word;
    memcpy(&word, &unsigned_zero, sizeof word);
    return unsigned_zero == unsigned_zero ? word : 0x7FF8000000000000u;
}

/* Number of sums in a digest. */
#define DIGEST_SUMS 4

/* Scores up to this size are rounded without a look at what overflows. */
#define HASHED_MOST 0x1p1000

/* Adds to the sums of a digest what the coarsely rounded scores and the flags of rows give, and writes the hashes of
   the finely rounded scores that are at most `bound`. Returns how many those are. */
static Py_ssize_t hash_scored_rows(
    const double *scores, const unsigned char *flags, Py_ssize_t n, double floor, int coarse, int fine, uint64_t bound,
    uint64_t *sums, uint64_t *hashes
) {
    const double coarse_step = ldexp(floor, coarse - 52), fine_step = ldexp(floor, fine - 52);
    Py_ssize_t kept = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        const uint64_t score_hash = mixed_word(score_word(grid_point(scores[i], coarse, floor, coarse_step)));
        uint64_t row_hash = mixed_word(score_hash ^ (flags[i] != 0));
        for (int j = 0; j < DIGEST_SUMS; j++) {
            row_hash = mixed_word(row_hash);
            sums[j] += row_hash;
        }
        hashes[kept] = mixed_word(score_word(grid_point(scores[i], fine, floor, fine_step)));
        kept += hashes[kept] <= bound;
    }
    return kept;
}
