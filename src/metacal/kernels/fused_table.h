/* A table of logits as Python hands it over, its rows as the kernels walk them, and float16 on the way. */
#define LOG2_E 1.4426950408889634074
/* Columns whose sums stay in a vector: few enough for a sum of floats to keep its digits, a multiple of all LANES. */
#define CHUNK 1024
/* Rows of up to this many columns are worked on several at a time. */
#define SHORT_ROW 32
/* The predicted class is at least this much likelier than any other in fused_lifted.h: a tie would be no prediction. */
#define AHEAD (1.0 + 1e-6)
/* Numbers of a row in fused_mixed.h. */
#define ROW_COLUMNS 8

/* A finite logit at or below this may stand for a mask (see kernels/numpy.py), in float16 by its bits; what says so. */
#define LOWEST_ORDINARY -9984.0
#define LOWEST_ORDINARY_HALF 0xf0e0u
#define LOW -2

/* Whole units of probabilities (kernels/exact.py): how many there are in 1, and x + shift - shift is x in whole units. */
#define COARSE_UNITS 1073741824.0        /* 2^30 */
#define FINE_UNITS 4611686018427387904.0 /* 2^62 */
#define COARSE_SHIFT (1.5 * 4503599627370496.0 / COARSE_UNITS)
#define FINE_SHIFT (1.5 * 4503599627370496.0 / FINE_UNITS)
/* A larger entry is no probability; it counts as this much. */
#define MOST_TAKEN_OFF 2.0

/* Bins of each column of probabilities: their n + 1 edges, and what lies in them; the first stays empty. */
struct bins {
    const double *edges;
    Py_ssize_t n;
    long long *above;
};

/* What no probability lies outside of where several classes are possible (formulas/probabilities.py). */
struct limits {
    double least, most;
};

enum { ENTROPY, DOUBT, MARGIN, ENERGY, KINDS };

/* A block of logits: n rows of k columns, rows `step` bytes apart; kind 'e', 'f' or 'd'. Where some rows are chosen, n
   counts these, and row i of them is row chosen[i] of the block. */
struct table {
    const char *data;
    Py_ssize_t n, k, step;
    char kind;
    float *scratch;
    const long long *chosen;
};

/* One row, in float (single) or double (twice). */
struct row {
    const float *single;
    const double *twice;
    Py_ssize_t k;
    const char *next; /* where the next row lies (this one again after the last), */
    Py_ssize_t size;  /* and the bytes of its entries */
};

typedef void (*half_row)(const unsigned short *, Py_ssize_t, float *);

static inline double logit(const struct row *row, Py_ssize_t j) {
    return row->single ? (double)row->single[j] : row->twice[j];
}

static inline const char *row_data(const struct table *table, Py_ssize_t i) {
    return table->data + (table->chosen ? (Py_ssize_t)table->chosen[i] : i) * table->step;
}

static inline void read_row(const struct table *table, Py_ssize_t i, struct row *row, half_row convert) {
    const char *data = row_data(table, i);
    row->k = table->k;
    row->single = NULL;
    row->twice = NULL;
    row->next = i + 1 < table->n ? row_data(table, i + 1) : data;
    row->size = table->kind == 'd' ? 8 : table->kind == 'f' ? 4 : 2;
    if (table->kind == 'd') {
        row->twice = (const double *)data;
    } else if (table->kind == 'f') {
        row->single = (const float *)data;
    } else {
        convert((const unsigned short *)data, table->k, table->scratch);
        row->single = table->scratch;
    }
}

/* Ask for column j of the next row: it arrives while this row is worked on. */
static inline void prefetch(const struct row *row, Py_ssize_t j) { __builtin_prefetch(row->next + j * row->size); }

static float half_to_float(unsigned short h) {
    const unsigned sign = (unsigned)(h & 0x8000u) << 16, exponent = (h >> 10) & 0x1fu, fraction = h & 0x3ffu;
    union { unsigned u; float f; } bits;
    if (exponent == 0) return (sign ? -1.0f : 1.0f) * (float)fraction * 5.9604644775390625e-08f;
    bits.u = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112u) << 23) | fraction << 13;
    return bits.f;
}

static void half_row_plain(const unsigned short *from, Py_ssize_t k, float *to) {
    for (Py_ssize_t j = 0; j < k; j++) to[j] = half_to_float(from[j]);
}

/* The same as first_bad in fused_rows.h for a float16 table, by its bits. */
#define DEFINE_FIRST_BAD_HALF(name) \
    static Py_ssize_t name(const struct table *table) { \
        unsigned short low = 0; \
        for (Py_ssize_t i = 0; i < table->n; i++) { \
            const unsigned short *row = (const unsigned short *)row_data(table, i); \
            unsigned short bad = 0, some = 0; \
            for (Py_ssize_t j = 0; j < table->k; j++) { \
                const unsigned short h = row[j]; \
                bad |= (unsigned short)((unsigned short)(h & 0x7fffu) > 0x7c00u) | (unsigned short)(h == 0x7c00u); \
                some |= (unsigned short)(h ^ 0xfc00u); \
                low |= (unsigned short)((h >= LOWEST_ORDINARY_HALF) & (h < 0xfc00u)); \
            } \
            if (bad || !some) return i; \
        } \
        return low ? LOW : -1; \
    }
