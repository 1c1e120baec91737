/* Scores as integers: a float64 read as an integer keeps its order, so scores are sorted and counted by their bits. */
#include <stdint.h>

/* Few enough to be sorted by moving each to its place. */
#define FEW 24
/* Most bits that one round of sorting goes by: its counts stay in a core's first cache. */
#define ROUND_BITS 12

static void sort_few(int64_t *keys, Py_ssize_t n) {
    for (Py_ssize_t i = 1; i < n; i++) {
        const int64_t key = keys[i];
        Py_ssize_t j = i;
        for (; j > 0 && keys[j - 1] > key; j--) keys[j] = keys[j - 1];
        keys[j] = key;
    }
}

static int bits_of(uint64_t x) {
    int bits = 0;
    while (x) {
        bits++;
        x >>= 1;
    }
    return bits;
}

/* Rising order. A round deals the keys out by the highest bits in which these differ, and sorts each heap by the next
   ones: where keys are spread out one round is enough, and the deepest takes 64 bits. `counts` has room for a round's
   heaps at every depth that needs it: the first is wide, those below it have 8 bits. */
static void sort_keys(int64_t *keys, int64_t *room, Py_ssize_t n, uint32_t *counts, int most_bits) {
    if (n <= FEW) {
        sort_few(keys, n);
        return;
    }
    int64_t low = keys[0], high = keys[0];
    int rising = 1;
    for (Py_ssize_t i = 1; i < n; i++) {
        rising &= keys[i - 1] <= keys[i];
        low = keys[i] < low ? keys[i] : low;
        high = keys[i] > high ? keys[i] : high;
    }
    if (rising) return;
    const int spread = bits_of((uint64_t)high - (uint64_t)low);
    int wanted = bits_of((uint64_t)n) - 2;
    wanted = wanted < most_bits ? wanted : most_bits;
    const int shift = spread > wanted ? spread - wanted : 0;
    const Py_ssize_t heaps = (Py_ssize_t)(((uint64_t)high - (uint64_t)low) >> shift) + 1;
#define HEAP(key) (((uint64_t)(key) - (uint64_t)low) >> shift)
    memset(counts, 0, (size_t)heaps * sizeof *counts);
    for (Py_ssize_t i = 0; i < n; i++) counts[HEAP(keys[i])]++;
    uint32_t at = 0;
    for (Py_ssize_t h = 0; h < heaps; h++) {
        const uint32_t here = counts[h];
        counts[h] = at;
        at += here;
    }
    for (Py_ssize_t i = 0; i < n; i++) room[counts[HEAP(keys[i])]++] = keys[i];
    memcpy(keys, room, (size_t)n * sizeof *keys);
#undef HEAP
    if (!shift) return;
    uint32_t below[1 << 8], begin = 0; /* counts[h] is now where heap h ends */
    for (Py_ssize_t h = 0; h < heaps; h++) {
        sort_keys(keys + begin, room + begin, (Py_ssize_t)(counts[h] - begin), below, 8);
        begin = counts[h];
    }
}

/* Whether each score's lowest bit is free; keys[i] is then the score in order, with the flag in the lowest bit. */
static int flagged_keys(const double *scores, const unsigned char *flags, int64_t *keys, Py_ssize_t n) {
    int64_t taken = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        const double score = scores[i] + 0.0; /* a zero has one sign */
        int64_t bits;
        memcpy(&bits, &score, sizeof bits);
        taken |= bits & 1;
        bits ^= (bits >> 63) & INT64_MAX;
        keys[i] = (bits & ~(int64_t)1) | (flags[i] != 0);
    }
    return !taken;
}

/* Stretches of keys, rising and apart, each cut into cells of 2^shift keys: those of stretch j begin at cell first[j]. */
struct cut {
    const int64_t *low, *high, *shift, *first;
    Py_ssize_t n;
};

/* Add rows to the counts of their cells, wrong and right side by side; rows in no stretch are passed over.
   seen: the lowest and the highest cell with any row, every bit that some key has, how many rows have no score. */
static void count_cells(const double *scores, const unsigned char *right, Py_ssize_t n, const struct cut *cut,
                        int64_t *counts, int64_t *seen) {
    int64_t lowest = seen[0], highest = seen[1], bits = seen[2], missing = seen[3];
    const int64_t low = cut->low[0], high = cut->high[cut->n - 1];
    for (Py_ssize_t i = 0; i < n; i++) {
        int64_t key;
        memcpy(&key, &scores[i], sizeof key);
        if (key < 0) key = (int64_t)((UINT64_C(1) << 63) - (uint64_t)key);
        missing += scores[i] != scores[i];
        bits |= key;
        if (key < low || key > high) continue;
        Py_ssize_t j = 0;
        for (Py_ssize_t left = cut->n; left > 1;) { /* the last stretch that begins at or below the key */
            const Py_ssize_t half = left / 2;
            j += cut->low[j + half] <= key ? half : 0;
            left -= half;
        }
        if (key > cut->high[j]) continue;
        const int64_t cell = cut->first[j] + (int64_t)(((uint64_t)key - (uint64_t)cut->low[j]) >> cut->shift[j]);
        counts[2 * cell + (right[i] != 0)]++;
        lowest = cell < lowest ? cell : lowest;
        highest = cell > highest ? cell : highest;
    }
    seen[0] = lowest;
    seen[1] = highest;
    seen[2] = bits;
    seen[3] = missing;
}
