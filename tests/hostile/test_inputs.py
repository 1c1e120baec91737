"""Odd inputs: a right, finite answer or one sentence; never NumPy's own exception, a NaN, or a
silent wrong answer.
"""

from __future__ import annotations

import decimal
import fractions
import warnings

import numpy as np
import pytest
import scipy.sparse
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression

import metacal as mc
from metacal.errors import MetacalError

pandas = pytest.importorskip("pandas")
torch = pytest.importorskip("torch")

N, K = 160, 4
RNG = np.random.default_rng(0)
LABELS = RNG.integers(K, size=N)
LOGITS = np.round(RNG.normal(size=(N, K)) + 2.0 * np.eye(K)[LABELS], 2)
WRONG = RNG.random(N) < 0.2
LOGITS[WRONG] = LOGITS[WRONG][:, ::-1]
PROBABILITIES = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
ROW_3 = np.arange(N)[:, None] == 3
NAMES = np.array(["ant", "bee", "cat", "dog"])


def spoiled(value, dtype=np.float64):
    table = LOGITS.astype(dtype)
    table[3, (LABELS[3] + 1) % K] = value
    return table


def unreadable(*_, **__):
    raise RuntimeError("boom")


class Duck:
    def __array__(self, dtype=None, copy=None):
        return LOGITS


BROKEN = type("Broken", (), {"__array__": unreadable})()

#: The same numbers in other clothes: the answer is that of the plain table, to the tolerance.
SAME_TABLES = {
    "lists": (LOGITS.tolist(), 0.0),
    "tuples": (tuple(map(tuple, LOGITS)), 0.0),
    "big-endian": (LOGITS.astype(">f8"), 0.0),
    "longdouble": (LOGITS.astype(np.longdouble), 0.0),
    "float32": (LOGITS.astype(np.float32), 1e-5),
    "float16": (LOGITS.astype(np.float16), 2e-2),
    "objects": (LOGITS.astype(object), 0.0),
    "decimals": (
        np.array([[decimal.Decimal(str(v)) for v in row] for row in LOGITS], dtype=object),
        0.0,
    ),
    "fractions": (
        np.array([[fractions.Fraction(str(v)) for v in row] for row in LOGITS], dtype=object),
        0.0,
    ),
    "digits": (LOGITS.astype(str), 0.0),
    "matrix": (np.matrix(LOGITS), 0.0),
    "memoryview": (memoryview(LOGITS), 0.0),
    "Fortran order": (np.asfortranarray(LOGITS), 0.0),
    "strided": (np.repeat(LOGITS, 2, axis=1)[:, ::2], 0.0),
    "backwards": (np.ascontiguousarray(LOGITS[:, ::-1])[:, ::-1], 0.0),
    "read-only": (np.frombuffer(LOGITS.tobytes()).reshape(N, K), 0.0),
    "masked array without a mask": (np.ma.array(LOGITS), 0.0),
    "its own __array__": (Duck(), 0.0),
    "tensor": (torch.tensor(LOGITS), 0.0),
    "tensor with gradients": (torch.tensor(LOGITS, requires_grad=True), 0.0),
    "parameter": (torch.nn.Parameter(torch.tensor(LOGITS)), 0.0),
    "bfloat16": (torch.tensor(LOGITS).bfloat16(), 5e-2),
    "list of tensors": (list(torch.tensor(LOGITS)), 0.0),
    "frame": (pandas.DataFrame(LOGITS), 0.0),
    "nullable frame": (pandas.DataFrame(LOGITS).astype("Float64"), 0.0),
    "frame of objects": (pandas.DataFrame(LOGITS).astype(object), 0.0),
}

#: Tables that are no tables of logits, and what is said.
BAD_TABLES = {
    "None": (None, "must be 2-D"),
    "a number": (3.0, "must be 2-D"),
    "a word": ("hello", "must be 2-D"),
    "no rows": ([], "must be 2-D"),
    "a row without classes": ([[]], "at least 2 columns"),
    "ragged": ([[1.0, 2.0], [1.0]], "different lengths"),
    "ragged deep inside": ([[1.0, [2.0]], [1.0, 2.0]], "different lengths"),
    "a generator": ((row for row in LOGITS), r"Pass list\(logits\)"),
    "a set": ({1.0, 2.0}, "rows have no order"),
    "a dict": ({"a": [1.0]}, "rows have no order"),
    "a function": (len, "must be 2-D"),
    "an array that raises": (BROKEN, "boom"),
    "words": (np.full((N, K), "cat"), "must be numbers"),
    "dates": (np.zeros((N, K), dtype="datetime64[s]"), "must be numbers"),
    "durations": (np.zeros((N, K), dtype="timedelta64[s]"), "must be numbers"),
    "structured": (np.zeros((N, K), dtype=[("a", "f8")]), "must be numbers"),
    "records": (np.rec.fromarrays(LOGITS.T), "must be 2-D"),
    "void": (np.zeros((N, K), dtype="V8"), "must be numbers"),
    "complex": (LOGITS + 0j, "Complex"),
    "huge Python integer": (np.where(ROW_3, 10**400, LOGITS.astype(object)), "must be numbers"),
    "arrays inside": (np.array([[np.ones(2)] * K, [1.0] * K], dtype=object), "must be numbers"),
    "None inside": (np.where(ROW_3, None, LOGITS.astype(object)), "row 3, column 0 is NaN"),
    "huge longdouble": (
        np.where(ROW_3, np.longdouble("1e400"), LOGITS),
        "row 3, column 0 is infinity|is infinity",
    ),
    "integers above 2^53": ((LOGITS * 100).astype(np.int64) + 2**60, r"above 2\^53"),
    "negative ones": ((LOGITS * 100).astype(np.int64) - 2**60, r"above 2\^53"),
    "unsigned ones": ((LOGITS * 100 + 1000).astype(np.uint64) + np.uint64(2**63), r"above 2\^53"),
    "masked": (
        np.ma.array(LOGITS, mask=LOGITS < -1),
        r"masked\. Write -inf",
    ),
    "masked rows in a list": (
        [np.ma.array(row, mask=row < -1) for row in LOGITS],
        "masked",
    ),
    "np.ma.masked": ([[np.ma.masked, 1.0, 2.0, 3.0]] * N, "is NaN"),
    "sparse": (scipy.sparse.csr_matrix(LOGITS), "toarray"),
    "sparse tensor": (torch.tensor(LOGITS).to_sparse(), "dense tensor"),
    "tensor on meta": (torch.tensor(LOGITS, device="meta"), "dense tensor"),
    "complex tensor": (torch.tensor(LOGITS + 0j).conj(), "Complex"),
    "frame with NA": (
        pandas.DataFrame(LOGITS).astype("Float64").mask(LOGITS > 3),
        "must be numbers",
    ),
    "frame of dates": (
        pandas.DataFrame({"a": pandas.date_range("2020", periods=N), "b": 1.0}),
        "must be numbers",
    ),
    "frame with mixed names": (pandas.DataFrame(LOGITS, columns=["a", 1, "b", 2]), "Feature names"),
    "frame with a name twice": (
        pandas.DataFrame(LOGITS, columns=list("aabb")),
        "unique name for each column",
    ),
    "nan": (spoiled(np.nan), "is NaN"),
    "infinity": (spoiled(np.inf), "is infinity"),
}

#: What fits that need a temperature refuse: there is none for logits of this size.
BAD_SIZES = {
    "tiny": ((LOGITS * 1e-38).astype(np.float32), "too small to fit a temperature.*Multiply"),
    "denormal": (LOGITS * 1e-320, "too small to fit a temperature"),
    "huge": (LOGITS * 1e300, "too large to fit a temperature.*Divide"),
    "overflowing": (np.where(LOGITS > 0, 1.79e308, -1.79e308), "too large to fit a temperature"),
    "overflowing floats": (
        np.where(LOGITS > 0, 3e38, -3e38).astype(np.float32),
        "too large to fit a temperature",
    ),
}

#: Legal tables that have brought others to overflow, division by zero or NaN.
ODD_TABLES = {
    "one -1e300": spoiled(-1e300),
    "one -12345": spoiled(-12345.0),
    "one 1e300": spoiled(1e300),
    "one 3e38 in float32": spoiled(3e38, np.float32),
    "one 1.79e308": spoiled(1.79e308),
    "a million times too large": LOGITS * 1e6,
    "a million times too small": LOGITS * 1e-6,
    "1e-25": (LOGITS * 1e-25).astype(np.float32),
    "all equal": LOGITS * 0.0,
    "all the least float": np.full((N, K), np.finfo(np.float32).min),
    "shifted by 1e16": LOGITS + 1e16,
    "shifted by 1e300": LOGITS + 1e300,
    "booleans": LOGITS > 0,
    "int8": (LOGITS * 10).astype(np.int8),
    "half, near its end": (LOGITS * 8000).astype(np.float16),
}

#: The same labels in other clothes.
SAME_LABELS = {
    "list": LABELS.tolist(),
    "int8": LABELS.astype(np.int8),
    "uint64": LABELS.astype(np.uint64),
    "big-endian": LABELS.astype(">i4"),
    "floats": LABELS.astype(float),
    "longdouble": LABELS.astype(np.longdouble),
    "objects": LABELS.astype(object),
    "a column": LABELS[:, None],
    "masked array without a mask": np.ma.array(LABELS),
    "tensor": torch.tensor(LABELS),
    "tensor of floats": torch.tensor(LABELS).float(),
    "bfloat16": torch.tensor(LABELS).bfloat16(),
    "list of 0-d tensors": [torch.tensor(v) for v in LABELS],
    "series": pandas.Series(LABELS, index=RNG.permutation(N)),
    "nullable": pandas.Series(LABELS, dtype="Int64"),
    "categorical": pandas.Categorical(LABELS),
    "memoryview": memoryview(LABELS),
}

BAD_LABELS = {
    "a number": (1, "must be 1-D"),
    "a generator": ((v for v in LABELS), r"Pass list\(labels\)"),
    "a set": (set(LABELS.tolist()), "rows have no order"),
    "ragged": ([[1], [1, 2]], "different lengths"),
    "one-hot": (np.eye(K)[LABELS], "argmax"),
    "a row": (LABELS[None], "must be 1-D"),
    "halves": (LABELS + 0.5, "row 0 has label|continuous"),
    "infinite": (np.where(np.arange(N) == 3, np.inf, LABELS), "row 3 has|infinity"),
    "too large for integers": (
        np.where(np.arange(N) == 3, 1e300, LABELS),
        r"row 3 has 1e\+300|continuous",
    ),
    "missing": (
        np.where(np.arange(N) == 3, np.nan, LABELS),
        r"missing in 1 rows \(the first is row 3|contains NaN",
    ),
    "negative": (LABELS - 1, "label -1|is not one of|None of the"),
    "beyond 63 bits": (LABELS.astype(np.uint64) + np.uint64(2**63), "row 0|first label"),
    "bad bytes": (np.array([b"\xff\xfe", b"a"] * (N // 2)), "order of the classes|is not one of"),
    "complex": (LABELS + 0j, "Complex"),
    "dates": (LABELS.astype("datetime64[D]"), "integers or strings"),
    "structured": (np.zeros(N, dtype=[("a", "i4")]), "integers or strings"),
    "arrays inside": (np.array([np.ones(2), np.ones(1)] * (N // 2), dtype=object), "got ndarray"),
    "tuples inside": (np.array([(1,), (1, 2)] * (N // 2), dtype=object), "got tuple"),
    "mixture": (
        np.array(["a", *LABELS[1:]], dtype=object),
        "mixture of types; got int and str|mixture",
    ),
    "huge Python integer": (
        np.array([10**30, *LABELS[1:].tolist()], dtype=object),
        "64-bit integers",
    ),
    "None inside": (
        np.array([None, *LABELS[1:]], dtype=object),
        r"missing in 1 rows \(the first is row 0\)\.",
    ),
    "NA": (
        pandas.array([pandas.NA, *map(str, LABELS[1:])], dtype="string"),
        r"missing in 1 rows \(the first is row 0\)\.",
    ),
    "NaT": (np.array([pandas.NaT, *LABELS[1:]], dtype=object), "missing in 1 rows"),
    "NA among booleans": (
        pandas.array([pandas.NA, *(LABELS[1:] > 1)], dtype="boolean"),
        "missing in 1 rows",
    ),
    "periods": (pandas.Series(pandas.period_range("2020", periods=N)), "got Period"),
    "masked": (np.ma.array(LABELS, mask=LABELS == 2), r"masked\. Leave such rows out\."),
    "tensor on meta": (torch.tensor(LABELS, device="meta"), "dense tensor"),
    "sparse": (scipy.sparse.csr_matrix(np.eye(K)[LABELS]), "sparse matrix"),
    "an array that raises": (BROKEN, "boom"),
    "names without an order": (NAMES[LABELS], "order of the classes|is not one of"),
}


def quietly(function, *arguments, **keywords):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*arguments, **keywords)


def fresh():
    return [
        mc.TemperatureScaling(),
        mc.VectorScaling(regularisation=1.0),
        mc.IsotonicCalibration(),
        mc.MetaCal(mc.MaxMiscoverage(0.2)),
        mc.MetaCal(mc.MinAccuracy(0.5)),
    ]


GATE = quietly(
    mc.MetaCal(mc.MaxMiscoverage(0.2), mc.VectorScaling(regularisation=1.0)).fit, LOGITS, LABELS
)
VECTOR = mc.VectorScaling(regularisation=1.0).fit(LOGITS, LABELS)
CLASSIFIER = FrozenEstimator(LogisticRegression().fit(LOGITS, LABELS))


@pytest.mark.parametrize("case", SAME_TABLES)
def test_the_same_table_gives_the_same_answer(case):
    table, tolerance = SAME_TABLES[case]
    found, expected = quietly(VECTOR.predict_proba, table), VECTOR.predict_proba(LOGITS)
    assert np.allclose(found, expected, rtol=0.0, atol=max(tolerance, 1e-12))
    found = quietly(mc.TemperatureScaling().fit, table, LABELS).temperature_
    expected = mc.TemperatureScaling().fit(LOGITS, LABELS).temperature_
    assert found == pytest.approx(expected, rel=max(5 * tolerance, 1e-12))


@pytest.mark.parametrize("case", BAD_TABLES)
def test_a_bad_table_is_answered_by_a_sentence(case):
    table, message = BAD_TABLES[case]
    for estimator in fresh()[1:4]:
        with pytest.raises(mc.InputError, match=message):
            quietly(estimator.fit, table, LABELS)
    with pytest.raises(mc.InputError, match=f"{message}|expecting 4 features|feature names"):
        quietly(GATE.predict_proba, table)
    for metric in (mc.metrics.ece, mc.metrics.nll, mc.metrics.brier, mc.metrics.evaluate):
        with pytest.raises(mc.InputError):
            quietly(metric, table, LABELS)
    if "frame with" not in case or "NA" in case:  # a comparison has no use for names
        with pytest.raises(mc.InputError):
            quietly(mc.compare, table, LABELS, ["temperature"])


@pytest.mark.parametrize("kind", ["quantised", "nested"])
def test_tensors_of_other_kinds_are_answered_by_a_sentence(kind):
    def tensor():
        if kind == "quantised":
            return torch.quantize_per_tensor(torch.ones(N, K), 0.1, 0, torch.qint8)
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])

    try:
        table = quietly(tensor)
    except (RuntimeError, AttributeError):
        pytest.skip(f"this torch makes no {kind} tensors")
    for call in (
        lambda: mc.TemperatureScaling().fit(table, LABELS),
        lambda: GATE.predict_proba(table),
    ):
        with pytest.raises(mc.InputError, match=r"dense tensor.*dequantize"):
            call()


@pytest.mark.parametrize("case", BAD_SIZES)
def test_logits_of_no_usable_size_are_refused_by_the_fit(case):
    table, message = BAD_SIZES[case]
    for estimator in (
        mc.TemperatureScaling(),
        mc.VectorScaling(),
        mc.MetaCal(mc.MaxMiscoverage(0.2)),
    ):
        with pytest.raises(mc.InputError, match=message):
            quietly(estimator.fit, table, LABELS)


@pytest.mark.slow
@pytest.mark.parametrize("case", [*ODD_TABLES, *BAD_SIZES])
def test_probabilities_are_finite_and_sum_to_one_or_a_sentence_is_said(case):
    table = ODD_TABLES[case] if case in ODD_TABLES else BAD_SIZES[case][0]
    estimators = [
        *fresh(),
        mc.MatrixScaling(regularisation=1.0),
        mc.GaussianProcessCalibration(),
        mc.PlattScaling(),
    ]
    for estimator in estimators:
        try:
            proba = quietly(quietly(estimator.fit, table, LABELS).predict_proba, table)
        except MetacalError:
            continue
        assert np.isfinite(proba).all()
        assert np.allclose(proba.sum(axis=1), 1.0, atol=1e-3)
    proba = quietly(GATE.predict_proba, table)
    assert np.isfinite(proba).all()
    assert np.allclose(proba.sum(axis=1), 1.0, atol=1e-3)


@pytest.mark.parametrize("case", SAME_LABELS)
def test_the_same_labels_give_the_same_answer(case):
    labels = SAME_LABELS[case]
    found = quietly(mc.MetaCal(mc.MaxMiscoverage(0.2)).fit, LOGITS, labels)
    expected = mc.MetaCal(mc.MaxMiscoverage(0.2)).fit(LOGITS, LABELS)
    assert found.data_hash_ == expected.data_hash_
    assert mc.metrics.nll(PROBABILITIES, labels) == mc.metrics.nll(PROBABILITIES, LABELS)
    gate = quietly(mc.CalibratedClassifier(CLASSIFIER, mc.MaxMiscoverage(0.2)).fit, LOGITS, labels)
    assert gate.certificate_.n_rows == N


@pytest.mark.parametrize("case", BAD_LABELS)
def test_bad_labels_are_answered_by_a_sentence(case):
    labels, message = BAD_LABELS[case]
    for estimator in (
        mc.TemperatureScaling(),
        mc.IsotonicCalibration(),
        mc.MetaCal(mc.MaxMiscoverage(0.2)),
    ):
        with pytest.raises(mc.InputError, match=message):
            quietly(estimator.fit, LOGITS, labels)
    for metric in (mc.metrics.ece, mc.metrics.brier):
        with pytest.raises(mc.InputError, match=message):
            quietly(metric, PROBABILITIES, labels)
    classifier = mc.CalibratedClassifier(CLASSIFIER, mc.MaxMiscoverage(0.2))
    if case == "negative":  # a label that the classifier does not know is an answer it gets wrong
        with pytest.warns(mc.MetacalWarning, match="for example -1. These rows count as incorrect"):
            classifier.fit(LOGITS, labels)
        return
    with pytest.raises(mc.InputError, match=message):
        quietly(classifier.fit, LOGITS, labels)


def test_boolean_classes_and_labels():
    labels = LABELS > 1
    pair = np.column_stack([LOGITS[:, :2].max(axis=1), LOGITS[:, 2:].max(axis=1)])
    expected = mc.TemperatureScaling().fit(pair, labels.astype(int)).temperature_
    for given in (
        labels,
        labels.astype(int),
        labels.tolist(),
        labels.astype(object),
        pandas.array(labels, dtype="boolean"),
    ):
        found = mc.TemperatureScaling(classes=[False, True]).fit(pair, given)
        assert found.temperature_ == expected
        assert found.predict(pair).dtype == bool


@pytest.mark.parametrize("value", [5e-324, 1e-300, np.float64(1e-20)])
@pytest.mark.parametrize("promise", [mc.MaxMiscoverage, mc.MinAccuracy])
def test_shares_that_no_table_can_speak_of(promise, value):
    with pytest.raises(mc.InputError, match="must be at least 1e-15"):
        promise(value)


class TestOut:
    """`out=` is the result's own shape and type, apart from the logits or exactly on top of
    them.
    """

    room = np.vstack([LOGITS, LOGITS[:1]])

    @pytest.mark.parametrize(
        "cal", [GATE, mc.TemperatureScaling().fit(LOGITS, LABELS)], ids=["gate", "temperature"]
    )
    def test_overlap_is_refused_and_the_same_memory_is_not(self, cal):
        expected = cal.predict_proba(LOGITS)
        room = self.room.copy()
        for table, out in (
            (room[:-1], room[1:]),
            (room[1:], room[:-1]),
            (room[::2], room[1::2][: len(room[::2])]),
        ):
            if table.shape == out.shape and np.shares_memory(table, out):
                with pytest.raises(mc.InputError, match="out overlaps"):
                    cal.predict_proba(table, out=out)
        assert np.array_equal(room, self.room)
        place = LOGITS.copy()
        assert np.array_equal(cal.predict_proba(place, out=place), expected)

    def test_neighbours_that_share_a_base_are_no_overlap(self):
        both = np.concatenate([LOGITS, np.empty_like(LOGITS)])
        assert np.array_equal(
            GATE.predict_proba(both[:N], out=both[N:]), GATE.predict_proba(LOGITS)
        )

    @pytest.mark.parametrize(
        ("out", "said"),
        [
            (np.empty((N, K), dtype=np.float32), "got a float32 ndarray"),
            (np.empty((N, K + 1)), r"of shape \(160, 5\)"),
            (np.empty((N, K), dtype=">f8"), "got a >f8 ndarray"),
            (np.broadcast_to(0.0, (N, K)), "got a read-only float64"),
            (np.ma.array(np.empty((N, K)), mask=True), "got a float64 MaskedArray"),
            (
                np.lib.stride_tricks.as_strided(np.empty(K), (N, K), (0, 8), writeable=True),
                "overlap",
            ),
            ([[0.0] * K] * N, "got list"),
            (torch.empty(N, K, dtype=torch.float64), "got a torch.float64 Tensor"),
        ],
    )
    def test_what_cannot_be_written_is_refused(self, out, said):
        with pytest.raises(mc.InputError, match=said):
            GATE.predict_proba(LOGITS, out=out)
