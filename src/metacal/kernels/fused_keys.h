/* Scores as integers: a float64 read as an integer keeps its order, so scores are sorted and counted by their bits. */
#include <stdint.h>

/* Few enough to be sorted by moving each to its place. */
#define FEW 24
/* Bits that one round of sorting goes by: few places to write to at a time; and the most rounds there are. */
#define ROUND_BITS 10
#define MOST_ROUNDS 8

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

/* Rising order. What matters is how far keys lie above the lowest: so many digits, each dealt out from the last to the
   first, equal ones staying in order. All digits are counted in one walk; one that all keys share is passed over. Keys
   without a flag come first, so that the last bit is in order already. */
static void sort_keys(int64_t *keys, int64_t *room, Py_ssize_t n, uint32_t *counts) {
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
    uint64_t taken = 0; /* bits that are not zero in all */
    low &= ~(int64_t)1;
    for (Py_ssize_t i = 0; i < n; i++) taken |= (uint64_t)keys[i] - (uint64_t)low;
    taken &= ~(uint64_t)1;
    if (!taken) return;
    int shift = 0;
    while (!((taken >> shift) & 1)) shift++;
    const int rounds = (bits_of(taken) - shift + ROUND_BITS - 1) / ROUND_BITS;
    const uint64_t last = ((uint64_t)1 << ROUND_BITS) - 1;
    memset(counts, 0, (size_t)rounds * (last + 1) * sizeof *counts);
    for (Py_ssize_t i = 0; i < n; i++) {
        uint64_t digits = ((uint64_t)keys[i] - (uint64_t)low) >> shift;
        for (int r = 0; r < rounds; r++, digits >>= ROUND_BITS) counts[(uint64_t)r * (last + 1) + (digits & last)]++;
    }
    int64_t *from = keys, *to = room;
    for (int r = 0; r < rounds; r++, shift += ROUND_BITS) {
        uint32_t *place = counts + (size_t)r * (last + 1), at = 0, most = 0;
        for (uint64_t d = 0; d <= last; d++) {
            const uint32_t here = place[d];
            most = here > most ? here : most;
            place[d] = at;
            at += here;
        }
        if (most == (uint32_t)n) continue;
        for (Py_ssize_t i = 0; i < n; i++)
            to[place[(((uint64_t)from[i] - (uint64_t)low) >> shift) & last]++] = from[i];
        int64_t *swapped = from;
        from = to;
        to = swapped;
    }
    if (from != keys) memcpy(keys, from, (size_t)n * sizeof *keys);
}

/* Whether each score's lowest bit is free; the keys are then the scores in order, with the flag in the lowest bit,
   those without a flag first. */
static int flagged_keys(const double *scores, const unsigned char *flags, int64_t *keys, Py_ssize_t n) {
    int64_t taken = 0;
    Py_ssize_t place[2] = {0, n};
    for (Py_ssize_t i = 0; i < n; i++) place[1] -= flags[i] != 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        const double score = scores[i] + 0.0; /* a zero has one sign */
        const int flag = flags[i] != 0;
        int64_t bits;
        memcpy(&bits, &score, sizeof bits);
        taken |= bits & 1;
        bits ^= (bits >> 63) & INT64_MAX;
        keys[place[flag]++] = (bits & ~(int64_t)1) | flag;
    }
    return !taken;
}

/* Where sorted keys change: the score of each block of equal ones, how many keys there are up to its end, how many of
   them have no flag, and at which places those stand. The scores take the place of the keys. Returns the blocks. */
static Py_ssize_t blocks_of(int64_t *keys, Py_ssize_t n, int64_t *ranks, int64_t *errors, int64_t *wrong,
                            Py_ssize_t *n_wrong) {
    Py_ssize_t block = 0, unmarked = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        const int64_t key = keys[i];
        wrong[unmarked] = i + 1; /* stays if the next line counts it; there is room, as unmarked <= i */
        unmarked += !(key & 1);
        if (i + 1 < n && (keys[i + 1] | 1) == (key | 1)) continue;
        const int64_t bits = key & ~(int64_t)1;
        keys[block] = bits < 0 ? bits ^ (INT64_MAX - 1) : bits;
        ranks[block] = i + 1;
        errors[block] = unmarked;
        block++;
    }
    *n_wrong = unmarked;
    return block;
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
