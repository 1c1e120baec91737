/* What Python hands over, as tables and columns: the buffer protocol, checked. */
/* The buffers of one call: whatever was opened is released together. */
struct opened {
    Py_buffer views[6];
    float *scratch[2];
    int n, n_scratch;
};

static Py_buffer *next_view(struct opened *opened, PyObject *object, int flags) {
    Py_buffer *view = &opened->views[opened->n];
    if (PyObject_GetBuffer(object, view, flags) < 0) return NULL;
    opened->n++;
    return view;
}

static PyObject *release(struct opened *opened, int fine) {
    while (opened->n_scratch) free(opened->scratch[--opened->n_scratch]);
    while (opened->n) PyBuffer_Release(&opened->views[--opened->n]);
    if (!fine) return NULL;
    Py_RETURN_NONE;
}

static char kind_of(const Py_buffer *view) {
    return view->format && view->format[0] && !view->format[1] ? view->format[0] : 0;
}

/* A 2-D buffer whose rows are contiguous, as a table. */
static int open_table(struct opened *opened, PyObject *object, struct table *table, int writable) {
    const int flags = PyBUF_STRIDES | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
    const Py_buffer *view = next_view(opened, object, flags);
    if (!view) return 0;
    const char kind = kind_of(view);
    if (view->ndim != 2 || (kind != 'e' && kind != 'f' && kind != 'd') || view->strides[1] != view->itemsize ||
        view->shape[1] < 1 || view->strides[0] % view->itemsize) {
        PyErr_SetString(PyExc_ValueError, "a 2-D float16, float32 or float64 block with contiguous rows is needed");
        return 0;
    }
    *table = (struct table){view->buf, view->shape[0], view->shape[1], view->strides[0], kind, NULL, NULL};
    if (kind == 'e') {
        if (!(table->scratch = malloc(sizeof(float) * (size_t)table->k))) {
            PyErr_NoMemory();
            return 0;
        }
        opened->scratch[opened->n_scratch++] = table->scratch;
    }
    return 1;
}

/* A contiguous 1-D buffer of `n` eight-byte items (any number if n < 0): 'd' doubles, or any 64-bit integers. */
static int open_column(struct opened *opened, PyObject *object, Py_ssize_t n, int doubles, int writable, void **items) {
    const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
    const Py_buffer *view = next_view(opened, object, flags);
    if (!view) return 0;
    const char kind = kind_of(view);
    const int fits = doubles ? kind == 'd' : kind == 'l' || kind == 'q' || kind == 'n';
    if (view->ndim != 1 || (n >= 0 && view->shape[0] != n) || view->itemsize != 8 || !fits) {
        PyErr_SetString(PyExc_ValueError, "a column of 64-bit items, one per row, is needed");
        return 0;
    }
    *items = view->buf;
    return 1;
}

/* A contiguous 1-D buffer of `n` flags of a byte each. */
static int open_flags(struct opened *opened, PyObject *object, Py_ssize_t n, int writable, unsigned char **flags) {
    const int asked = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
    const Py_buffer *view = next_view(opened, object, asked);
    if (!view) return 0;
    if (view->ndim != 1 || view->shape[0] != n || kind_of(view) != '?') {
        PyErr_SetString(PyExc_ValueError, "a column of flags, one per row, is needed");
        return 0;
    }
    *flags = view->buf;
    return 1;
}

/* The same, or NULL for None. */
static int open_optional(struct opened *opened, PyObject *object, Py_ssize_t n, int doubles, int writable, void **items) {
    *items = NULL;
    return object == Py_None || open_column(opened, object, n, doubles, writable, items);
}

static Py_ssize_t last_length(const struct opened *opened) { return opened->views[opened->n - 1].shape[0]; }

/* The rows of a block that are chosen; None: all. */
static int choose_rows(struct opened *opened, PyObject *rows, struct table *table) {
    void *chosen;
    if (!open_optional(opened, rows, -1, 0, 0, &chosen)) return 0;
    if (!chosen) return 1;
    const long long *row = chosen;
    const Py_ssize_t n = last_length(opened);
    int inside = 1;
    for (Py_ssize_t i = 0; i < n; i++) inside &= row[i] >= 0 && row[i] < table->n;
    if (!inside) {
        PyErr_SetString(PyExc_IndexError, "a chosen row is not in the block");
        return 0;
    }
    table->chosen = row;
    table->n = n;
    return 1;
}

/* Whether there is a label for every row and each is a column; raises if not. */
static int open_labels(struct opened *opened, PyObject *labels, const struct table *table, const long long **label) {
    void *items;
    int fit = 1;
    if (!open_column(opened, labels, table->n, 0, 0, &items)) return 0;
    *label = items;
    for (Py_ssize_t i = 0; i < table->n; i++) fit &= (*label)[i] >= 0 && (*label)[i] < table->k;
    if (!fit) PyErr_SetString(PyExc_IndexError, "a label is not a column of the block");
    return fit;
}
