/* metacal.kernels._fused: the row statistics in one pass over the table, the GIL released.

   Same results as kernels/numpy.py, which is the definition. The row kernels (fused_rows.h) are compiled once per
   instruction set and precision, and picked when the module is imported. Only the buffer protocol is used: building
   needs no NumPy. Only the limited API of Python 3.11 is used (setup.py asks for it): one build serves every later
   version. */
#if !defined(__GNUC__) && !defined(__clang__)
#error "the C kernel needs the vector types of GCC or Clang; metacal works without it, slower"
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define X86 1
#include <immintrin.h>
#elif defined(__aarch64__) && (defined(__GNUC__) || defined(__clang__))
#define NEON 1
#include <arm_neon.h>
#endif

#include "fused_table.h"
#include "fused_grid.h"
#include "fused_words.h"

/* The kernels once per instruction set: SET names it, WIDTH is the bytes of its vectors. */
typedef double pair __attribute__((vector_size(16)));

static inline pair widen_pair(const float *x) { return (pair){(double)x[0], (double)x[1]}; }

/* The baseline: 16-byte vectors, which every 64-bit processor has. */
DEFINE_FIRST_BAD_HALF(first_bad_half_plain)
#define SET(x) x##_plain
#define WIDTH 16
#define HALF_ROW half_row_plain
#define FIRST_BAD_HALF first_bad_half_plain
#define WIDEN(p) widen_pair(p)
#if X86
#define ANY_BITS(m) (_mm_movemask_epi8((__m128i)(m)) != 0)
#define MAX_SINGLE(a, b) (V)_mm_max_ps((__m128)(a), (__m128)(b))
#define MIN_SINGLE(a, b) (V)_mm_min_ps((__m128)(a), (__m128)(b))
#define MAX_TWICE(a, b) (V)_mm_max_pd((__m128d)(a), (__m128d)(b))
#define MIN_TWICE(a, b) (V)_mm_min_pd((__m128d)(a), (__m128d)(b))
#elif NEON
#define ANY_BITS(m) (vmaxvq_u32((uint32x4_t)(m)) != 0)
#define MAX_SINGLE(a, b) (V)vmaxq_f32((float32x4_t)(a), (float32x4_t)(b))
#define MIN_SINGLE(a, b) (V)vminq_f32((float32x4_t)(a), (float32x4_t)(b))
#define MAX_TWICE(a, b) (V)vmaxq_f64((float64x2_t)(a), (float64x2_t)(b))
#define MIN_TWICE(a, b) (V)vminq_f64((float64x2_t)(a), (float64x2_t)(b))
#else
#define CHOOSE(mask, yes, no) (V)(((mask) & (M)(yes)) | (~(mask) & (M)(no)))
#define MAX_SINGLE(a, b) CHOOSE((M)((a) > (b)), a, b)
#define MIN_SINGLE(a, b) CHOOSE((M)((a) < (b)), a, b)
#define MAX_TWICE MAX_SINGLE
#define MIN_TWICE MIN_SINGLE
#endif
#include "fused_set.h"

#if X86
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif
static void half_row_avx2(const unsigned short *from, Py_ssize_t k, float *to) {
    Py_ssize_t j = 0;
    for (; j + 8 <= k; j += 8)
        _mm256_storeu_ps(to + j, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + j))));
    for (; j < k; j++) to[j] = half_to_float(from[j]);
}
DEFINE_FIRST_BAD_HALF(first_bad_half_avx2)
#define SET(x) x##_avx2
#define WIDTH 32
#define HALF_ROW half_row_avx2
#define FIRST_BAD_HALF first_bad_half_avx2
#define WIDEN(p) _mm256_cvtps_pd(_mm_loadu_ps(p))
#define ANY_BITS(m) !_mm256_testz_si256((__m256i)(m), (__m256i)(m))
#define MAX_SINGLE(a, b) (V)_mm256_max_ps((__m256)(a), (__m256)(b))
#define MIN_SINGLE(a, b) (V)_mm256_min_ps((__m256)(a), (__m256)(b))
#define MAX_TWICE(a, b) (V)_mm256_max_pd((__m256d)(a), (__m256d)(b))
#define MIN_TWICE(a, b) (V)_mm256_min_pd((__m256d)(a), (__m256d)(b))
#include "fused_set.h"
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512vl,avx512bw,avx2,fma,f16c"))), \
                             apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512vl,avx512bw,avx2,fma,f16c")
#endif
#define SET(x) x##_avx512
#define WIDTH 64
#define HALF_ROW half_row_avx2
#define FIRST_BAD_HALF first_bad_half_avx2
#define WIDEN(p) _mm512_cvtps_pd(_mm256_loadu_ps(p))
#define ANY_BITS(m) (_mm512_test_epi64_mask((__m512i)(m), (__m512i)(m)) != 0)
#define MAX_SINGLE(a, b) (V)_mm512_max_ps((__m512)(a), (__m512)(b))
#define MIN_SINGLE(a, b) (V)_mm512_min_ps((__m512)(a), (__m512)(b))
#define MAX_TWICE(a, b) (V)_mm512_max_pd((__m512d)(a), (__m512d)(b))
#define MIN_TWICE(a, b) (V)_mm512_min_pd((__m512d)(a), (__m512d)(b))
#include "fused_set.h"
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

typedef void softmax_kernel(const struct table *, double, const struct limits *, char *, Py_ssize_t, int);
typedef void tempered_kernel(const struct table *, const long long *, const double *, double, double *);
typedef void members_kernel(const struct table *, const long long *, double, double *);
typedef void lifted_kernel(
    const struct table *, double, double, const struct curve *, const struct limits *, char *, Py_ssize_t, int
);
typedef void mixed_kernel(const struct table *, const long long *, double, double *, Py_ssize_t);
typedef void log_odds_kernel(const double *, Py_ssize_t, double, double, Py_ssize_t, Py_ssize_t, double *);
typedef void mixed_sums_kernel(
    const double *, Py_ssize_t, const double *, double, double, double, Py_ssize_t, Py_ssize_t, double *
);
typedef void units_kernel(const struct table *, const unsigned char *, const struct bins *, double *);
typedef void inside_kernel(const struct table *, double, double, char *, Py_ssize_t);
typedef Py_ssize_t first_bad_kernel(const struct table *);
typedef Py_ssize_t hash_kernel(
    const double *, const unsigned char *, Py_ssize_t, double, int, int, uint64_t, uint64_t *, uint64_t *
);

struct kernels {
    const char *name;
    void (*scores)(const struct table *, int, int, double *, long long *);
    void (*predicted)(const struct table *, long long *);
    mixed_sums_kernel *mixed_sums;
    log_odds_kernel *log_odds;
    units_kernel *class_units;
    hash_kernel *hash_rows;
    softmax_kernel *softmax[2]; /* for tables of at most 32 bits, and of 64 */
    tempered_kernel *tempered[2];
    mixed_kernel *mixed[2];
    members_kernel *members[2];
    lifted_kernel *lifted[2];
    inside_kernel *inside[2];
    first_bad_kernel *first_bad[2];
};

#define BOTH(x, set) {x##_single_##set, x##_twice_##set}
#define KERNELS(set) \
    {#set, scores_twice_##set, predicted_twice_##set, mixed_sums_twice_##set, log_odds_twice_##set, \
     class_units_twice_##set, hash_rows_twice_##set, BOTH(softmax, set), BOTH(tempered, set), BOTH(mixed, set), \
     BOTH(members, set), BOTH(lifted, set), BOTH(inside, set), BOTH(first_bad, set)}

static const struct kernels all_kernels[] = {
#if X86
    KERNELS(avx512),
    KERNELS(avx2),
#endif
    KERNELS(plain),
};
#define N_KERNELS ((int)(sizeof all_kernels / sizeof *all_kernels))

static const struct kernels *active = &all_kernels[N_KERNELS - 1];

static int supported(const struct kernels *kernels) {
#if X86
    __builtin_cpu_init();
    const int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    if (!strcmp(kernels->name, "avx2")) return avx2;
    if (!strcmp(kernels->name, "avx512"))
        return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
#endif
    return 1;
}

#include "fused_buffers.h"
#include "fused_keys.h"

static PyObject *scores(PyObject *self, PyObject *args) {
    PyObject *block, *rows, *out, *top;
    int kind, careful;
    void *score, *column;
    struct opened opened = {0};
    struct table table;
    if (!PyArg_ParseTuple(args, "OOipOO", &block, &rows, &kind, &careful, &out, &top)) return NULL;
    if (kind < 0 || kind >= KINDS) return PyErr_Format(PyExc_ValueError, "no score has number %d", kind);
    const int fine = open_table(&opened, block, &table, 0) && choose_rows(&opened, rows, &table) &&
                     open_column(&opened, out, table.n, 1, 1, &score) &&
                     open_optional(&opened, top, table.n, 0, 1, &column);
    if (fine) {
        Py_BEGIN_ALLOW_THREADS
        active->scores(&table, kind, careful, score, column);
        Py_END_ALLOW_THREADS
    }
    return release(&opened, fine);
}

static PyObject *rounded(PyObject *self, PyObject *args) {
    PyObject *values, *out;
    int dropped;
    double floor;
    void *from, *to;
    struct opened opened = {0};
    if (!PyArg_ParseTuple(args, "OidO", &values, &dropped, &floor, &out)) return NULL;
    if (dropped < 1 || dropped > 52) return PyErr_Format(PyExc_ValueError, "no grid drops %d bits", dropped);
    int fine = open_column(&opened, values, -1, 1, 0, &from);
    const Py_ssize_t n = fine ? last_length(&opened) : 0;
    fine = fine && open_column(&opened, out, n, 1, 1, &to);
    if (fine) {
        const double step = ldexp(floor, dropped - 52);
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t i = 0; i < n; i++) ((double *)to)[i] = grid_point(((const double *)from)[i], dropped, floor, step);
        Py_END_ALLOW_THREADS
    }
    return release(&opened, fine);
}

/* Rows whose scores are rounded before those of others are computed. */
#define ROUNDED 256

static PyObject *ranked_rows(PyObject *self, PyObject *args) {
    PyObject *block, *labels, *out, *flags;
    int kind, careful, dropped;
    double floor;
    void *score, *label;
    unsigned char *flag;
    struct opened opened = {0};
    struct table table;
    if (!PyArg_ParseTuple(args, "OipOidOO", &block, &kind, &careful, &labels, &dropped, &floor, &out, &flags)) return NULL;
    if (kind < 0 || kind >= KINDS) return PyErr_Format(PyExc_ValueError, "no score has number %d", kind);
    if (dropped < 1 || dropped > 52) return PyErr_Format(PyExc_ValueError, "no grid drops %d bits", dropped);
    const int fine = open_table(&opened, block, &table, 0) && open_column(&opened, labels, table.n, 0, 0, &label) &&
                     open_column(&opened, out, table.n, 1, 1, &score) && open_flags(&opened, flags, table.n, 1, &flag);
    if (fine) {
        double *values = score;
        const long long *wanted = label;
        const double step = ldexp(floor, dropped - 52);
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t from = 0; from < table.n; from += ROUNDED) {
            struct table part = table;
            long long top[ROUNDED];
            part.data += from * table.step;
            part.n = table.n - from < ROUNDED ? table.n - from : ROUNDED;
            active->scores(&part, kind, careful, values + from, top);
            for (Py_ssize_t i = 0; i < part.n; i++) {
                values[from + i] = grid_point(values[from + i], dropped, floor, step);
                flag[from + i] = top[i] == wanted[from + i];
            }
        }
        Py_END_ALLOW_THREADS
    }
    return release(&opened, fine);
}

static PyObject *predicted(PyObject *self, PyObject *args) {
    PyObject *block, *rows, *out;
    void *column;
    struct opened opened = {0};
    struct table table;
    if (!PyArg_ParseTuple(args, "OOO", &block, &rows, &out)) return NULL;
    const int fine = open_table(&opened, block, &table, 0) && choose_rows(&opened, rows, &table) &&
                     open_column(&opened, out, table.n, 0, 1, &column);
    if (fine) {
        Py_BEGIN_ALLOW_THREADS
        active->predicted(&table, column);
        Py_END_ALLOW_THREADS
    }
    return release(&opened, fine);
}

static PyObject *softmax(PyObject *self, PyObject *args) {
    PyObject *block, *rows, *out;
    double b;
    struct limits limits;
    struct opened opened = {0};
    struct table table, target;
    if (!PyArg_ParseTuple(args, "OOdddO", &block, &rows, &b, &limits.least, &limits.most, &out)) return NULL;
    int fine = open_table(&opened, block, &table, 0) && choose_rows(&opened, rows, &table) &&
               open_table(&opened, out, &target, 1);
    if (fine && (target.n != table.n || target.k != table.k || target.kind == 'e')) {
        PyErr_SetString(PyExc_ValueError, "softmax needs a float32 or float64 output of the block's shape");
        fine = 0;
    }
    if (fine) {
        Py_BEGIN_ALLOW_THREADS
        active->softmax[table.kind == 'd'](
            &table, b, &limits, (char *)target.data, target.step, target.kind == 'f'
        );
        Py_END_ALLOW_THREADS
    }
    return release(&opened, fine);
}

/* The curve comes as one column: its knots, the slope at each, the value at each. */
static int open_curve(struct opened *opened, PyObject *column, struct curve *curve) {
    void *numbers;
    if (!open_column(opened, column, -1, 1, 0, &numbers)) return 0;
    curve->count = last_length(opened) / 3;
    curve->knots = numbers;
    curve->slopes = curve->knots + curve->count;
    curve->heights = curve->slopes + curve->count;
    if (curve->count < 1) PyErr_SetString(PyExc_ValueError, "a curve has a knot at least");
    return curve->count >= 1;
}

/* None stands for no curve. */
static PyObject *lifted(PyObject *self, PyObject *args) {
    PyObject *block, *column, *out;
    double b, uniform;
    struct opened opened = {0};
    struct table table, target;
    struct curve curve = {0};
    struct limits limits;
    if (!PyArg_ParseTuple(args, "OddOddO", &block, &b, &uniform, &column, &limits.least, &limits.most, &out)) return NULL;
    const int curved = column != Py_None;
    int fine = open_table(&opened, block, &table, 0) && open_table(&opened, out, &target, 1) &&
               (!curved || open_curve(&opened, column, &curve));
    if (fine && (target.n != table.n || target.k != table.k || target.kind == 'e')) {
        PyErr_SetString(PyExc_ValueError, "lifted needs a float32 or float64 output of the block's shape");
        fine = 0;
    }
    if (fine) {
        Py_BEGIN_ALLOW_THREADS
        active->lifted[table.kind == 'd'](
            &table, b, uniform, curved ? &curve : NULL, &limits, (char *)target.data, target.step, target.kind == 'f'
        );
        Py_END_ALLOW_THREADS
    }
    return release(&opened, fine);
}

/* Probabilities that are computed before those of other rows, at most: they and the logits stay in the cache. */
#define FEW_PROBABILITIES (1 << 13)
#define MOST_ROWS 256
/* Bytes that the processor reads at once. */
#define CACHE_LINE 64

/* Chosen rows lie apart: ask for one before the rows in front of it are worked on. */
static void fetch_row(const struct table *table, Py_ssize_t i) {
    const char *data = row_data(table, i);
    const Py_ssize_t bytes = table->k * (table->kind == 'd' ? 8 : table->kind == 'f' ? 4 : 2);
    for (Py_ssize_t at = 0; at < bytes; at += CACHE_LINE) __builtin_prefetch(data + at);
}

/* What softmax, or lifted where there is a uniform part or a curve, writes at the first largest logit of each row. */
static PyObject *confidences(PyObject *self, PyObject *args) {
    PyObject *block, *rows, *column, *out;
    double b, uniform;
    int single;
    void *confidence;
    struct opened opened = {0};
    struct table table;
    struct curve curve = {0};
    struct limits limits;
    if (!PyArg_ParseTuple(args, "OOddOddpO", &block, &rows, &b, &uniform, &column, &limits.least, &limits.most, &single,
                          &out))
        return NULL;
    const int curved = column != Py_None;
    int fine = open_table(&opened, block, &table, 0) && choose_rows(&opened, rows, &table) &&
               (!curved || open_curve(&opened, column, &curve)) &&
               open_column(&opened, out, table.n, 1, 1, &confidence);
    const Py_ssize_t fitting = fine ? FEW_PROBABILITIES / table.k : 1;
    const Py_ssize_t most = fitting < 1 ? 1 : fitting > MOST_ROWS ? MOST_ROWS : fitting;
    const Py_ssize_t step = fine ? table.k * (Py_ssize_t)(single ? sizeof(float) : sizeof(double)) : 0;
    char *lines = fine ? malloc((size_t)(most * step)) : NULL;
    if (fine && !lines) {
        PyErr_NoMemory();
        fine = 0;
    }
    if (fine) {
        double *found = confidence;
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t from = 0; from < table.n; from += most) {
            struct table part = table;
            long long top[MOST_ROWS];
            part.n = table.n - from < most ? table.n - from : most;
            if (table.chosen) part.chosen += from;
            else part.data += from * table.step;
            for (Py_ssize_t i = from + most; i < from + 2 * most && i < table.n; i++) fetch_row(&table, i);
            if (curved || uniform != 0.0)
                active->lifted[table.kind == 'd'](&part, b, uniform, curved ? &curve : NULL, &limits, lines, step, single);
            else active->softmax[table.kind == 'd'](&part, b, &limits, lines, step, single);
            active->predicted(&part, top);
            for (Py_ssize_t i = 0; i < part.n; i++) {
                const char *line = lines + i * step;
                found[from + i] = single ? (double)((const float *)line)[top[i]] : ((const double *)line)[top[i]];
            }
        }
        Py_END_ALLOW_THREADS
    }
    free(lines);
    return release(&opened, fine);
}

static PyObject *inside(PyObject *self, PyObject *args) {
    PyObject *block, *out;
    double least, most;
    struct opened opened = {0};
    struct table table, target;
    if (!PyArg_ParseTuple(args, "OddO", &block, &least, &most, &out)) return NULL;
    int fine = open_table(&opened, block, &table, 0) && open_table(&opened, out, &target, 1);
    if (fine && (target.n != table.n || target.k != table.k || target.kind == 'e')) {
        PyErr_SetString(PyExc_ValueError, "inside needs float32 or float64 probabilities of the block's shape");
        fine = 0;
    }
    if (fine) {
        Py_BEGIN_ALLOW_THREADS
        active->inside[target.kind == 'd'](&table, least, most, (char *)target.data, target.step);
        Py_END_ALLOW_THREADS
    }
    return release(&opened, fine);
}

/* Rows ends[s] to ends[s + 1] - 1 make strip s; its four sums are taken by themselves, so that whoever adds them up in
   order gets the same bits whatever blocks the strips came in. */
static PyObject *tempered_loss(PyObject *self, PyObject *args) {
    PyObject *block, *rows, *labels, *weights, *ends, *out;
    double b;
    void *weight, *end, *sums;
    const long long *label;
    struct opened opened = {0};
    struct table table;
    Py_ssize_t strips = 0;
    if (!PyArg_ParseTuple(args, "OOOOdOO", &block, &rows, &labels, &weights, &b, &ends, &out)) return NULL;
    int fine = open_table(&opened, block, &table, 0) && choose_rows(&opened, rows, &table) &&
               open_labels(&opened, labels, &table, &label) &&
               open_optional(&opened, weights, table.n, 1, 0, &weight) &&
               open_column(&opened, ends, -1, 0, 0, &end);
    if (fine) {
        const long long *at = end;
        strips = last_length(&opened) - 1;
        fine = strips >= 0 && at[0] == 0 && at[strips] == table.n;
        for (Py_ssize_t s = 0; fine && s < strips; s++) fine = at[s] <= at[s + 1];
    }
    if (!fine && !PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "the strips do not make up the rows");
    fine = fine && open_column(&opened, out, 4 * strips, 1, 1, &sums);
    if (fine) {
        const long long *at = end;
        Py_BEGIN_ALLOW_THREADS
        memset(sums, 0, 4 * (size_t)strips * sizeof(double));
        for (Py_ssize_t s = 0; s < strips; s++) {
            struct table strip = table;
            strip.n = (Py_ssize_t)(at[s + 1] - at[s]);
            if (table.chosen) strip.chosen = table.chosen + at[s];
            else strip.data = table.data + (Py_ssize_t)at[s] * table.step;
            active->tempered[table.kind == 'd'](
                &strip, label + at[s], weight ? (const double *)weight + at[s] : NULL, b, (double *)sums + 4 * s
            );
        }
        Py_END_ALLOW_THREADS
    }
    return release(&opened, fine);
}

/* A column of `width` numbers a row, from the rows and their labels at an inverse temperature. */
static PyObject *row_numbers(PyObject *args, members_kernel *const kernel[2], Py_ssize_t width) {
    PyObject *block, *rows, *labels, *out;
    double b;
    void *found;
    const long long *label;
    struct opened opened = {0};
    struct table table;
    if (!PyArg_ParseTuple(args, "OOOdO", &block, &rows, &labels, &b, &out)) return NULL;
    const int fine = open_table(&opened, block, &table, 0) && choose_rows(&opened, rows, &table) &&
                     open_labels(&opened, labels, &table, &label) &&
                     open_column(&opened, out, width * table.n, 1, 1, &found);
    if (fine) {
        Py_BEGIN_ALLOW_THREADS
        kernel[table.kind == 'd'](&table, label, b, found);
        Py_END_ALLOW_THREADS
    }
    return release(&opened, fine);
}

static PyObject *mixed_rows(PyObject *self, PyObject *args) {
    PyObject *block, *rows, *labels, *out;
    double b;
    const long long *label;
    struct opened opened = {0};
    struct table table, columns;
    if (!PyArg_ParseTuple(args, "OOOdO", &block, &rows, &labels, &b, &out)) return NULL;
    int fine = open_table(&opened, block, &table, 0) && choose_rows(&opened, rows, &table) &&
               open_labels(&opened, labels, &table, &label) && open_table(&opened, out, &columns, 1);
    if (fine && (columns.kind != 'd' || columns.n != ROW_COLUMNS || columns.k != table.n)) {
        PyErr_SetString(PyExc_ValueError, "room for eight columns, one after another, is needed");
        fine = 0;
    }
    if (fine) {
        Py_BEGIN_ALLOW_THREADS
        active->mixed[table.kind == 'd'](
            &table, label, b, (double *)columns.data, columns.step / (Py_ssize_t)sizeof(double)
        );
        Py_END_ALLOW_THREADS
    }
    return release(&opened, fine);
}

static PyObject *members(PyObject *self, PyObject *args) { return row_numbers(args, active->members, 3); }

static PyObject *first_bad_row(PyObject *self, PyObject *block) {
    struct opened opened = {0};
    struct table table;
    Py_ssize_t found = -1;
    const int fine = open_table(&opened, block, &table, 0);
    if (fine) {
        Py_BEGIN_ALLOW_THREADS
        found = active->first_bad[table.kind == 'd'](&table);
        Py_END_ALLOW_THREADS
    }
    Py_XDECREF(release(&opened, fine));
    return fine ? PyLong_FromSsize_t(found) : NULL;
}

static PyObject *keys_of_rows(PyObject *self, PyObject *args) {
    PyObject *scores, *flags, *keys;
    void *score, *out;
    unsigned char *flag;
    struct opened opened = {0};
    int free_bit = 0;
    if (!PyArg_ParseTuple(args, "OOO", &scores, &flags, &keys)) return NULL;
    int fine = open_column(&opened, scores, -1, 1, 0, &score);
    const Py_ssize_t n = fine ? last_length(&opened) : 0;
    fine = fine && open_flags(&opened, flags, n, 0, &flag) && open_column(&opened, keys, n, 0, 1, &out);
    if (fine) {
        Py_BEGIN_ALLOW_THREADS
        free_bit = flagged_keys(score, flag, out, n);
        Py_END_ALLOW_THREADS
    }
    Py_XDECREF(release(&opened, fine));
    return fine ? PyBool_FromLong(free_bit) : NULL;
}

static PyObject *blocks_of_keys(PyObject *self, PyObject *args) {
    PyObject *columns[4];
    void *column[4];
    struct opened opened = {0};
    int sorted;
    Py_ssize_t blocks = 0, wrong = 0;
    if (!PyArg_ParseTuple(args, "OOOOp", &columns[0], &columns[1], &columns[2], &columns[3], &sorted)) return NULL;
    int fine = open_column(&opened, columns[0], -1, 0, 1, &column[0]);
    const Py_ssize_t n = fine ? last_length(&opened) : 0;
    for (int i = 1; i < 4; i++) fine = fine && open_column(&opened, columns[i], n, 0, 1, &column[i]);
    if (fine && n > UINT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "more rows than are sorted at once");
        fine = 0;
    }
    uint32_t *counts = fine ? malloc((size_t)MOST_ROUNDS * (1 << ROUND_BITS) * sizeof *counts) : NULL;
    if (fine && !counts) {
        PyErr_NoMemory();
        fine = 0;
    }
    if (fine) {
        Py_BEGIN_ALLOW_THREADS
        if (!sorted) sort_keys(column[0], column[1], n, counts);
        blocks = blocks_of(column[0], n, column[1], column[2], column[3], &wrong);
        Py_END_ALLOW_THREADS
    }
    free(counts);
    Py_XDECREF(release(&opened, fine));
    return fine ? Py_BuildValue("nn", blocks, wrong) : NULL;
}

/* Whether the stretches are what count_cells takes for granted: rising, apart, and their cells within the counts. */
static int sound(const struct cut *cut, Py_ssize_t cells) {
    int fine = cut->n > 0;
    for (Py_ssize_t j = 0; fine && j < cut->n; j++) {
        fine = cut->low[j] <= cut->high[j] && (!j || cut->high[j - 1] < cut->low[j]) && cut->shift[j] >= 0 &&
               cut->shift[j] < 64 && cut->first[j] >= 0;
        const uint64_t last = fine ? ((uint64_t)cut->high[j] - (uint64_t)cut->low[j]) >> cut->shift[j] : 0;
        fine = fine && last < (uint64_t)cells && cut->first[j] < cells - (Py_ssize_t)last;
    }
    if (!fine) PyErr_SetString(PyExc_ValueError, "the cells do not fit the counts");
    return fine;
}

static PyObject *count_in_cells(PyObject *self, PyObject *args) {
    PyObject *scores, *flags, *stretches, *out, *noted;
    void *score, *stretch, *counts, *seen;
    unsigned char *flag;
    struct opened opened = {0};
    if (!PyArg_ParseTuple(args, "OOOOO", &scores, &flags, &stretches, &out, &noted)) return NULL;
    int fine = open_column(&opened, scores, -1, 1, 0, &score);
    const Py_ssize_t n = fine ? last_length(&opened) : 0;
    fine = fine && open_flags(&opened, flags, n, 0, &flag) && open_column(&opened, stretches, -1, 0, 0, &stretch);
    const Py_ssize_t many = fine ? last_length(&opened) / 4 : 0;
    const int64_t *at = fine ? stretch : NULL;
    fine = fine && open_column(&opened, out, -1, 0, 1, &counts);
    const struct cut cut = {at, fine ? at + many : NULL, fine ? at + 2 * many : NULL, fine ? at + 3 * many : NULL, many};
    fine = fine && sound(&cut, last_length(&opened) / 2) && open_column(&opened, noted, 4, 0, 1, &seen);
    if (fine) {
        Py_BEGIN_ALLOW_THREADS
        count_cells(score, flag, n, &cut, counts, seen);
        Py_END_ALLOW_THREADS
    }
    return release(&opened, fine);
}

/* The columns of mixed_rows, one after another, of which the rows from first up to last are asked for. */
static int open_row_columns(struct opened *opened, PyObject *columns, Py_ssize_t first, Py_ssize_t last,
                            struct table *table) {
    if (!open_table(opened, columns, table, 0)) return 0;
    if (table->kind == 'd' && table->n == ROW_COLUMNS && table->step == table->k * (Py_ssize_t)sizeof(double) &&
        first >= 0 && last >= first && last <= table->k)
        return 1;
    PyErr_SetString(PyExc_ValueError, "the columns of mixed_rows, one after another, and some of their rows are needed");
    return 0;
}

static PyObject *mixed_sums(PyObject *self, PyObject *args) {
    PyObject *columns, *weights, *out;
    double b, step, uniform;
    Py_ssize_t first, last;
    void *weight, *sums;
    struct opened opened = {0};
    struct table table;
    if (!PyArg_ParseTuple(args, "OOdddnnO", &columns, &weights, &b, &step, &uniform, &first, &last, &out)) return NULL;
    int fine = open_row_columns(&opened, columns, first, last, &table) &&
               open_optional(&opened, weights, table.k, 1, 0, &weight) && open_column(&opened, out, 6, 1, 1, &sums);
    if (fine) {
        Py_BEGIN_ALLOW_THREADS
        active->mixed_sums((const double *)table.data, table.k, weight, b, step, uniform, first, last, sums);
        Py_END_ALLOW_THREADS
    }
    return release(&opened, fine);
}

static PyObject *log_odds(PyObject *self, PyObject *args) {
    PyObject *columns, *out;
    double step, uniform;
    Py_ssize_t first, last;
    void *odds;
    struct opened opened = {0};
    struct table table;
    if (!PyArg_ParseTuple(args, "OddnnO", &columns, &step, &uniform, &first, &last, &out)) return NULL;
    int fine = open_row_columns(&opened, columns, first, last, &table) &&
               open_column(&opened, out, table.k, 1, 1, &odds);
    if (fine) {
        Py_BEGIN_ALLOW_THREADS
        active->log_odds((const double *)table.data, table.k, step, uniform, first, last, odds);
        Py_END_ALLOW_THREADS
    }
    return release(&opened, fine);
}

static PyObject *on_grid(PyObject *self, PyObject *args) {
    PyObject *odds, *right, *weights, *out;
    double grid, reach, low;
    void *z, *flag, *weight, *sums;
    struct opened opened = {0};
    if (!PyArg_ParseTuple(args, "OOOdddO", &odds, &right, &weights, &grid, &reach, &low, &out)) return NULL;
    int fine = open_column(&opened, odds, -1, 1, 0, &z);
    const Py_ssize_t n = fine ? last_length(&opened) : 0;
    fine = fine && open_column(&opened, right, n, 1, 0, &flag) && open_optional(&opened, weights, n, 1, 0, &weight) &&
           open_column(&opened, out, -1, 1, 1, &sums);
    if (fine) {
        const Py_ssize_t size = last_length(&opened) / 2;
        Py_BEGIN_ALLOW_THREADS
        add_on_grid(z, flag, weight, n, grid, reach, low, size, sums);
        Py_END_ALLOW_THREADS
    }
    return release(&opened, fine);
}

static PyObject *class_units(PyObject *self, PyObject *args) {
    PyObject *block, *accept, *edges, *totals, *above;
    void *edge, *sums, *counts;
    unsigned char *flags;
    struct opened opened = {0};
    struct table table;
    if (!PyArg_ParseTuple(args, "OOOOO", &block, &accept, &edges, &totals, &above)) return NULL;
    int fine = open_table(&opened, block, &table, 0) && open_flags(&opened, accept, table.n, 0, &flags) &&
               open_column(&opened, edges, -1, 1, 0, &edge);
    const Py_ssize_t n_bins = fine ? last_length(&opened) - 1 : 0;
    if (fine && n_bins < 1) return PyErr_SetString(PyExc_ValueError, "bins need two edges"), release(&opened, 0);
    if (fine && n_bins > PY_SSIZE_T_MAX / 4 / table.k)
        return PyErr_SetString(PyExc_ValueError, "more bins than can be counted"), release(&opened, 0);
    fine = fine && open_column(&opened, totals, 4 * table.k, 1, 1, &sums) &&
           open_column(&opened, above, 4 * table.k * n_bins, 0, 1, &counts);
    if (fine) {
        const struct bins bins = {edge, n_bins, counts};
        Py_BEGIN_ALLOW_THREADS
        active->class_units(&table, flags, &bins, sums);
        Py_END_ALLOW_THREADS
    }
    return release(&opened, fine);
}

static PyObject *hash_scores(PyObject *self, PyObject *args) {
    PyObject *scores, *flags, *sums, *hashes;
    int coarse, fine;
    double floor;
    unsigned long long bound;
    void *score, *sum, *hash;
    unsigned char *flag;
    struct opened opened = {0};
    if (!PyArg_ParseTuple(args, "OOdiiKOO", &scores, &flags, &floor, &coarse, &fine, &bound, &sums, &hashes))
        return NULL;
    if (coarse < 1 || coarse > 52 || fine < 1 || fine > 52)
        return PyErr_Format(PyExc_ValueError, "no grid drops %d bits", coarse < 1 || coarse > 52 ? coarse : fine);
    int opens = open_column(&opened, scores, -1, 1, 0, &score);
    const Py_ssize_t n = opens ? last_length(&opened) : 0;
    opens = opens && open_flags(&opened, flags, n, 0, &flag) &&
                   open_column(&opened, sums, DIGEST_SUMS, 0, 1, &sum) && open_column(&opened, hashes, n, 0, 1, &hash);
    Py_ssize_t kept = 0;
    if (opens) {
        Py_BEGIN_ALLOW_THREADS
        kept = active->hash_rows(score, flag, n, floor, coarse, fine, bound, sum, hash);
        Py_END_ALLOW_THREADS
    }
    PyObject *done = release(&opened, opens);
    Py_XDECREF(done);
    return done ? PyLong_FromSsize_t(kept) : NULL;
}

static PyObject *instruction_sets(PyObject *self, PyObject *none) {
    PyObject *names = PyList_New(0);
    for (int i = 0; names && i < N_KERNELS; i++) {
        if (!supported(&all_kernels[i])) continue;
        PyObject *name = PyUnicode_FromString(all_kernels[i].name);
        if (!name || PyList_Append(names, name) < 0) Py_CLEAR(names);
        Py_XDECREF(name);
    }
    return names;
}

static PyObject *use(PyObject *self, PyObject *name) {
    const char *wanted = PyUnicode_AsUTF8AndSize(name, NULL);
    if (!wanted) return NULL;
    for (int i = 0; i < N_KERNELS; i++) {
        if (!strcmp(all_kernels[i].name, wanted) && supported(&all_kernels[i])) {
            active = &all_kernels[i];
            Py_RETURN_NONE;
        }
    }
    return PyErr_Format(PyExc_ValueError, "this processor has no %s kernel", wanted);
}

static PyMethodDef methods[] = {
    {"scores", scores, METH_VARARGS,
     "scores(block, rows, kind, careful, out, top): one score per row, and the first largest column unless top is None."},
    {"predicted", predicted, METH_VARARGS, "predicted(block, rows, out): the first largest column of each row."},
    {"softmax", softmax, METH_VARARGS, 
     "softmax(block, rows, b, least, most, out): softmax(b x) of each row, between the two limits."},
    {"lifted", lifted, METH_VARARGS,
     "lifted(block, b, uniform, curve, least, most, out): softmax(b x) with a uniform part, its largest entry through a "
     "curve if there is one, between the two limits."},
    {"confidences", confidences, METH_VARARGS,
     "confidences(block, rows, b, uniform, curve, least, most, single, out): the probability of the predicted column."},
    {"inside", inside, METH_VARARGS, "inside(block, least, most, out): bring the probabilities of rows between the two."},
    {"tempered_loss", tempered_loss, METH_VARARGS,
     "tempered_loss(block, rows, labels, weights, b, ends, out): sums of the loss and its derivatives, strip by strip."},
    {"mixed_sums", mixed_sums, METH_VARARGS,
     "mixed_sums(columns, weights, b, step, uniform, first, last, out): the loss of these rows and its derivatives."},
    {"log_odds", log_odds, METH_VARARGS,
     "log_odds(columns, step, uniform, first, last, out): the log-odds of the confidence of these rows."},
    {"on_grid", on_grid, METH_VARARGS,
     "on_grid(z, right, weights, grid, reach, low, out): weights of rows, and of right ones, a pair of them for each point beside a z."},
    {"class_units", class_units, METH_VARARGS,
     "class_units(block, accept, edges, totals, above): add probabilities up in whole units, by class, and by bin of it."},
    {"rounded", rounded, METH_VARARGS, "rounded(values, dropped, floor, out): the nearest points of a grid."},
    {"ranked_rows", ranked_rows, METH_VARARGS,
     "ranked_rows(block, kind, careful, labels, dropped, floor, out, flags): rounded scores, and which rows are right."},
    {"mixed_rows", mixed_rows, METH_VARARGS,
     "mixed_rows(block, rows, labels, b, out): tail, cumulants, true class, possible classes, right: eight numbers a row."},
    {"members", members, METH_VARARGS,
     "members(block, rows, labels, b, out): the true class's probability under softmax(b x), softmax(x) and 1/K."},
    {"first_bad_row", first_bad_row, METH_O,
     "first_bad_row(block): the first row that is no row of logits; -2: none, but some logit may be a mask; -1: neither."},
    {"keys", keys_of_rows, METH_VARARGS,
     "keys(scores, flags, keys): an integer for each row, in order, its last bit the flag; whether that bit is free."},
    {"blocks", blocks_of_keys, METH_VARARGS,
     "blocks(keys, ranks, errors, wrong, sorted): blocks of equal scores, in place of the keys; how many, and of wrong."},
    {"count_in_cells", count_in_cells, METH_VARARGS,
     "count_in_cells(scores, flags, stretches, counts, seen): add rows to the counts of the cells that their keys lie in."},
    {"hash_scores", hash_scores, METH_VARARGS,
     "hash_scores(scores, flags, floor, coarse, fine, bound, sums, hashes): add to a digest; how many hashes to keep."},
    {"instruction_sets", instruction_sets, METH_NOARGS, "What this processor can run, fastest first."},
    {"use", use, METH_O, "use(name): run the kernels of that instruction set."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "metacal.kernels._fused", "Row statistics in C.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__fused(void) {
    for (int i = N_KERNELS - 1; i >= 0; i--)
        if (supported(&all_kernels[i])) active = &all_kernels[i];
    return PyModule_Create(&module);
}
